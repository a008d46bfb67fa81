// SPDX-License-Identifier: Apache-2.0
// Reads one text out of a line of JSON. The parser calls a function for each value, and only the wanted text is kept:
// other members, such as metadata of many megabytes, cost no memory.
#include "text/corpus/json_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace p3d::text {

namespace {

using Json = nlohmann::json;

/// Takes one member of the outermost object, and builds nothing of the others.
class Reader final : public nlohmann::json_sax<Json> {
public:
  Reader(std::string const& wanted, std::string& text) : wanted_(wanted), text_(text) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("true or false"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, string_t const&) override { return value("a number"); }
  bool string(string_t& s) override {
    if (depth_ == 1 && here_) {
      text_ = std::move(s);
      found_ = true;
      return true;
    }
    return value("a string");
  }
  bool binary(binary_t&) override { return value("bytes"); }
  bool start_object(std::size_t) override { return (depth_ == 0 || value("an object")) && enter(); }
  bool key(string_t& s) override {
    here_ = depth_ == 1 && s == wanted_;
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return value("an array") && enter(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t, std::string const&, Json::exception const& e) override {
    std::string const what = e.what();
    auto const begin = what.find("column ");
    wrong_ = begin == std::string::npos ? what : what.substr(begin);
    return false;
  }

  /// The error in words, or "".
  std::string verdict() const {
    if (!wrong_.empty()) return wrong_.substr(0, 300);
    return found_ ? "" : fmt::format("no key \"{}\"", wanted_);
  }

private:
  /// Handles any value but the wanted string. Returns false, which ends the parsing, where that value is an error.
  bool value(char const* what) {
    if (depth_ == 0) wrong_ = fmt::format("{} instead of an object", what);
    if (depth_ == 1 && here_) wrong_ = fmt::format("{} instead of a string under \"{}\"", what, wanted_);
    return wrong_.empty();
  }
  bool enter() {
    ++depth_;
    here_ = false;
    return true;
  }
  bool leave() {
    --depth_;
    here_ = false;
    return true;
  }

  std::string const& wanted_;
  std::string& text_;
  std::string wrong_;
  int depth_ = 0;
  bool here_ = false;
  bool found_ = false;
};

}  // namespace

std::string read_json_text(std::string_view line, std::string const& key, std::string& text) {
  // The parser takes a NUL for the end of its input.
  if (auto const at = line.find('\0'); at != std::string_view::npos) return fmt::format("a NUL at byte {}", at + 1);
  Reader reader(key, text);
  Json::sax_parse(line.begin(), line.end(), &reader);
  return reader.verdict();
}

}  // namespace p3d::text
