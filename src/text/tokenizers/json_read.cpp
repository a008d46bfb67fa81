// SPDX-License-Identifier: Apache-2.0
// Members of a JSON object, each of the type that its reader names. An error quotes the value that was found and its
// place in the file ("tokenizer.json: pre_tokenizer.pattern"), as files that others wrote are edited by hand now and
// then.
#include "text/tokenizers/json_read.hpp"

#include "text/tokenizers/refuse.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace p3d::text {

Json parse_json(std::string const& text, std::string const& path) {
  // The parser takes a NUL for the end of its input.
  if (auto const at = text.find('\0'); at != std::string::npos)
    bad_tokenizer("a file in JSON", fmt::format("a NUL at byte {}", at + 1), path);
  try {
    return Json::parse(text);
  } catch (Json::exception const& e) {
    std::string const what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    auto const begin = what.find("] ");
    bad_tokenizer("a file in JSON", (begin == std::string::npos ? what : what.substr(begin + 2)).substr(0, 300), path);
  }
}

std::string kind_of(Json const& json) {
  if (json.is_string()) return fmt::format("the string \"{}\"", json.get_ref<std::string const&>().substr(0, 60));
  if (json.is_array()) return fmt::format("an array of {}", json.size());
  if (json.is_object()) return "an object";
  return json.dump();
}

JsonObject::JsonObject(Json const& object, std::string const& in_file, std::string at)
    : json(object), file(in_file), place(std::move(at)) {
  if (!json.is_object())
    bad_tokenizer("an object", kind_of(json), fmt::format("{}: {}", file, place.empty() ? "the file" : place));
}

std::string JsonObject::where(char const* key) const {
  return fmt::format("{}: {}{}{}", file, place, place.empty() ? "" : ".", key);
}

Json const* JsonObject::find(char const* key) const {
  // A member that is null counts as absent, as in the libraries that write these files.
  auto const it = json.find(key);
  return it == json.end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::string> JsonObject::optional_text(char const* key) const {
  auto const* const value = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) bad_tokenizer("a string", kind_of(*value), where(key));
  return value->get<std::string>();
}

std::string JsonObject::text(char const* key) const {
  auto const value = optional_text(key);
  if (!value) bad_tokenizer("a string", "nothing", where(key));
  return *value;
}

bool JsonObject::flag(char const* key, bool otherwise) const {
  auto const* const value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) bad_tokenizer("true or false", kind_of(*value), where(key));
  return value->get<bool>();
}

std::int64_t JsonObject::count(char const* key) const {
  auto const* const value = find(key);
  if (value == nullptr || !value->is_number_integer() || *value < 0 || *value > 0x7FFFFFFF)
    bad_tokenizer("a whole number from 0 to 2147483647", value ? kind_of(*value) : "nothing", where(key));
  return value->get<std::int64_t>();
}

Json const& JsonObject::array(char const* key) const {
  auto const* const value = find(key);
  if (value == nullptr || !value->is_array())
    bad_tokenizer("an array", value ? kind_of(*value) : "nothing", where(key));
  return *value;
}

Regex JsonObject::pattern(char const* key) const {
  auto const* const value = find(key);
  if (value == nullptr) bad_tokenizer("a pattern", "nothing", where(key));
  JsonObject const object(*value, file, fmt::format("{}{}{}", place, place.empty() ? "" : ".", key));
  // A pattern is {"Regex": "..."} in the syntax of Oniguruma, or {"String": "..."}, whose characters mean themselves.
  if (auto const regex = object.optional_text("Regex")) return {*regex, RegexSyntax::oniguruma, object.where("Regex")};
  return {object.text("String"), RegexSyntax::literal, object.where("String")};
}

}  // namespace p3d::text
