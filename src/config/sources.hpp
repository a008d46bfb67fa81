// SPDX-License-Identifier: Apache-2.0
#pragma once
// The source of each key's value, so that rules between keys can name places and keep quiet about values that could not
// be read.

#include "config/input.hpp"

#include <map>
#include <string>
#include <string_view>

namespace p3d::config {

/// The source of each key's value: default, preset, file or command line.
class Sources {
public:
  explicit Sources(Input const& input) : input_(input) {}
  /// The sources of a Config that is whole: every value counts as written, as in the resolved input of a run.
  static Sources of_whole(Input const& input) {
    Sources out(input);
    out.unnoted_ = Kind::given;
    return out;
  }

  /// Notes that the key was set by `entry` (which must outlive this).
  void set_given(std::string const& key, Entry const& entry) { map_[key] = {Kind::given, &entry}; }
  /// Notes that the value follows from the preset that `preset`, a key, names.
  void set_preset(std::string const& key, char const* preset) { map_[key] = {Kind::preset, entry(preset)}; }
  /// Notes that the value that was written for the key could not be read.
  void set_lost(std::string const& key) { map_[key] = {Kind::lost, nullptr}; }
  /// Notes that the key was left to follow from others, which do not let it.
  void set_open(std::string const& key) { map_[key] = {Kind::open, nullptr}; }

  /// True when there is a value to judge.
  bool known(std::string_view key) const { return kind(key) != Kind::lost && kind(key) != Kind::open; }
  /// True when the value that was written could not be read.
  bool lost(std::string_view key) const { return kind(key) == Kind::lost; }
  /// True when the value was written in the file or on the command line (not: default, preset).
  bool given(std::string_view key) const { return kind(key) == Kind::given; }
  bool from_preset(std::string_view key) const { return kind(key) == Kind::preset; }
  /// The entry that set the key, or that named the preset that did; else null.
  Entry const* entry(std::string_view key) const;

  /// The place of the value for messages, "input.toml:3:10 (model.hidden = 100)"; it says so when the value was not
  /// written.
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
  Kind unnoted_ = Kind::by_default;  ///< the kind of keys of which nothing was noted
  std::map<std::string, Source, std::less<>> map_;
};

}  // namespace p3d::config
