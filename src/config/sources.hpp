// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where each key's value came from, so that rules between keys can name places and keep quiet about values that could
// not be read.

#include "config/input.hpp"

#include <map>
#include <string>
#include <string_view>

namespace p3d::config {

class Sources {
public:
  explicit Sources(Input const& input) : input_(input) {}

  /// The key was set by `entry` (which must outlive this).
  void set_given(std::string const& key, Entry const& entry) { map_[key] = {Kind::given, &entry}; }
  /// It follows from the preset that `preset`, a key, names.
  void set_preset(std::string const& key, char const* preset) { map_[key] = {Kind::preset, entry(preset)}; }
  /// What was written for the key could not be read.
  void set_lost(std::string const& key) { map_[key] = {Kind::lost, nullptr}; }
  /// The key was left to follow from others, which do not let it.
  void set_open(std::string const& key) { map_[key] = {Kind::open, nullptr}; }

  /// Whether there is a value to judge.
  bool known(std::string_view key) const { return kind(key) != Kind::lost && kind(key) != Kind::open; }
  bool lost(std::string_view key) const { return kind(key) == Kind::lost; }
  /// Written in the file or on the command line (not: default, preset).
  bool given(std::string_view key) const { return kind(key) == Kind::given; }
  bool from_preset(std::string_view key) const { return kind(key) == Kind::preset; }
  /// What set the key, or named the preset that did; else null.
  Entry const* entry(std::string_view key) const;

  /// "input.toml:3:10 (model.hidden = 100)", with where the value came from when it was not written.
  std::string place(std::string_view key, Config const& config) const;
  Input const& input() const { return input_; }

private:
  enum class Kind { by_default, preset, given, lost, open };
  struct Source {
    Kind kind;
    Entry const* entry;
  };
  Kind kind(std::string_view key) const;

  Input const& input_;
  std::map<std::string, Source, std::less<>> map_;
};

}  // namespace p3d::config
