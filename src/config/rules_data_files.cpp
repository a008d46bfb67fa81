// SPDX-License-Identifier: Apache-2.0
// The rules of the training data: the files are there, their format knows what other keys need (where documents end,
// how they are ordered), and the weights of a blend are whole numbers. Files are looked for and not opened: what is in
// them is checked by room data. Example: data.path = "corpus" in format "megatron" asks for corpus.bin and corpus.idx.
#include "config/files.hpp"
#include "config/rules.hpp"

#include <p3d/base/text.hpp>
#include <p3d/config/weights.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace p3d::config {

namespace fs = std::filesystem;

// Only the first 1000 names of a folder are compared: a folder of a million files must not hold up an error message.
std::string similar_file(std::string const& path) {
  std::error_code error;
  auto const folder = fs::path(path).parent_path();
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end && names.size() < 1000; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  auto const own = fs::path(path).filename().string();
  std::erase(names, own);  // it is there, and no file: nobody meant it
  std::sort(names.begin(), names.end());
  auto const close = base::nearest(own, names);
  return close.empty() ? "" : fmt::format(" (did you mean {}?)", (folder / close).string());
}

std::optional<NoFile> no_file(std::string const& path) {
  std::error_code ignored;
  auto const status = fs::status(path, ignored);
  if (fs::is_regular_file(status)) return std::nullopt;
  if (fs::is_directory(status)) return NoFile{.found = "a folder", .fix = "name a file in it"};
  if (fs::exists(status)) return NoFile{.found = "no regular file", .fix = "name a regular file"};
  return NoFile{.found = "no such file", .missing = true, .fix = "correct the path" + similar_file(path)};
}

namespace {

/// The node of path i, for its place: an element of the list, the single string, or the path of a source.
toml::node const& path_node(Entry const& entry, std::size_t i) {
  auto const* list = entry.node->as_array();
  if (list == nullptr) return *entry.node;
  auto const* table = list->get(i)->as_table();
  return table != nullptr ? *table->get("path") : *list->get(i);
}

/// True when a path of data is there. For Megatron-LM a prefix may stand for the pair PREFIX.bin, PREFIX.idx.
bool exists(std::string const& path, DataFormat format, std::error_code& error) {
  return fs::exists(path, error) || (format == DataFormat::megatron && fs::exists(path + ".idx", error));
}

/// Each of the paths must exist; a relative one is reported with the folder that it starts at.
void check_paths(Check const& c, std::string const& key, std::vector<std::string> const& paths) {
  auto const* entry = c.sources.entry(key);
  auto const& input = c.sources.input();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    std::error_code error;
    if (exists(paths[i], c.config.data.format, error)) continue;
    auto const& node = path_node(*entry, i);
    std::string note;
    if (fs::path(node.value_or(std::string())).is_relative()) {
      note = entry->from_file() ? "; it starts at the folder of the input file, " + absolute_path(input.folder, "")
                                : "; it starts at the current directory, " + absolute_path("", "");
    }
    std::string const found =
        error && error != std::errc::no_such_file_or_directory ? error.message() : "no such file or folder";
    c.errors.add(KeyErrors::between_keys(), {.key = key,
                                             .where = input.place(*entry, node),
                                             .expected = "an existing file or folder",
                                             .found = fmt::format("{}: {}", paths[i], found),
                                             .fix = "correct the path" + similar_file(paths[i]) + note});
  }
}

/// The folders of a text must not hold what the run writes, which it would train on.
void check_outputs(Check const& c, std::string const& key, std::vector<std::string> const& paths) {
  auto const& run = c.config.run.output_dir;
  auto const& checkpoints = c.config.checkpoint.dir;
  std::error_code ignored;
  for (auto const& path : paths) {
    if (!fs::is_directory(path, ignored)) continue;
    auto const folder = fs::weakly_canonical(path, ignored);
    for (auto const& [name, output] : {std::pair{"run.output_dir", run}, {"checkpoint.dir", checkpoints}}) {
      if (output.empty()) continue;
      auto const inside = fs::weakly_canonical(fs::absolute(output, ignored), ignored).lexically_relative(folder);
      if (inside.empty() || *inside.begin() == "..") continue;
      c.error({key, name}, "a run that writes outside the folders of its text",
              fmt::format("{} = {} within {}", name, output, path),
              fmt::format("name the text's files, or a folder of their own, or set {} elsewhere", name));
      return;
    }
  }
}

/// Training data come from data.path or from data.source, and synthetic ones from neither.
void check_files(Check const& c) {
  if (!c.known({"data.format", "data.path", "data.source"})) return;
  auto const& d = c.config.data;
  if (d.format == DataFormat::synthetic) {
    if (!d.source.empty())
      c.error({"data.source", "data.format"}, "files, where data.source has some", "data.format = \"synthetic\"",
              "remove data.source, or set data.format to that of the files");
    return;
  }
  if (d.path.empty() && d.source.empty()) {
    bool const text = d.format == DataFormat::text;
    c.error({"data.path"},
            text ? "data.path: the text to train on, a file, a folder or a list of them"
                 : "data.path: the token files to train on, a file, a folder or a list of them",
            "nothing",
            text ? "add path = \"my-text.txt\" below [data], or set data.format to \"synthetic\""
                 : "add path = \"my-tokens\" below [data], or set data.format to \"synthetic\"");
    return;
  }
  if (!d.path.empty() && !d.source.empty()) {
    c.error({"data.source", "data.path"}, "data.path or data.source", "both",
            "name every source in a table [[data.source]] of its own, and remove data.path");
    return;
  }
  std::vector<std::string> sources;
  for (auto const& source : d.source) sources.push_back(source.path);
  auto const* const key = d.source.empty() ? "data.path" : "data.source";
  auto const& paths = d.source.empty() ? d.path : sources;
  check_paths(c, key, paths);
  if (d.format == DataFormat::text) check_outputs(c, key, paths);
}

