// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizers. A text passes through a list of steps: a step cuts each piece of the one before by a pattern, or
// changes its text (a space in front, another character for spaces). Pieces keep their place in the original text, as
// far as it is known. Example: the pattern of GPT-2 cuts "Hello world!" into "Hello", " world" and "!".
#include "text/tokenizers/pre_tokenizer.hpp"

#include "text/tokenizers/json_read.hpp"
#include "text/tokenizers/patterns.hpp"
#include "text/tokenizers/refuse.hpp"
#include "text/tokenizers/utf8.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace p3d::text {

PreTokenizer::PreTokenizer(Json const& json, std::string const& file, std::string const& place) {
  if (!json.is_null()) add(json, file, place, 0);
  cuts_at_lines_ = cuts_at_lines_ && steps_.size() == 1;
}

PreTokenizer::PreTokenizer(Regex words, std::string_view pattern)
    : byte_level_(true), cuts_at_lines_(text::cuts_at_lines(pattern)) {
  Step step;
  step.pattern.push_back(std::move(words));
  step.behavior = Behavior::removed;
  step.invert = true;
  steps_.push_back(std::move(step));
}

void PreTokenizer::add(Json const& json, std::string const& file, std::string const& place, int depth) {
  JsonObject const object(json, file, place);
  auto const type = object.type();
  if (byte_level_) lacks(file, place, fmt::format("the pre-tokenizer \"{}\" after \"ByteLevel\"", type));
  Step step;
  if (type == "Sequence") {
    if (depth > 8) bad_tokenizer("at most 8 sequences within each other", "more", object.where("pretokenizers"));
    auto const& list = object.array("pretokenizers");
    for (std::size_t i = 0; i < list.size(); ++i)
      add(list[i], file, fmt::format("{}.pretokenizers[{}]", place, i), depth + 1);
    return;
  }
  if (type == "ByteLevel") {
    byte_level_ = true;
    step.prefix_space = object.flag("add_prefix_space", true);
    step.splits = object.flag("use_regex", true);
    if (step.splits) {
      step.pattern.emplace_back(find_split_pattern("gpt2")->text, RegexSyntax::oniguruma, object.where("use_regex"));
      cuts_at_lines_ = !step.prefix_space;
    }
    if (step.prefix_space || step.splits) steps_.push_back(std::move(step));
    return;
  }
  if (type == "Split") {
    step.pattern.push_back(object.pattern("pattern"));
    step.invert = object.flag("invert", false);
    auto const behavior = object.text("behavior");
    if (behavior == "Isolated")
      step.behavior = Behavior::isolated;
    else if (behavior == "Removed")
      step.behavior = Behavior::removed;
    else if (behavior == "MergedWithPrevious")
      step.behavior = Behavior::merged_with_previous;
    else if (behavior == "MergedWithNext")
      step.behavior = Behavior::merged_with_next;
    else if (behavior == "Contiguous")
      step.behavior = Behavior::contiguous;
    else
      lacks(file, object.where("behavior"), fmt::format("the behavior \"{}\"", behavior));
    auto const regex = (*object.find("pattern")).find("Regex");
    bool const whole =
        (step.behavior == Behavior::isolated && !step.invert) || (step.behavior == Behavior::removed && step.invert);
    cuts_at_lines_ = whole && regex != object.find("pattern")->end() && regex->is_string() &&
                     text::cuts_at_lines(regex->get_ref<std::string const&>());
  } else if (type == "Digits") {
    bool const each = object.flag("individual_digits", false);
    step.pattern.emplace_back("\\p{N}", RegexSyntax::oniguruma, object.where("type"));
    step.behavior = each ? Behavior::isolated : Behavior::contiguous;
  } else if (type == "Metaspace") {
    step.metaspace = object.text("replacement");
    if (step.metaspace.empty() || utf8_at(step.metaspace, 0).bytes != step.metaspace.size())
      bad_tokenizer("one character", fmt::format("\"{}\"", step.metaspace), object.where("replacement"));
    auto const scheme =
        object.optional_text("prepend_scheme").value_or(object.flag("add_prefix_space", true) ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never")
      lacks(file, object.where("prepend_scheme"), fmt::format("the scheme \"{}\"", scheme));
    step.prepend = scheme != "never";
    step.prepend_first = scheme == "first";
    // The library asks for pieces that begin where the original text does: several, where a step before makes them.
    if (step.prepend_first && !steps_.empty()) {
      first_is_by_place_ = true;
      for (auto const& before : steps_)
        if (before.prefix_space || !before.metaspace.empty())
          lacks(file, object.where("prepend_scheme"),
                "the scheme \"first\" behind a step that puts something in front");
    }
    auto const* const prefix = object.find("add_prefix_space");
    if (prefix != nullptr && *prefix == false && object.find("prepend_scheme") != nullptr && step.prepend)
      bad_tokenizer("the scheme \"never\", as add_prefix_space is false", fmt::format("\"{}\"", scheme),
                    object.where("prepend_scheme"));
    step.splits = object.flag("split", true);
    step.behavior = Behavior::merged_with_next;
    if (step.splits) step.pattern.emplace_back(step.metaspace, RegexSyntax::literal, object.where("replacement"));
  } else {
    lacks(file, place, fmt::format("the pre-tokenizer \"{}\"", type));
  }
  steps_.push_back(std::move(step));
}

/// Calls take(begin, end) for each part of the text that a step keeps, as its behavior says.
template <class Take>
void PreTokenizer::cut(Step const& step, std::string_view text, Take&& take) {
  std::size_t held = 0, held_end = 0;  // a part that may still be joined with the next one
  bool last = false;
  auto const flush = [&] {
    if (held_end > held) take(held, held_end);
  };
  auto const part = [&](std::size_t begin, std::size_t end, bool match) {
    if (begin == end && step.behavior != Behavior::contiguous) return;
    match = match != step.invert;
    bool const some = held_end > held;
    bool join = false;
    switch (step.behavior) {
      case Behavior::isolated: take(begin, end); return;
      case Behavior::removed:
        if (!match) take(begin, end);
        return;
      case Behavior::contiguous: join = some && last == match; break;
      case Behavior::merged_with_previous: join = some && match && !last; break;
      case Behavior::merged_with_next: join = some && !match && last; break;
    }
    if (!join) {
      flush();
      held = begin;
    }
    held_end = end;
    last = match;
  };
  std::size_t done = 0, from = 0, last_end = std::string_view::npos;
  auto const& pattern = step.pattern.front();
  for (Regex::Match m; from < text.size() && pattern.find(text, from, m);) {
    if (m.begin > done) part(done, m.begin, false);
    // An empty match keeps parts of one kind apart, but not where the match before it ends.
    if (m.end > m.begin || m.begin != last_end) part(m.begin, m.end, true);
    done = last_end = m.end;
    from = m.end > m.begin ? m.end : m.end < text.size() ? m.end + utf8_at(text, m.end).bytes : text.size();
  }
  if (text.size() > done) part(done, text.size(), false);
  flush();
}

void PreTokenizer::run(std::size_t step, Piece const& piece, Sink const& sink) const {
  if (piece.text.empty()) return;
  if (step == steps_.size()) return sink(piece);
  auto const& s = steps_[step];
  if (s.prefix_space || !s.metaspace.empty()) return change(step, piece, sink);
  cut(s, piece.text, [&](std::size_t begin, std::size_t end) {
    Piece const part{piece.text.substr(begin, end - begin), piece.offset + static_cast<std::ptrdiff_t>(begin),
                     piece.first && begin == 0};
    step + 1 == steps_.size() ? sink(part) : run(step + 1, part, sink);
  });
}

/// Applies a step that puts something before the text, or other characters in place of spaces, and passes the pieces
/// on.
void PreTokenizer::change(std::size_t step, Piece const& piece, Sink const& sink) const {
  auto const& s = steps_[step];
  std::string text;
  std::ptrdiff_t before = 0;
  if (s.prefix_space) {
    if (!piece.text.starts_with(' ')) text = " ";
    before = static_cast<std::ptrdiff_t>(text.size());
    text += piece.text;
  } else {
    for (char const c : piece.text) c == ' ' ? text += s.metaspace : text += c;
    if (s.prepend && !text.starts_with(s.metaspace) && (!s.prepend_first || piece.first)) {
      text.insert(0, s.metaspace);
      before = static_cast<std::ptrdiff_t>(s.metaspace.size());
    }
  }
  auto const hand_on = [&](std::size_t begin, std::size_t end) {
    run(step + 1,
        {std::string_view(text).substr(begin, end - begin), piece.offset - before + static_cast<std::ptrdiff_t>(begin),
         piece.first && begin == 0},
        sink);
  };
  if (s.splits)
    cut(s, text, hand_on);
  else
    hand_on(0, text.size());
}

void PreTokenizer::split(std::string_view text, bool first, Sink const& sink) const { run(0, {text, 0, first}, sink); }

}  // namespace p3d::text
