// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizers/refuse.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text_file.hpp>
#include <p3d/text/tokenizer.hpp>

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

namespace p3d::text {

void bad_tokenizer(std::string expected, std::string found, std::string where) {
  base::refuse({.expected = std::move(expected),
                .found = std::move(found),
                .where = std::move(where),
                .fix = "correct the file, or get it again from where it comes from"});
}

void lacks(std::string const& file, std::string const& place, std::string const& what) {
  base::refuse(
      {.expected = "a tokenizer that p3d can carry out exactly",
       .found = fmt::format("{} asks for {}, which p3d lacks", std::filesystem::path(file).filename().string(), what),
       .where = fmt::format("{}: {}", file, place),
       .fix = "use another tokenizer, or tokenize with the library that made it"});
}

std::vector<std::string> tokenizer_files(std::string const& folder) {
  std::vector<std::string> out;
  for (char const* name : {"tokenizer.json", "tokenizer.model"}) {
    auto const path = std::filesystem::path(folder) / name;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) out.push_back(path.string());
  }
  return out;
}

std::string read_tokenizer_file(std::string const& path) {
  return base::read_text_file(path, "a file of a tokenizer", path, largest_tokenizer_file);
}

}  // namespace p3d::text
