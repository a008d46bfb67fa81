// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads a config.json of transformers key by key, strictly (hugging_face.cpp).

#include <p3d/config/json_text.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace p3d::config {

/// Reads a file key by key, and collects errors. A key that was read counts as known.
class Reader {
public:
  using Json = nlohmann::json;
  /// `file` outlives the reader; `path` is for messages.
  Reader(Json const& file, std::string path) : file_(file), path_(std::move(path)) {}

  bool has(char const* key) const { return file_.contains(key) && !file_[key].is_null(); }
  bool left_out(char const* key) const { return !file_.contains(key); }
  /// The value of a key, which counts as known from here on; null when it is absent.
  Json const& value(char const* key);
  /// Notes an error.
  void wrong(std::string const& expected, std::string const& found);
  /// An integer from 1 to `most`. Without a default (`otherwise` > 0) the key must be there.
  std::int64_t integer(char const* key, std::int64_t most, std::int64_t otherwise = 0);
  /// A whole number from 0 to `most`; `otherwise` when it is absent.
  std::int64_t count(char const* key, std::int64_t most, std::int64_t otherwise);
  /// A number from `least` to `most`; `otherwise` when it is absent.
  double number(char const* key, double least, double most, double otherwise);
  /// A list of numbers from `least` to `most`, which must be there.
  std::vector<double> numbers(char const* key, double least, double most);
  bool flag(char const* key, bool otherwise);
  /// The value of a key in words, for messages.
  std::string found(char const* key) const;
  bool good() const { return errors_.empty(); }

  /// Checks the keys that must have one value, passes over the ones without effect, and refuses unknown ones. Throws
  /// base::Error (bad_input) when there were errors.
  void finish();

private:
  Json const& file_;
  std::string path_;
  std::set<std::string> seen_;
  std::vector<std::string> errors_;
};

}  // namespace p3d::config
