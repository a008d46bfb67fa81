// SPDX-License-Identifier: Apache-2.0
#pragma once
// From tokens back to text: the decoders of tokenizer.json.

#include "data/tokenizers/regex.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace p3d::data {

class Decoder {
public:
  Decoder() = default;
  /// `byte_level`: the vocabulary holds bytes already. `file` and `place` are for messages.
  Decoder(nlohmann::json const& json, bool byte_level, std::string const& file, std::string const& place);

  /// The text of one token, `first`: of the first of a text. Bytes stay bytes, also those that are no UTF-8.
  void token(std::string_view token, bool first, std::string& out) const;
  /// What is done with the whole text, once.
  void finish(std::string& text) const;

private:
  enum class Kind { replace, byte_fallback, strip, metaspace };
  struct Step {
    Kind kind;
    std::string content;  ///< replace: the new text; strip: what is taken off; metaspace: what stands for a space
    std::vector<Regex> pattern;
    std::size_t start = 0, stop = 0;
    bool drop_first = false;  ///< metaspace
  };
  void add(nlohmann::json const& json, bool byte_level, std::string const& file, std::string const& place, int depth);
  static void apply(Step const& step, bool first, std::string& text);
  std::vector<Step> each_, whole_;
  bool fused_ = false;
};

}  // namespace p3d::data
