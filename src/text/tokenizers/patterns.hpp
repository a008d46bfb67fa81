// SPDX-License-Identifier: Apache-2.0
#pragma once
// The patterns by which known families of byte-level BPE split text into words, by name.

#include <string>
#include <string_view>
#include <vector>

namespace p3d::text {

/// A pattern and the name that data.tokenizer_pattern takes for it.
struct SplitPattern {
  char const* name;
  char const* text;  ///< Oniguruma, Rust's regex and PCRE2 read it alike, once \s is written out
};
/// All known patterns.
std::vector<SplitPattern> const& split_patterns();
/// The pattern of this name, or null.
SplitPattern const* find_split_pattern(std::string_view name);
/// The names as one text, "gpt2, cl100k, ..."
std::string split_pattern_names();

/// True for the patterns above, in the forms in which files have them. With them a word ends with the line end where a
/// line that ends in something else than white space is followed by an ASCII letter, whatever follows.
bool cuts_at_lines(std::string_view pattern);

}  // namespace p3d::text
