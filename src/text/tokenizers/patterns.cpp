// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizers/patterns.hpp"

#include <p3d/base/text.hpp>

#include <algorithm>
#include <array>

namespace p3d::text {

namespace {

constexpr char const* gpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// tiktoken's own form of this pattern puts white space at the end of a text into one word.
constexpr char const* cl100k =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr char const* llama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char const* qwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char const* o200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

std::vector<SplitPattern> const& split_patterns() {
  static std::vector<SplitPattern> const all = {
      {"gpt2", gpt2}, {"cl100k", cl100k}, {"o200k", o200k}, {"llama3", llama3}, {"qwen2", qwen2}};
  return all;
}

SplitPattern const* find_split_pattern(std::string_view name) {
  auto const& all = split_patterns();
  auto const found = std::find_if(all.begin(), all.end(), [=](auto const& p) { return name == p.name; });
  return found == all.end() ? nullptr : &*found;
}

std::string split_pattern_names() {
  std::vector<std::string> names;
  for (auto const& p : split_patterns()) names.emplace_back(p.name);
  return base::join(names);
}

bool cuts_at_lines(std::string_view pattern) {
  auto const& all = split_patterns();
  return std::any_of(all.begin(), all.end(), [=](auto const& p) { return pattern == p.text; });
}

}  // namespace p3d::text
