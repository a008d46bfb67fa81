// SPDX-License-Identifier: Apache-2.0
#pragma once
// Cuts text into words, which no token crosses: the pre-tokenizers of tokenizer.json.

#include "text/tokenizers/regex.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::text {

/// A piece of a text.
struct Piece {
  std::string_view text;
  /// Place of text[0] in the text that was cut; characters that a step puts before a text have negative places.
  std::ptrdiff_t offset = 0;
  bool first = false;  ///< the text begins with this piece, whatever a step has put before it
};

/// A list of steps; each cuts the pieces of the one before, or changes their text.
class PreTokenizer {
public:
  using Sink = std::function<void(Piece const&)>;

  PreTokenizer() = default;
  /// Reads the description. `file` and `place` are for messages.
  PreTokenizer(nlohmann::json const& json, std::string const& file, std::string const& place);
  /// One regular expression, each match of which is a word; the words are bytes.
  explicit PreTokenizer(Regex words, std::string_view pattern);

  /// Calls `sink` with each word of valid UTF-8 text, in order. `first`: the text is the beginning of the input.
  void split(std::string_view text, bool first, Sink const& sink) const;
  /// True when the words are sequences of bytes, not of characters.
  bool byte_level() const { return byte_level_; }
  /// True when the scheme "first" of a Metaspace asks for pieces that begin where the original text does, which are
  /// known only where no normalizer has changed it.
  bool first_is_by_place() const { return first_is_by_place_; }
  /// The property of Tokenizer::cuts_at_lines.
  bool cuts_at_lines() const { return cuts_at_lines_; }

private:
  enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  struct Step {
    bool splits = true;  ///< text is cut by `pattern`
    std::vector<Regex> pattern;
    Behavior behavior = Behavior::isolated;
    bool invert = false;
    bool prefix_space = false;   ///< ByteLevel: put a space before a text that does not begin with one
    std::string metaspace;       ///< Metaspace: the character that stands for a space; "": this is another step
    bool prepend = false;        ///< Metaspace: put it before a text that does not begin with it
    bool prepend_first = false;  ///< Metaspace: put it only where the input begins
  };
  void add(nlohmann::json const& json, std::string const& file, std::string const& place, int depth);
  /// Applies the steps from `step` on to a piece.
  void run(std::size_t step, Piece const& piece, Sink const& sink) const;
  void change(std::size_t step, Piece const& piece, Sink const& sink) const;
  template <class Take>
  static void cut(Step const& step, std::string_view text, Take&& take);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool cuts_at_lines_ = false;
  bool first_is_by_place_ = false;
};

}  // namespace p3d::text
