// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads members of JSON objects, each with the type that it must have.

#include "text/tokenizers/regex.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace p3d::text {

using Json = nlohmann::json;

/// Parses the text of a file; `path` is for the message.
Json parse_json(std::string const& text, std::string const& path);

/// An object of a file, and its place there ("model.vocab"). All members throw for a member of another type.
struct JsonObject {
  Json const& json;
  std::string const& file;
  std::string place;

  /// Throws unless it is an object.
  JsonObject(Json const& object, std::string const& in_file, std::string at);

  /// The place of a member, for messages.
  std::string where(char const* key) const;
  Json const* find(char const* key) const;  ///< null: absent, or null in the file
  std::string text(char const* key) const;  ///< throws when absent
  std::optional<std::string> optional_text(char const* key) const;
  /// True or false; `otherwise` when absent.
  bool flag(char const* key, bool otherwise) const;
  std::int64_t count(char const* key) const;  ///< an integer from 0 to 2^31 - 1; throws when absent
  Json const& array(char const* key) const;   ///< throws when absent
  std::string type() const { return text("type"); }
  /// The pattern of a member {"Regex": "..."} or {"String": "..."}.
  Regex pattern(char const* key) const;
};

/// The kind of a value in words, for messages: "a number", "an array of 3".
std::string kind_of(Json const& json);

}  // namespace p3d::text
