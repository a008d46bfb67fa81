// SPDX-License-Identifier: Apache-2.0
#pragma once
// How text is cut into words, which no token crosses: the pre-tokenizers of tokenizer.json.

#include "data/tokenizers/regex.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::data {

/// A part of a text.
struct Piece {
  std::string_view text;
  std::ptrdiff_t offset = 0;  ///< of text[0] in the text that was cut; what a step puts before a text lies before it
  bool first = false;         ///< the text begins with it, no matter what was put before
};

class PreTokenizer {
public:
  using Sink = std::function<void(Piece const&)>;

  PreTokenizer() = default;
  /// `file` and `place` are for messages.
  PreTokenizer(nlohmann::json const& json, std::string const& file, std::string const& place);
  /// One regular expression, each match of which is a word, and then bytes.
  explicit PreTokenizer(Regex words, std::string_view pattern);

  /// Calls `sink` with each word of valid UTF-8 text, in order. `first`: the text begins the input.
  void split(std::string_view text, bool first, Sink const& sink) const;
  /// The words are sequences of bytes, not of characters.
  bool byte_level() const { return byte_level_; }
  /// See Tokenizer::cuts_at_lines.
  bool cuts_at_lines() const { return cuts_at_lines_; }

private:
  enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  struct Step {
    bool splits = true;  ///< by pattern
    std::vector<Regex> pattern;
    Behavior behavior = Behavior::isolated;
    bool invert = false;
    bool prefix_space = false;   ///< ByteLevel: before what does not begin with a space
    std::string metaspace;       ///< Metaspace: what stands for a space; "": not this step
    bool prepend = false;        ///< Metaspace: before what does not begin with it
    bool prepend_first = false;  ///< Metaspace: only where the input begins
  };
  void add(nlohmann::json const& json, std::string const& file, std::string const& place, int depth);
  void run(std::size_t step, Piece const& piece, Sink const& sink) const;
  void change(std::size_t step, Piece const& piece, Sink const& sink) const;
  template <class Take>
  static void cut(Step const& step, std::string_view text, Take&& take);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool cuts_at_lines_ = false;
};

}  // namespace p3d::data
