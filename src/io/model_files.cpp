// SPDX-License-Identifier: Apache-2.0
#include <p3d/io/model_files.hpp>

#include "hdf5_read.hpp"
#include "posix_file.hpp"
#include "seal.hpp"
#include "table.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/text_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

namespace p3d::io {

namespace {

/// The names that transformers gives to the files (and llama.cpp's converter looks for), in the order of an export.
constexpr char const* of_model[] = {"config.json", "generation_config.json"};
constexpr char const* of_tokenizer[] = {
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json",     "merges.txt",      "chat_template.jinja",   "chat_template.json"};

template <class Rows>
bool holds(Rows const& rows, std::string_view name) {
  return std::find(std::begin(rows), std::end(rows), name) != std::end(rows);
}

/// Calls visit(name) for every name, those of the model first.
template <class Visit>
void for_names(Visit&& visit) {
  for (auto const* name : of_model) visit(name);
  for (auto const* name : of_tokenizer) visit(name);
}

}  // namespace

bool is_tokenizer_file(std::string_view name) { return holds(of_tokenizer, name); }
bool is_model_file(std::string_view name) { return holds(of_model, name) || is_tokenizer_file(name); }

ModelFile const* find(ModelFiles const& files, std::string_view name) {
  auto const found = std::find_if(files.begin(), files.end(), [&](auto const& f) { return f.name == name; });
  return found == files.end() ? nullptr : &*found;
}

ModelFiles read_model_files(std::string const& folder, std::vector<std::string>& left_out) {
  namespace fs = std::filesystem;
  ModelFiles out;
  for_names([&](char const* name) {
    auto const path = fs::path(folder) / name;
    std::error_code none;
    if (!fs::is_regular_file(path, none)) return;
    auto const size = fs::file_size(path, none);
    if (none || size == 0) return;
    if (size > static_cast<std::uintmax_t>(ModelFile::largest)) {
      left_out.push_back(fmt::format("{} ({})", path.string(), base::human_bytes(static_cast<double>(size))));
      return;
    }
    out.push_back(
        {name, base::read_text_file(path.string(), "a file of the model", path.string(), ModelFile::largest)});
  });
  return out;
}

ModelFiles stored_model_files(std::string const& checkpoint) {
  return base::as_bad_input([&] {
    ModelFiles out;
    PosixFile const posix(checkpoint, PosixFile::Mode::read);
    auto const seal = check_seal(posix);
    Hdf5File file(posix, seal.user_block);
    if (!file.has(model_files_group)) return out;
    // The files may not be larger than the checkpoint in all.
    std::int64_t left = posix.size();
    for_names([&](char const* name) {
      if (!file.has_in(model_files_group, name)) return;
      auto const dataset = fmt::format("{}/{}", model_files_group, name);
      out.push_back({name, file.bytes_of(dataset)});
      left -= std::ssize(out.back().bytes);
      if (left < 0)  // several names of the same bytes would multiply them
        throw damaged(checkpoint, "datasets of /" + std::string(model_files_group) + " with bytes of their own",
                      "/" + dataset + ", which shares those of others");
    });
    return out;
  });
}

}  // namespace p3d::io
