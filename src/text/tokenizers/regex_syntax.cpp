// SPDX-License-Identifier: Apache-2.0
// Rewrites patterns for PCRE2. Where PCRE2 reads a pattern differently from Oniguruma or Rust's regex, the pattern is
// written so that it has the same meaning, or it is refused.
#include "text/tokenizers/refuse.hpp"
#include "text/tokenizers/regex.hpp"
#include "text/tokenizers/utf8.hpp"

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

namespace p3d::text {

namespace {

// The property White_Space of Unicode. PCRE2's \s also has U+180E, which left that property in Unicode 6.3.
constexpr std::string_view white_space = R"(\t-\r\x{85}\p{Z})";
// Letters, marks, digits, connectors, and letters in circles, which Unicode counts as alphabetic: the members of \w in
// a set.
constexpr std::string_view word =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
// Members of \w and \b besides: outside of a set Oniguruma's superscripts and fractions of Latin-1, Rust's joiners.
constexpr std::string_view more_word_oniguruma = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
constexpr std::string_view more_word_rust = R"(\x{200C}\x{200D})";
constexpr std::string_view hexadecimal = "0-9a-fA-F";

/// Pairs of letters that are one character to Oniguruma where case is ignored ("ss" is U+00DF).
constexpr std::array<std::string_view, 5> one_when_folded{"ss", "st", "ff", "fi", "fl"};

/// True for characters that are several letters where case is ignored.
bool folds_to_several(std::string_view text) {
  auto const c = utf8_at(text, 0).code;
  return c == 0xDF || c == 0x130 || c == 0x149 || c == 0x1F0 || c == 0x390 || c == 0x3B0 || c == 0x587 ||
         (c >= 0x1E96 && c <= 0x1E9E) || (c >= 0x1F50 && c <= 0x1FFF) || (c >= 0xFB00 && c <= 0xFB17);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

/// Reads a pattern from left to right and writes it in PCRE2's syntax.
class Translator {
public:
  Translator(std::string const& pattern, RegexSyntax syntax, std::string const& where)
      : in_(pattern), syntax_(syntax), where_(where) {}

  std::string text() {
    while (at_ < in_.size()) {
      char const c = in_[at_];
      if (c == '\\')
        escape();
      else if (in_class_)
        inside(c);
      else
        outside(c);
    }
    return out_;
  }

private:
  [[noreturn]] void refuse(std::string const& what) const {
    lacks(where_.substr(0, where_.find(": ")), where_.substr(std::min(where_.size(), where_.find(": ") + 2)),
          fmt::format("a regular expression with {} (byte {} of {})", what, at_, in_));
  }

  bool ahead(std::string_view words) const { return std::string_view(in_).substr(at_).starts_with(words); }
  void keep(std::size_t n) {
    out_.append(in_, at_, n);
    at_ += n;
  }

  bool ruby() const { return syntax_ == RegexSyntax::oniguruma; }
  char next(std::size_t n = 1) const { return at_ + n < in_.size() ? in_[at_ + n] : '\0'; }

  /// Writes a set's members in place of an escape of two characters, in brackets unless the pattern is inside of a set.
  void set(std::string_view members, bool negated) {
    if (negated && in_class_) refuse("the opposite of a set inside of a set");
    out_ += in_class_ ? std::string(members) : fmt::format("[{}{}]", negated ? "^" : "", members);
    at_ += 2;
  }

  /// The members of \w here.
  std::string words() const {
    if (!ruby()) return fmt::format("{}{}", word, more_word_rust);
    return in_class_ ? std::string(word) : fmt::format("{}{}", word, more_word_oniguruma);
  }

  /// Writes a border between words, or its opposite: PCRE2's own knows fewer characters of words.
  void border(bool negated) {
    auto const w = words();
    out_ += negated ? fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", w)
                    : fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", w);
    at_ += 2;
  }

  /// Writes a property, \p{...}. A script is that of Unicode's property Script: the plain name of one means
  /// Script_Extensions to PCRE2 10.40 and newer (\p{Han} then has punctuation that Han shares with others). What is
  /// neither a general category of one or two letters nor a script is unknown to PCRE2 in this form, and refused: its
  /// other properties are those of another version of Unicode.
  void property(std::size_t end) {
    auto const from = at_ + 3 + (next(3) == '^' ? 1 : 0);
    auto const name = std::string_view(in_).substr(from, end - from);
    bool const category = name.size() <= 2 || name == "Any";
    out_.append(in_, at_, from - at_);
    if (PCRE2_MAJOR * 100 + PCRE2_MINOR >= 1040 && !category && name.find_first_of("=:") == std::string_view::npos)
      out_ += "sc:";
    out_ += name;
    out_ += '}';
    at_ = end + 1;
  }

  /// Translates an escape.
  void escape() {
    if (at_ + 1 >= in_.size()) return keep(1);
    char const c = in_[at_ + 1];
    switch (c) {
      case 's': return set(white_space, false);
      case 'S': return set(white_space, true);
      case 'w': return set(words(), false);
      case 'W': return set(words(), true);
      case 'h': return set(hexadecimal, false);
      case 'H': return set(hexadecimal, true);
      case 'b':
      case 'B':
        if (!in_class_) return border(c == 'B');
        if (c == 'B' || !ruby()) refuse(fmt::format("\\{} inside of a set", c));
        break;
      case 'v':
        out_ += "\\x0B";
        at_ += 2;
        return;
      case 'u':
        if (ruby() && at_ + 6 <= in_.size()) {
          out_ += fmt::format("\\x{{{}}}", in_.substr(at_ + 2, 4));
          at_ += 6;
          return;
        }
        break;
      case 'p':
      case 'P':
        if (next(2) == '{') {
          if (auto const end = in_.find('}', at_); end != std::string::npos) return property(end);
        } else if (ruby()) {
          refuse(fmt::format("\\{} without braces", c));
        }
        break;
      case 'x':
        if (next(2) == '{') {
          if (auto const end = in_.find('}', at_); end != std::string::npos) return keep(end + 1 - at_);
        } else if (ruby() && next(2) >= '8' && std::isxdigit(static_cast<unsigned char>(next(3))) != 0) {
          refuse("a byte that is no character; write \\x{...}");
        }
        break;
      case 'K':
      case 'G':
      case 'g':
      case 'k':
      case 'X':
      case 'R':
      case 'C':
      case 'N':
      case 'V':
      case 'Q':
      case 'E': refuse(fmt::format("\\{}", c));
      default: break;
    }
    keep(2);
  }

  /// Translates a class of POSIX inside of a set. Most have other members in each library.
  void posix(std::size_t end) {
    auto const name = std::string_view(in_).substr(at_ + 2, end - at_ - 2);
    auto const plain = name.starts_with('^') ? name.substr(1) : name;
    bool const alike = plain == "digit" || plain == "xdigit" || plain == "cntrl" || plain == "ascii";
    if (!ruby() || (!alike && name != "space")) refuse(fmt::format("[:{}:]", name));
    if (alike) return keep(end + 2 - at_);
    out_ += white_space;
    at_ = end + 2;
  }

  /// Translates a character inside of a set.
  void inside(char c) {
    if (ahead("[:")) {
      auto const end = in_.find(":]", at_);
      return end == std::string::npos ? keep(1) : posix(end);
    }
    if (c == '[') refuse("a set inside of a set");
    if (ahead("&&")) refuse("the intersection of sets");
    if (c == ']' && at_ > class_start_) in_class_ = false;
    keep(1);
  }

  /// Translates a number of repetitions, {n}, {n,} or {n,m}; any other brace means itself.
  void repeat() {
    auto end = at_ + 1;
    while (end < in_.size() && is_digit(in_[end])) ++end;
    bool const least = end > at_ + 1, comma = end < in_.size() && in_[end] == ',';
    auto most = end + (comma ? 1 : 0);
    while (comma && most < in_.size() && is_digit(in_[most])) ++most;
    bool const some = least || (comma && most > end + 1);
    if (!some || most >= in_.size() || in_[most] != '}') return keep(1);
    if (!least && !ruby()) refuse("{,n}");
    char const behind = most + 1 < in_.size() ? in_[most + 1] : '\0';
    // In Ruby a + after an interval repeats it; elsewhere it forbids to go back. A ? makes an interval of one number
    // optional there.
    if (ruby() && behind == '+') refuse("{n,m}+");
    if (ruby() && behind == '?' && !comma) refuse("{n}?");
    if (!least) {
      out_ += "{0";
      ++at_;
    }
    keep(most + 1 - at_);
  }

  /// Stops at letters that are one character with another one where case is ignored.
  void check_case() const {
    auto const rest = std::string_view(in_).substr(at_);
    if (folds_to_several(rest)) refuse("(?i) and a character that is several letters in another case");
    for (auto const pair : one_when_folded)
      if (lower(rest[0]) == pair[0] && rest.size() > 1 && lower(rest[1]) == pair[1])
        refuse(fmt::format("(?i) and \"{}\", which is one character in another case", pair));
  }

  /// Translates a character outside of sets.
  void outside(char c) {
    if (c == '[') {
      in_class_ = true;
      class_start_ = at_ + (ahead("[^") ? 2 : 1);
      return keep(class_start_ - at_);
    }
    if (c == '{') return repeat();
    if (ahead("(?") && ruby()) {
      for (auto i = at_ + 2; i < in_.size() && in_[i] >= 'a' && in_[i] <= 'z'; ++i) {
        if (in_[i] == 'm') refuse("(?m), which means something else to PCRE2");
        if (in_[i] == 'i') ignores_case_ = true;
      }
    }
    if (ignores_case_) check_case();
    keep(1);
  }

  std::string const& in_;
  RegexSyntax syntax_;
  std::string const& where_;
  std::string out_;
  std::size_t at_ = 0, class_start_ = 0;
  bool in_class_ = false;
  bool ignores_case_ = false;  ///< from the first (?i) on: groups are not followed
};

}  // namespace

std::string to_pcre2(std::string const& pattern, RegexSyntax syntax, std::string const& where) {
  return syntax == RegexSyntax::literal ? pattern : Translator(pattern, syntax, where).text();
}

}  // namespace p3d::text
