// SPDX-License-Identifier: Apache-2.0
#pragma once
// Added tokens: those that are found in text before anything else is done with it. They are special tokens, and others
// that were added to a finished tokenizer.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace p3d::text {

/// One added token, as tokenizer.json describes it.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  ///< it is not found inside of a word
  bool lstrip = false;       ///< it takes the white space before it
  bool rstrip = false;       ///< it takes the white space after it
  bool normalized = false;   ///< it is looked for in normalized text
};

/// Finds added tokens in a text, from left to right; among those that begin at one place it takes the longest.
class AddedTokens {
public:
  /// `text_of`: for each token the text that is looked for (its content, perhaps normalized).
  AddedTokens() = default;
  AddedTokens(std::vector<AddedToken> tokens, std::vector<std::string> const& text_of);

  /// Calls plain(part) and token(id) for the pieces of the text, in order. `special` false: special tokens are plain
  /// text.
  void split(std::string_view text, bool special, std::function<void(std::string_view)> const& plain,
             std::function<void(std::int32_t)> const& token) const;
  /// True when there is any token to look for.
  bool any(bool special) const { return special ? !tokens_.empty() : others_ > 0; }

private:
  /// A text to look for, and the index of its token.
  struct Place {
    std::string text;
    std::size_t token = 0;
  };
  std::vector<AddedToken> tokens_;
  std::vector<std::vector<Place>> by_first_ =
      std::vector<std::vector<Place>>(256);  ///< one list for each first byte, the longest text first
  std::size_t others_ = 0;                   ///< number of tokens that are not special
};

}  // namespace p3d::text
