// SPDX-License-Identifier: Apache-2.0
// Finds added tokens, such as "<|endoftext|>", in a text before it is split into words. They are listed by their first
// byte, the longest first, so that at most places of a text one look at a table is enough.
#include "text/tokenizers/added_tokens.hpp"

#include "text/tokenizers/utf8.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

namespace p3d::text {

namespace {

/// True for the property White_Space of Unicode.
bool is_space(char32_t c) {
  if ((c >= 9 && c <= 13) || c == 0x85) return true;
  auto const k = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

/// True for characters of \w in regular expressions.
bool is_word(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default:
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  }
}

/// True when no word continues before or behind the range.
bool alone(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin == 0 || !is_word(utf8_before(text, begin).code)) &&
         (end == text.size() || !is_word(utf8_at(text, end).code));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, std::vector<std::string> const& text_of)
    : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (text_of[i].empty()) continue;
    by_first_[static_cast<unsigned char>(text_of[i][0])].push_back({text_of[i], i});
    if (!tokens_[i].special) ++others_;
  }
  for (auto& list : by_first_) {
    std::stable_sort(list.begin(), list.end(),
                     [](auto const& a, auto const& b) { return a.text.size() > b.text.size(); });
  }
}

void AddedTokens::split(std::string_view text, bool special, std::function<void(std::string_view)> const& plain,
                        std::function<void(std::int32_t)> const& token) const {
  std::size_t done = 0;
  for (std::size_t at = 0; any(special) && at < text.size();) {
    auto const& list = by_first_[static_cast<unsigned char>(text[at])];
    auto const found = list.empty() ? list.end() : std::find_if(list.begin(), list.end(), [&](auto const& place) {
      return text.substr(at).starts_with(place.text);
    });
    if (found == list.end()) {
      ++at;
      continue;
    }
    auto const& t = tokens_[found->token];
    auto begin = at, end = at + found->text.size();
    at = end;  // no other token begins inside; one may in white space that rstrip takes, as in the Rust library
    if ((t.special && !special) || (t.single_word && !alone(text, begin, end))) continue;
    if (t.lstrip) {
      while (begin > 0) {
        auto const c = utf8_before(text, begin);
        if (!is_space(c.code)) break;
        begin -= c.bytes;
      }
      begin = std::max(begin, done);
    }
    if (t.rstrip) {
      while (end < text.size()) {
        auto const c = utf8_at(text, end);
        if (!is_space(c.code)) break;
        end += c.bytes;
      }
    }
    if (done < begin) plain(text.substr(done, begin - done));
    if (begin < end) token(t.id);
    done = end;
  }
  if (done < text.size()) plain(text.substr(done));
}

}  // namespace p3d::text
