// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens that are found in text before anything else is done with it: special tokens, and others that were added to a
// finished tokenizer.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace p3d::data {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  ///< not inside of a word
  bool lstrip = false;       ///< with the white space before it
  bool rstrip = false;       ///< with the white space after it
  bool normalized = false;   ///< looked for in normalized text
};

/// Tokens of a text from left to right, of those that begin at one place the longest.
class AddedTokens {
public:
  /// `text_of`: what is looked for, of each token (its content, perhaps normalized).
  AddedTokens() = default;
  AddedTokens(std::vector<AddedToken> tokens, std::vector<std::string> const& text_of);

  /// Calls text(part) and token(id) for what the text consists of. `special`: false: special tokens are text.
  void split(std::string_view text, bool special, std::function<void(std::string_view)> const& plain,
             std::function<void(std::int32_t)> const& token) const;
  bool any(bool special) const { return special ? !tokens_.empty() : others_ > 0; }

private:
  struct Place {
    std::string text;
    std::size_t token = 0;
  };
  std::vector<AddedToken> tokens_;
  std::vector<std::vector<Place>> by_first_ = std::vector<std::vector<Place>>(256);  ///< longest first
  std::size_t others_ = 0;                                                           ///< that are not special
};

}  // namespace p3d::data