/// Weights in about the same ratio with few digits, as a text.
std::string rounded(std::vector<double> const& weights, double sum) {
  std::vector<std::string> out;
  for (double const w : weights) out.push_back(fmt::format("{}", std::max(1.0, std::round(w / sum * 1e6))));
  return base::join(out);
}

/// The weights of sources must be in the ratio of small whole numbers.
void check_weights(Check const& c) {
  if (!c.known({"data.source", "data.shuffle"}) || c.config.data.shuffle == Shuffle::megatron) return;
  std::vector<double> weights;
  double sum = 0.0;
  for (auto const& source : c.config.data.source) {
    weights.push_back(source.weight);
    sum += source.weight;
  }
  if (weights.size() < 2 || whole_weights(weights)) return;
  c.error({"data.source"},
          "weights in the ratio of whole numbers with a sum of at most 4194304: shares are kept exactly",
          "weights with too many digits", "round them, to " + rounded(weights, sum));
}

/// Orders of documents need files that know their documents.
void check_shuffle(Check const& c) {
  if (!c.known({"data.shuffle", "data.format", "run.seed"})) return;
  auto const& d = c.config.data;
  if (d.shuffle == Shuffle::windows) return;
  if (d.format != DataFormat::megatron) {
    c.error({"data.shuffle", "data.format"}, "data.format = \"megatron\", whose files know their documents",
            fmt::format("data.shuffle = \"{}\" with data.format = \"{}\"", to_string(d.shuffle), to_string(d.format)),
            "set data.shuffle to \"windows\", or data.format to \"megatron\"");
  } else if (d.shuffle == Shuffle::megatron && c.config.run.seed > 0xffffffff) {
    c.error({"run.seed", "data.shuffle"}, "run.seed below 2^32, as Megatron-LM's random numbers need",
            fmt::format("{}", c.config.run.seed), "choose a smaller seed");
  }
}

/// Keys about the end of documents need a token, or a format, that says where documents end.
void check_ends(Check const& c) {
  if (!c.known({"data.eod_token", "data.eod_mask_loss", "data.reset_positions", "data.pack", "data.format",
                "model.vocab_size"}))
    return;
  auto const& d = c.config.data;
  if (d.eod_token >= c.config.model.vocab_size) {
    c.error({"data.eod_token", "model.vocab_size"}, "data.eod_token below model.vocab_size",
            fmt::format("eod_token {}, vocab_size {}", d.eod_token, c.config.model.vocab_size),
            "correct data.eod_token; -1: none");
  }
  if (d.eod_token >= 0) return;
  if (d.pack) {  // pack implies the other two keys
    if (d.format == DataFormat::megatron || d.format == DataFormat::text) return;
    c.error({"data.pack", "data.eod_token", "data.format"},
            "data.eod_token, or a data.format whose files say where documents end (megatron, text)",
            fmt::format("eod_token -1, data.format = \"{}\"", to_string(d.format)),
            "set data.eod_token to the token that ends a document, or data.pack to false");
    return;
  }
  for (auto const* key : {"data.eod_mask_loss", "data.reset_positions"}) {
    bool const on = std::string_view(key) == "data.eod_mask_loss" ? d.eod_mask_loss : d.reset_positions;
    if (on)
      c.error({key, "data.eod_token"}, "data.eod_token, the token that ends a document", "-1: none",
              fmt::format("set data.eod_token, or {} to false", key));
  }
}

/// Samples that are documents need an order of documents, one in each sample.
void check_variable(Check const& c) {
  if (!c.known({"batch.variable", "data.shuffle", "data.pack"}) || !c.config.batch.variable) return;
  auto const& d = c.config.data;
  if (d.shuffle != Shuffle::documents && d.shuffle != Shuffle::whole_documents)
    c.error(
        {"batch.variable", "data.shuffle"},
        "data.shuffle = \"documents\" or \"whole_documents\" where samples are documents (and data.format = "
        "\"megatron\", whose files know them)",
        fmt::format("batch.variable with data.shuffle = \"{}\"", to_string(d.shuffle)),
        "set data.shuffle to \"documents\" (p3d data tokenize makes such files of text), or batch.variable to false");
  if (d.pack)
    c.error({"batch.variable", "data.pack"}, "batch.variable or data.pack: a sample is one document, or several",
            "both", "remove one of them");
}

/// Text is not tokenized while a model is trained: tokens are made once, beforehand.
void check_tokenizer(Check const& c) {
  if (!c.known({"data.format", "data.tokenizer"})) return;
  auto const& d = c.config.data;
  if (d.format != DataFormat::text || d.tokenizer == "bytes") return;
  c.error({"data.tokenizer", "data.format"}, "data.tokenizer = \"bytes\" where data.format is \"text\"",
          fmt::format("tokenizer {}", d.tokenizer),
          "make tokens of the text once: p3d data tokenize; then set data.format to \"megatron\"");
}

}  // namespace

void check_data_files(Check const& check) {
  check_files(check);
  check_weights(check);
  check_shuffle(check);
  check_ends(check);
  check_variable(check);
  check_tokenizer(check);
}

}  // namespace p3d::config
