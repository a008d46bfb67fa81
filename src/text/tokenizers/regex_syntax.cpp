// SPDX-License-Identifier: Apache-2.0
// Rewrites patterns for PCRE2. Where PCRE2 reads a pattern differently from Oniguruma or Rust's regex, the pattern is
// written so that it has the same meaning, or it is refused.
#include "text/tokenizers/refuse.hpp"
#include "text/tokenizers/regex.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace p3d::text {

namespace {

// The property White_Space of Unicode. PCRE2's \s also has U+180E, which left that property in Unicode 6.3.
constexpr std::string_view white_space = R"(\t-\r\x{85}\p{Z})";
// Letters, marks, digits, connectors, and letters in circles, which Unicode counts as alphabetic: the members of \w.
constexpr std::string_view word =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
constexpr std::string_view hexadecimal = "0-9a-fA-F";

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

  /// Writes a set's members, in brackets unless the pattern is inside of a set.
  void set(std::string_view members, bool negated) {
    if (negated && in_class_) refuse("the opposite of a set inside of a set");
    out_ += in_class_ ? std::string(members) : fmt::format("[{}{}]", negated ? "^" : "", members);
    at_ += 2;
  }

  /// Translates an escape.
  void escape() {
    if (at_ + 1 >= in_.size()) return keep(1);
    char const c = in_[at_ + 1];
    bool const ruby = syntax_ == RegexSyntax::oniguruma;
    switch (c) {
      case 's': return set(white_space, false);
      case 'S': return set(white_space, true);
      case 'w': return set(word, false);
      case 'W': return set(word, true);
      case 'h':
        if (ruby) return set(hexadecimal, false);
        break;
      case 'H':
        if (ruby) return set(hexadecimal, true);
        break;
      case 'u':
        if (ruby && at_ + 6 <= in_.size()) {
          out_ += fmt::format("\\x{{{}}}", in_.substr(at_ + 2, 4));
          at_ += 6;
          return;
        }
        break;
      case 'K':
      case 'G':
      case 'g':
      case 'k':
      case 'X':
      case 'R':
      case 'C': refuse(fmt::format("\\{}", c));
      default: break;
    }
    auto const brace = ahead("\\p{") || ahead("\\P{") || ahead("\\x{") ? in_.find('}', at_) : std::string::npos;
    keep(brace == std::string::npos ? 2 : brace + 1 - at_);
  }

  /// Translates a character inside of a set.
  void inside(char c) {
    if (ahead("[:")) {
      auto const end = in_.find(":]", at_);
      if (end == std::string::npos) return keep(1);
      return keep(end + 2 - at_);
    }
    if (c == '[') refuse("a set inside of a set");
    if (ahead("&&")) refuse("the intersection of sets");
    if (c == ']' && at_ > class_start_) in_class_ = false;
    keep(1);
  }

  /// Translates a character outside of sets.
  void outside(char c) {
    if (c == '[') {
      in_class_ = true;
      class_start_ = at_ + (ahead("[^") ? 2 : 1);
      return keep(class_start_ - at_);
    }
    if (ahead("(?") && syntax_ == RegexSyntax::oniguruma) {
      for (auto i = at_ + 2; i < in_.size() && in_[i] >= 'a' && in_[i] <= 'z'; ++i) {
        if (in_[i] == 'm') refuse("(?m), which means something else to PCRE2");
      }
    }
    // In Ruby a + after an interval repeats it; elsewhere it forbids to go back.
    if (ahead("}+") && syntax_ == RegexSyntax::oniguruma) refuse("{n,m}+");
    keep(1);
  }

  std::string const& in_;
  RegexSyntax syntax_;
  std::string const& where_;
  std::string out_;
  std::size_t at_ = 0, class_start_ = 0;
  bool in_class_ = false;
};

}  // namespace

std::string to_pcre2(std::string const& pattern, RegexSyntax syntax, std::string const& where) {
  return syntax == RegexSyntax::literal ? pattern : Translator(pattern, syntax, where).text();
}

}  // namespace p3d::text
