// SPDX-License-Identifier: Apache-2.0
#pragma once
// What happens to text before it is split: the normalizers of tokenizer.json.

#include "data/tokenizers/regex.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace p3d::data {

class Normalizer {
public:
  Normalizer() = default;
  /// `file` and `place` are for messages.
  Normalizer(nlohmann::json const& json, std::string const& file, std::string const& place);

  bool empty() const { return steps_.empty(); }
  /// True: what a part of a text becomes does not depend on the rest where a part begins and ends at U+FFFD.
  bool local() const;
  /// Valid UTF-8 to valid UTF-8.
  std::string operator()(std::string_view text) const;
  /// "NFC", "NFKC and lower case"; "" when empty.
  std::string describe() const;

private:
  enum class Kind { nfc, nfd, nfkc, nfkd, lowercase, prepend, replace };
  struct Step {
    Kind kind;
    std::string content;         ///< prepend, replace
    std::vector<Regex> pattern;  ///< replace: one
  };
  void add(nlohmann::json const& json, std::string const& file, std::string const& place, int depth);
  static std::string apply(Step const& step, std::string_view text);
  std::vector<Step> steps_;
};

/// The text with each match of the pattern replaced.
std::string replace_all(Regex const& pattern, std::string_view text, std::string_view content);

}  // namespace p3d::data
