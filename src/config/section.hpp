// SPDX-License-Identifier: Apache-2.0
#pragma once
// Adds the keys of one section to the table: each function here pairs a type of value with a member of the section's
// struct. Example: s.integer("steps", &Run::steps, {1, limits::steps}, "optimizer steps") makes the row of run.steps,
// with its reader, its writer and its range.

#include "config/keys.hpp"

#include <p3d/base/text.hpp>
#include <p3d/config/parse.hpp>

#include <fmt/format.h>

#include <functional>
#include <utility>

namespace p3d::config {

/// The section `name` of the table. `Get` gets a section's struct from a Config (std::invoke): a pointer to a member,
/// or a function of both a Config& and a Config const&.
template <class S, class Get = S Config::*>
class Section {
public:
  Section(std::vector<Key>& table, char const* name, Get section) : table_(table), name_(name), section_(section) {}

  /// Adds an integer in a range. Without `default_text` the help shows the member's initial value.
  template <class T>
  void integer(char const* key, T S::*member, IntegerRange range, char const* help,
               char const* default_text = nullptr) {
    auto const section = section_;
    add(
        key, describe(range), help, default_text,
        [=](toml::node const& node, std::string const&, Config& config) {
          std::int64_t value = 0;
          auto const mismatch = read_integer(node, range, value);
          if (!mismatch) std::invoke(section, config).*member = static_cast<T>(value);
          return mismatch;
        },
        [=](Config const& config) { return fmt::format("{}", std::invoke(section, config).*member); });
  }

  /// Adds a finite number in a range.
  void number(char const* key, double S::*member, NumberRange range, char const* help,
              char const* default_text = nullptr) {
    auto const section = section_;
    add(
        key, describe(range), help, default_text,
        [=](toml::node const& node, std::string const&, Config& config) {
          return read_number(node, range, std::invoke(section, config).*member);
        },
        [=](Config const& config) { return toml_float(std::invoke(section, config).*member); });
  }

  /// Adds one number from 0 to `most` for all layers, or a list of them. A list of `usual` alone is stored as no list.
  void of_layers(char const* key, std::vector<std::int64_t> S::*member, std::int64_t most, std::int64_t usual,
                 std::string const& type, char const* help) {
    auto const section = section_;
    add(
        key, type, help, nullptr,
        [=](toml::node const& node, std::string const&, Config& config) {
          return read_of_layers(node, {0, most}, usual, std::invoke(section, config).*member);
        },
        [=](Config const& config) { return text_of_layers(std::invoke(section, config).*member, usual); });
  }

  /// Adds a list of numbers in a range, which may be empty.
  void numbers(char const* key, std::vector<double> S::*member, NumberRange range, char const* help) {
    auto const section = section_;
    add(
        key, "list: " + describe(range), help, nullptr,
        [=](toml::node const& node, std::string const&, Config& config) {
          return read_numbers(node, range, std::invoke(section, config).*member);
        },
        [=](Config const& config) {
          std::vector<std::string> words;
          for (double x : std::invoke(section, config).*member) words.push_back(toml_float(x));
          return "[" + base::join(words) + "]";
        });
  }

  /// Adds a truth value.
  void flag(char const* key, bool S::*member, char const* help, char const* default_text = nullptr) {
    auto const section = section_;
    add(
        key, "true | false", help, default_text,
        [=](toml::node const& node, std::string const&, Config& config) {
          return read_flag(node, std::invoke(section, config).*member);
        },
        [=](Config const& config) { return std::string(std::invoke(section, config).*member ? "true" : "false"); });
  }

  /// Adds a text.
  void string(char const* key, std::string S::*member, bool may_be_empty, char const* help) {
    auto const section = section_;
    add(
        key, may_be_empty ? "string" : "string, not empty", help, nullptr,
        [=](toml::node const& node, std::string const&, Config& config) {
          return read_string(node, may_be_empty, std::invoke(section, config).*member);
        },
        [=](Config const& config) { return toml_string(std::invoke(section, config).*member); });
  }

  /// Adds a folder or file to write; relative to the current directory wherever it is set.
  void output_path(char const* key, std::string S::*member, char const* help, char const* default_text) {
    auto const section = section_;
    add(
        key, "string, not empty", help, default_text,
        [=](toml::node const& node, std::string const&, Config& config) {
          std::string path;
          auto const mismatch = read_string(node, false, path);
          if (!mismatch) std::invoke(section, config).*member = absolute_path(path, "");
          return mismatch;
        },
        [=](Config const& config) { return toml_string(absolute_path(std::invoke(section, config).*member, "")); });
  }

  /// Adds a folder or file to read, "" for none; relative to the input file, in an override to the current directory.
  void input_path(char const* key, std::string S::*member, char const* type, char const* help) {
    auto const section = section_;
    add(
        key, type, help, "\"\"",
        [=](toml::node const& node, std::string const& folder, Config& config) {
          std::string path;
          auto mismatch = read_string(node, true, path);
          if (!mismatch) std::invoke(section, config).*member = path.empty() ? "" : absolute_path(path, folder);
          return mismatch;
        },
        [=](Config const& config) {
          auto const& path = std::invoke(section, config).*member;
          return toml_string(path.empty() ? "" : absolute_path(path, ""));
        });
  }

  /// Adds a text that is one of a list.
  void name(char const* key, std::string S::*member, std::vector<std::string> const& choices, char const* help) {
    auto const section = section_;
    add(
        key, choices_text(choices), help, nullptr,
        [=](toml::node const& node, std::string const&, Config& config) {
          std::size_t index = 0;
          auto const mismatch = read_choice(node, choices, index);
          if (!mismatch) std::invoke(section, config).*member = choices[index];
          return mismatch;
        },
        [=](Config const& config) { return toml_string(std::invoke(section, config).*member); });
  }

  /// Adds an enum by the names of its values.
  template <class E>
  void choice(char const* key, E S::*member, char const* help, char const* default_text = nullptr) {
    choice(key, member, base::values_of<E>(), help, default_text);
  }
  /// An enum by the names of some of its values.
  template <class E>
  void choice(char const* key, E S::*member, std::vector<E> const& values, char const* help,
              char const* default_text = nullptr) {
    auto const section = section_;
    std::vector<std::string> names;
    for (auto value : values) names.emplace_back(to_string(value));
    add(
        key, choices_text(names), help, default_text,
        [=](toml::node const& node, std::string const&, Config& config) {
          return read_enum(node, std::invoke(section, config).*member, values);
        },
        [=](Config const& config) { return toml_string(to_string(std::invoke(section, config).*member)); });
  }

  /// Adds a key with its own reader and writer. Without `default_text` the help shows what a default-made Config
  /// writes.
  void add(char const* key, std::string type, char const* help, char const* default_text, decltype(Key::read) read,
           decltype(Key::write) write) {
    table_.push_back({.section = name_,
                      .name = key,
                      .type = std::move(type),
                      .default_text = default_text ? default_text : write(Config{}),
                      .help = help,
                      .read = std::move(read),
                      .write = std::move(write)});
  }

private:
  /// The choices as the type of a key: "string: a | b"; the empty one is not shown.
  static std::string choices_text(std::vector<std::string> const& choices) {
    std::vector<std::string> names;
    for (auto const& choice : choices) {
      if (!choice.empty()) names.push_back(choice);
    }
    return "string: " + base::join(names, " | ");
  }

  std::vector<Key>& table_;
  char const* name_;
  Get section_;
};

}  // namespace p3d::config
