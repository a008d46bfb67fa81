// SPDX-License-Identifier: Apache-2.0
// The normalizers. Unicode's normal forms come from utf8proc; most text needs none of that, so runs of ASCII and of
// scripts whose characters are composed already are copied. Example: "e" and a combining accent (U+0301) become one
// character in NFC, and the ASCII text around it is not touched.
#include "text/tokenizers/normalizer.hpp"

#include "text/tokenizers/json_read.hpp"
#include "text/tokenizers/refuse.hpp"
#include "text/tokenizers/utf8.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <stdexcept>

namespace p3d::text {

namespace {

bool between(char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; }

/// True for scripts whose every character is in the normal forms C and KC already, and is no mark: most text needs no
/// work.
bool always_composed(char32_t c) {
  return c < 0xA0 || between(c, 0xC0, 0x131) || between(c, 0x134, 0x13E) || between(c, 0x400, 0x482) ||
         between(c, 0x48A, 0x52F) || between(c, 0x3041, 0x3096) || between(c, 0x30A1, 0x30FA) ||
         between(c, 0x4E00, 0x9FFF) || between(c, 0xAC00, 0xD7A3);
}

bool all_composed(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    auto const c = utf8_at(text, at);
    if (!always_composed(c.code)) return false;
    at += c.bytes;
  }
  return true;
}

/// Appends a text in the form of utf8proc's options.
void map(std::string_view text, utf8proc_option_t options, std::string& out) {
  utf8proc_uint8_t* result = nullptr;
  auto const bytes = utf8proc_map(reinterpret_cast<utf8proc_uint8_t const*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &result, options);
  std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> const keep(result, &std::free);
  if (bytes < 0) throw std::runtime_error(utf8proc_errmsg(bytes));  // out of memory
  out.append(reinterpret_cast<char const*>(result), static_cast<std::size_t>(bytes));
}

/// A range of code points, both ends included.
struct CodeRange {
  char32_t first, last;
};

// Hugging Face's tokenizers have the normal forms of Unicode 9. These characters decompose since a later version, or
// are marks since then, which the library takes for characters like others. Found by comparing all characters, alone
// and among marks, with tokenizers 0.23.3.
constexpr std::array<CodeRange, 41> newer_than_unicode_9{
    {{0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
     {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
     {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50},
     {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
     {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
     {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
     {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1F16C, 0x1F16C},
     {0x1FBF0, 0x1FBF9}}};

bool is_newer(char32_t c) {
  auto const found = std::lower_bound(newer_than_unicode_9.begin(), newer_than_unicode_9.end(), c,
                                      [](CodeRange const& range, char32_t code) { return range.last < code; });
  return found != newer_than_unicode_9.end() && c >= found->first;
}

/// Appends a text in the form of utf8proc's options, but for newer characters, which stay and join with nothing.
void map_known(std::string_view text, utf8proc_option_t options, std::string& out) {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    auto const c = utf8_at(text, at);
    if (is_newer(c.code)) {
      if (at > done) map(text.substr(done, at - done), options, out);
      out.append(text.substr(at, c.bytes));
      done = at + c.bytes;
    }
    at += c.bytes;
  }
  if (text.size() > done) map(text.substr(done), options, out);
}

/// Normalizes runs of characters that are not ASCII, each with the ASCII character before it. An ASCII character never
/// joins with what is before it, so such a run is independent of the text around it.
std::string normal_form(std::string_view text, utf8proc_option_t options, bool composed) {
  std::string out;
  out.reserve(text.size());
  auto const is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  for (std::size_t at = 0; at < text.size();) {
    auto run = std::find_if_not(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), is_ascii) - text.begin();
    auto begin = static_cast<std::size_t>(run);
    if (begin < text.size() && begin > at) --begin;
    out.append(text.substr(at, begin - at));
    auto const end = static_cast<std::size_t>(std::find_if(text.begin() + run, text.end(), is_ascii) - text.begin());
    auto const part = text.substr(begin, end - begin);
    if (composed && all_composed(part))
      out.append(part);
    else if (!part.empty())
      map_known(part, options, out);
    at = end;
  }
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    auto const c = utf8_at(text, at);
    if (c.code == 0x130)  // the one character whose lower case has two characters
      out += "i\xCC\x87";
    else
      append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code))), out);
    at += c.bytes;
  }
  return out;
}

}  // namespace

