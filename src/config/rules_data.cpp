// SPDX-License-Identifier: Apache-2.0
#include "config/files.hpp"
#include "config/rules.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace p3d::config {

namespace fs = std::filesystem;

std::string similar_file(std::string const& path) {
  std::error_code error;
  auto const folder = fs::path(path).parent_path();
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end && names.size() < 1000; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  auto const close = base::nearest(fs::path(path).filename().string(), names);
  return close.empty() ? "" : fmt::format(" (did you mean {}?)", (folder / close).string());
}

namespace {

/// The value of one file: an element of the list, or the single string.
toml::node const& path_node(Entry const& entry, std::size_t i) {
  auto const* list = entry.node->as_array();
  return list ? *list->get(i) : *entry.node;
}

void check_files(Check const& c) {
  if (!c.known({"data.format", "data.path"}) || c.config.data.format != DataFormat::text) return;
  auto const& paths = c.config.data.path;
  if (paths.empty()) {
    c.fault({"data.path"}, "data.path: the text to train on, a file, a folder or a list of them", "nothing",
            "add path = \"my-text.txt\" below [data], or set data.format to \"synthetic\"");
    return;
  }
  auto const* entry = c.sources.entry("data.path");
  auto const& input = c.sources.input();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    std::error_code error;
    if (fs::exists(paths[i], error)) continue;
    auto const& node = path_node(*entry, i);
    std::string note;
    if (fs::path(node.value_or(std::string())).is_relative()) {
      note = entry->from_file() ? "; it starts at the folder of the input file, " + absolute_path(input.folder, "")
                                : "; it starts at the current directory, " + absolute_path("", "");
    }
    std::string const found =
        error && error != std::errc::no_such_file_or_directory ? error.message() : "no such file or folder";
    c.faults.add(FaultList::between_keys(), {.key = "data.path",
                                             .where = input.place(*entry, node),
                                             .expected = "an existing file or folder",
                                             .found = fmt::format("{}: {}", paths[i], found),
                                             .fix = "correct the path" + similar_file(paths[i]) + note});
  }
}

void check_vocabulary(Check const& c) {
  if (!c.known({"data.format", "data.tokenizer", "model.vocab_size"})) return;
  if (c.config.data.format != DataFormat::text || c.config.data.tokenizer != "bytes" ||
      c.config.model.vocab_size >= 256)
    return;
  c.fault({"model.vocab_size", "data.tokenizer"},
          "model.vocab_size at least 256: the tokenizer makes a token of each byte",
          fmt::format("vocab_size {}", c.config.model.vocab_size), "set model.vocab_size to 256");
}

/// Text goes in and comes out as bytes: a token each.
void check_sample(Check const& c) {
  if (!c.known({"sample.tokens", "sample.prompt", "model.vocab_size"}) || c.config.sample.tokens == 0) return;
  auto const vocabulary = c.config.model.vocab_size;
  if (vocabulary > 256) {
    c.fault({"sample.tokens", "model.vocab_size"},
            "no sample.tokens where model.vocab_size is above 256: a token is printed as one byte",
            fmt::format("tokens {}, vocab_size {}", c.config.sample.tokens, vocabulary),
            "set sample.tokens to 0, or model.vocab_size to 256");
    return;
  }
  for (char const byte : c.config.sample.prompt) {
    auto const token = static_cast<unsigned char>(byte);
    if (token < vocabulary) continue;
    c.fault({"sample.prompt", "model.vocab_size"},
            fmt::format("a prompt of tokens below model.vocab_size = {}", vocabulary), fmt::format("byte {}", token),
            "change the prompt, or set model.vocab_size to 256");
    return;
  }
}

void check_learning_rate(Check const& c) {
  auto const& o = c.config.optimizer;
  if (c.known({"optimizer.min_lr", "optimizer.lr"}) && o.min_lr > o.lr) {
    c.fault({"optimizer.min_lr", "optimizer.lr"}, "optimizer.min_lr at most optimizer.lr",
            fmt::format("min_lr {}, lr {}", o.min_lr, o.lr), "lower min_lr, or remove it: it is lr / 10 by default");
  }
}

}  // namespace

void check_data(Check const& check) {
  check_files(check);
  check_vocabulary(check);
  check_sample(check);
  check_learning_rate(check);
}

}  // namespace p3d::config
