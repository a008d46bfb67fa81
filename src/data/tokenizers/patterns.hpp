// SPDX-License-Identifier: Apache-2.0
#pragma once
// How known families of byte-level BPE split text into words, by name.

#include <string>
#include <string_view>
#include <vector>

namespace p3d::data {

/// A name that data.tokenizer_pattern takes.
struct SplitPattern {
  char const* name;
  char const* text;  ///< what Oniguruma, Rust's regex and PCRE2 read alike, once \s is written out
};
std::vector<SplitPattern> const& split_patterns();
/// Null: there is none of that name.
SplitPattern const* find_split_pattern(std::string_view name);
/// "gpt2, cl100k, ..."
std::string split_pattern_names();

/// True of the patterns above, in any of the forms in which files have them: a word ends with the line end where a line
/// that ends in something else than white space is followed by an ASCII letter, whatever follows.
bool cuts_at_lines(std::string_view pattern);

}  // namespace p3d::data
