// SPDX-License-Identifier: Apache-2.0
#pragma once
// Changes text before it is split: the normalizers of tokenizer.json.

#include "text/tokenizers/regex.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace p3d::text {

/// A list of steps that are applied in order.
class Normalizer {
public:
  Normalizer() = default;
  /// Reads the description. `file` and `place` are for messages.
  Normalizer(nlohmann::json const& json, std::string const& file, std::string const& place);

  bool empty() const { return steps_.empty(); }
  /// True when a piece of a text that begins and ends at U+FFFD can be normalized alone: its result does not depend on
  /// the text around it.
  bool local() const;
  /// Normalizes a text: valid UTF-8 gives valid UTF-8.
  std::string operator()(std::string_view text) const;
  /// The steps in words, "NFC", "NFKC and lower case"; "" when there are none.
  std::string describe() const;

private:
  enum class Kind { nfc, nfd, nfkc, nfkd, lowercase, prepend, replace };
  struct Step {
    Kind kind;
    std::string content;         ///< prepend and replace: the new text
    std::vector<Regex> pattern;  ///< replace: one pattern
  };
  void add(nlohmann::json const& json, std::string const& file, std::string const& place, int depth);
  static std::string apply(Step const& step, std::string_view text);
  std::vector<Step> steps_;
};

/// The text with each match of the pattern replaced by `content`.
std::string replace_all(Regex const& pattern, std::string_view text, std::string_view content);

}  // namespace p3d::text