std::string replace_all(Regex const& pattern, std::string_view text, std::string_view content) {
  std::string out;
  std::size_t at = 0, from = 0, last_end = std::string_view::npos;
  for (Regex::Match m; !text.empty() && from <= text.size() && pattern.find(text, from, m);) {
    out.append(text.substr(at, m.begin - at));
    // An empty match counts, but not where the match before it ends.
    if (m.end > m.begin || m.begin != last_end) out.append(content);
    at = last_end = m.end;
    from = m.end > m.begin ? m.end : m.end < text.size() ? m.end + utf8_at(text, m.end).bytes : text.size() + 1;
  }
  return out.append(text.substr(at));
}

Normalizer::Normalizer(Json const& json, std::string const& file, std::string const& place) {
  if (!json.is_null()) add(json, file, place, 0);
}

void Normalizer::add(Json const& json, std::string const& file, std::string const& place, int depth) {
  JsonObject const object(json, file, place);
  auto const type = object.type();
  if (type == "Sequence") {
    if (depth > 8) bad_tokenizer("at most 8 sequences within each other", "more", object.where("normalizers"));
    auto const& list = object.array("normalizers");
    for (std::size_t i = 0; i < list.size(); ++i)
      add(list[i], file, fmt::format("{}.normalizers[{}]", place, i), depth + 1);
  } else if (type == "NFC") {
    steps_.push_back({Kind::nfc, "", {}});
  } else if (type == "NFD") {
    steps_.push_back({Kind::nfd, "", {}});
  } else if (type == "NFKC") {
    steps_.push_back({Kind::nfkc, "", {}});
  } else if (type == "NFKD") {
    steps_.push_back({Kind::nfkd, "", {}});
  } else if (type == "Lowercase") {
    steps_.push_back({Kind::lowercase, "", {}});
  } else if (type == "Prepend") {
    steps_.push_back({Kind::prepend, object.text("prepend"), {}});
  } else if (type == "Replace") {
    steps_.push_back({Kind::replace, object.text("content"), {object.pattern("pattern")}});
  } else {
    lacks(file, place, fmt::format("the normalizer \"{}\"", type));
  }
}

bool Normalizer::local() const {
  return std::none_of(steps_.begin(), steps_.end(),
                      [](auto const& s) { return s.kind == Kind::prepend || s.kind == Kind::replace; });
}

std::string Normalizer::apply(Step const& step, std::string_view text) {
  switch (step.kind) {
    case Kind::nfc: return normal_form(text, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE), true);
    case Kind::nfd:
      return normal_form(text, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), false);
    case Kind::nfkc:
      return normal_form(text, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT),
                         true);
    case Kind::nfkd:
      return normal_form(text, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT),
                         false);
    case Kind::lowercase: return lowercase(text);
    case Kind::prepend: return text.empty() ? std::string() : step.content + std::string(text);
    case Kind::replace: return replace_all(step.pattern.front(), text, step.content);
  }
  return std::string(text);
}

std::string Normalizer::operator()(std::string_view text) const {
  std::string out(text);
  for (auto const& step : steps_) out = apply(step, out);
  return out;
}

std::string Normalizer::describe() const {
  std::vector<std::string> names;
  for (auto const& step : steps_) {
    switch (step.kind) {
      case Kind::nfc: names.emplace_back("NFC"); break;
      case Kind::nfd: names.emplace_back("NFD"); break;
      case Kind::nfkc: names.emplace_back("NFKC"); break;
      case Kind::nfkd: names.emplace_back("NFKD"); break;
      case Kind::lowercase: names.emplace_back("lower case"); break;
      case Kind::prepend: names.emplace_back("prepend"); break;
      case Kind::replace: names.emplace_back("replace"); break;
    }
  }
  return base::join(names, " and ");
}

}  // namespace p3d::text
