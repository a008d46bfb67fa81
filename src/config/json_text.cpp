// SPDX-License-Identifier: Apache-2.0
#include <p3d/config/json_text.hpp>

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <set>
#include <vector>

namespace p3d::config {

namespace {

using nlohmann::json;

// Deeper texts are refused: the parser goes down one call per level.
constexpr int deepest = 32;

/// The error of a text that is no JSON as p3d reads it.
base::Error refused(std::string expected, std::string found, std::string const& where) {
  return base::Error({.expected = std::move(expected),
                      .found = std::move(found),
                      .where = where,
                      .fix = "copy the file again from where it comes from, or correct it"},
                     base::ExitCode::bad_input);
}

/// A text of at most 80 bytes, cut between two characters.
std::string cut(std::string text) {
  constexpr std::size_t most = 80;
  if (text.size() <= most) return text;
  auto end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
  return text.substr(0, end) + "...";
}

}  // namespace

json parse_json(std::string_view text, std::string const& where) {
  std::vector<std::set<std::string>> keys;  // keys of the objects that are open
  auto const watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > deepest)
      throw refused(fmt::format("JSON nested at most {} deep", deepest), "deeper lists or objects", where);
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw refused("every key once", fmt::format("the key {} twice in one object", describe(parsed).substr(11)),
                    where);
    return true;
  };
  // The parser takes a NUL for the end of its input.
  if (auto const at = text.find('\0'); at != std::string_view::npos)
    throw refused("JSON", fmt::format("a NUL at byte {}", at + 1), where);
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (json::parse_error const& e) {
    throw refused("JSON", fmt::format("another text at byte {}", e.byte), where);
  } catch (json::out_of_range const&) {
    throw refused("JSON with numbers that 64 bits hold", "a larger number", where);
  }
}

std::string describe(json const& value) {
  auto const text = [&] { return cut(value.dump(-1, ' ', false, json::error_handler_t::replace)); };
  if (value.is_string()) return "the string " + text();
  if (value.is_number()) return "the number " + text();
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return value.dump();
}

}  // namespace p3d::config
