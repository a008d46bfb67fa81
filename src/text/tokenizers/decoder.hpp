// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turns tokens back into text: the decoders of tokenizer.json.

#include "text/tokenizers/regex.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace p3d::text {

/// A list of steps: some change each token's text, and those behind "Fuse" change the whole text.
class Decoder {
public:
  Decoder() = default;
  /// Reads the description. `byte_level`: the vocabulary holds bytes already. `file` and `place` are for messages.
  Decoder(nlohmann::json const& json, bool byte_level, std::string const& file, std::string const& place);

  /// Appends the text of one token; `first`: it is the first token of a text. Bytes that are not UTF-8 are kept.
  void token(std::string_view token, bool first, std::string& out) const;
  /// Applies the steps that change the whole text, once at its end.
  void finish(std::string& text) const;

private:
  enum class Kind { replace, byte_fallback, strip, metaspace };
  struct Step {
    Kind kind;
    /// replace: the new text; strip: the character to remove; metaspace: the character that stands for a space.
    std::string content;
    std::vector<Regex> pattern;
    std::size_t start = 0, stop = 0;  ///< strip: most characters to remove at both ends
    bool drop_first = false;          ///< metaspace: the first token's leading one gives no space
  };
  void add(nlohmann::json const& json, bool byte_level, std::string const& file, std::string const& place, int depth);
  static void apply(Step const& step, bool first, std::string& text);
  std::vector<Step> each_, whole_;
  bool fused_ = false;  ///< a step "Fuse" was read
};

}  // namespace p3d::text
