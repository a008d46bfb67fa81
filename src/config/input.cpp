// SPDX-License-Identifier: Apache-2.0
// Reads a TOML text and the overrides into entries. No value is read yet: an entry is a known key with its TOML node
// and its place. Errors are collected instead of thrown, so that one start shows all of them.
//
// An unknown key is most often a known one with a slip, so the error names it: "[model] hiden" asks "did you mean
// hidden?". The key that was meant is remembered, because its value is unknown: rules must not judge its default.
#include "config/input.hpp"

#include "config/nesting.hpp"

#include <p3d/base/printable.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::config {

namespace {

std::string position_text(std::string const& name, toml::source_position at) {
  return fmt::format("{}:{}:{}", name, at.line, at.column);
}

/// A name as a message shows it: quoted where it would not be seen.
std::string shown_name(std::string const& name) {
  return name.find_first_not_of(" \t\r\n") == std::string::npos
             ? fmt::format("the key \"{}\"", base::printable_line(name))
             : base::printable_line(name);
}

/// The line `number` (from 1) of a text without the blanks before it, at most 100 characters.
std::string line_of(std::string_view text, std::size_t number) {
  for (; number > 1; --number) {
    auto const end = text.find('\n');
    if (end == std::string_view::npos) return "";
    text.remove_prefix(end + 1);
  }
  auto const line = text.substr(0, text.find_first_of("\r\n"));
  auto const first = line.find_first_not_of(" \t");
  return first == std::string_view::npos ? "" : std::string(line.substr(first, 100));
}

/// The key that was probably meant by `name` in `section` ("" at the top of the file), or "". It is looked for in the
/// section most like a misspelt one, then by the same name elsewhere, then as the most similar name here, then as the
/// most similar one anywhere.
std::string similar_key(std::string const& section, std::string const& name) {
  auto here = keys_of(section);
  std::string const at = here.empty() ? base::nearest(section, sections()) : section;
  if (find_key(at + "." + name)) return at + "." + name;
  for (auto const& other : sections()) {
    if (find_key(other + "." + name)) return other + "." + name;
  }
  if (auto const close = base::nearest(name, keys_of(at)); !close.empty()) return at + "." + close;
  if (name.size() < 4) return "";  // the name is too short to resemble anything in particular
  std::vector<std::string> names;
  for (auto const& key : keys()) names.push_back(key.name);
  auto const close = base::nearest(name, names);
  for (auto const& key : keys()) {
    if (key.name == close) return key.full();
  }
  return "";
}

// Errors of unknown keys in a file beyond this number help nobody.
constexpr std::size_t most_unknown = 100;
constexpr char const* no_idea = "remove it; p3d --help-input lists all sections and keys";

/// Finds the key that was meant, remembers it, and returns the question for the fix.
std::string ask_for(std::string const& section, std::string const& name, bool in_file, Input& input) {
  auto const full = similar_key(section, name);
  if (full.empty()) {
    auto const close = keys_of(section).empty() ? base::nearest(section, sections()) : "";
    return close.empty() ? no_idea : fmt::format("did you mean [{}]? p3d --help-input lists its keys", close);
  }
  input.meant.push_back(full);
  if (!in_file) return fmt::format("did you mean {}?", full);
  auto const* key = find_key(full);
  if (key->section == section) return fmt::format("did you mean {}?", key->name);
  return fmt::format("did you mean {} below [{}]?", key->name, key->section);
}

/// The text of what is expected in a section: its keys, or all sections where there is no such one.
std::string expected_key(std::string const& section) {
  auto const known = keys_of(section);
  if (known.empty()) return "a section of the input: " + base::join(sections());
  return fmt::format("a key of [{}]: {}", section, base::join(known));
}

/// Finds the section that was meant by a table, remembers the keys below it, and returns the question for the fix.
std::string ask_for_section(std::string const& name, toml::table const& table, Input& input) {
  auto close = base::nearest(name, sections());
  for (auto const& section : sections()) {
    if (section.ends_with("." + name)) close = section;
  }
  if (close.empty()) return no_idea;
  for (auto const& [key, node] : table) input.meant.push_back(close + "." + std::string(key.str()));
  return fmt::format("did you mean [{}]?", close);
}

/// Reports the name of a section that stands where a key is expected.
void refuse_section(std::string const& name, toml::key const& key, toml::node const& node, Input& input,
                    KeyErrors& errors) {
  auto const at = key.source().begin;
  errors.add(KeyErrors::in_file(at), {.key = name,
                                      .where = position_text(input.name, at),
                                      .expected = fmt::format("[{}] as a section, once", name),
                                      .found = fmt::format("{} as a key, with {}", name, describe(node)),
                                      .fix = fmt::format("write [{}] on a line of its own, its keys below it", name)});
  for (auto const& below : keys_of(name)) input.meant.push_back(name + "." + below);
}

/// Makes the keys of a table entries, and reports unknown ones. A table in it may be a section of its own (model.moe).
void read_section(std::string const& section, toml::table const& table, Input& input, KeyErrors& errors) {
  for (auto const& [key, node] : table) {
    if (errors.size() >= most_unknown) break;  // a text of another kind; each error costs a search for what was meant
    std::string const name(key.str());
    if (auto const inner = section + "." + name; !keys_of(inner).empty()) {
      if (auto const* below = node.as_table())
        read_section(inner, *below, input, errors);
      else
        refuse_section(inner, key, node, input, errors);
      continue;
    }
    if (auto const* known = find_key(section + "." + name)) {
      input.entries.push_back({.key = known, .node = &node, .override_text = ""});
      continue;
    }
    auto const at = key.source().begin;
    errors.add(KeyErrors::in_file(at), {.key = section + "." + name,
                                        .where = position_text(input.name, at),
                                        .expected = expected_key(section),
                                        .found = shown_name(name),
                                        .fix = ask_for(section, name, true, input)});
  }
}

/// A fix for a message of the TOML parser.
std::string fix_of_syntax(std::string_view problem) {
  if (problem.find("could not determine value type") != problem.npos)
    return "put strings in double quotes; true and false in lower case";
  if (problem.find("cannot redefine") != problem.npos) return "keep one of the two";
  return "correct this line (the format is TOML, https://toml.io); what follows it was not looked at";
}

/// Reads the value of an override: TOML, or else a bare word, which must not look like broken TOML.
bool read_value(std::string const& text, toml::table& out) {
  if (too_deep_at_line(text) > 0) return false;
  auto const parse = [&](std::string const& value) {
    try {
      out = toml::parse(std::string_view("v = " + value));
      return out.size() == 1;  // a line break in the value could smuggle in another key
    } catch (toml::parse_error const&) {
      return false;
    }
  };
  if (parse(text)) return true;
  if (!text.empty() && std::string_view("\"'[{").find(text[0]) != std::string_view::npos) return false;
  return parse(toml_string(text));  // fails for a text that is not UTF-8
}

/// Turns a value into text where the key wants text, and nothing but text: TOML takes a bare word such as 2024
/// (run.name=2024) for a number, a truth value or a date.
void take_as_text(Key const& key, std::string const& text, toml::table& value) {
  auto const& node = *value.get("v");
  if (node.is_string() || node.is_array() || node.is_table()) return;
  Config scratch;
  if (!key.read(node, "", scratch)) return;
  toml::table as_text;
  as_text.insert("v", text);
  if (!key.read(*as_text.get("v"), "", scratch)) value = std::move(as_text);
}

}  // namespace

std::vector<KeyError> KeyErrors::sorted() const {
  auto items = items_;
  std::stable_sort(items.begin(), items.end(), [](auto const& a, auto const& b) { return a.first < b.first; });
  std::vector<KeyError> out;
  for (auto& item : items) out.push_back(std::move(item.second));
  return out;
}

std::string Input::place(Entry const& entry, toml::node const& node) const {
  if (!entry.from_file()) return "command line: " + entry.override_text;
  return position_text(name, node.source().begin);
}

KeyErrors::Order Input::order(Entry const& entry, toml::node const& node) const {
  return entry.from_file() ? KeyErrors::in_file(node.source().begin) : KeyErrors::on_command_line(entry.override_index);
}

std::string Input::place_of_section(std::string_view section) const {
  if (name.empty()) return "command line";
  toml::node const* node = &document;
  for (std::size_t begin = 0; node && begin <= section.size();) {
    auto const end = std::min(section.find('.', begin), section.size());
    auto const* table = node->as_table();
    node = table ? table->get(section.substr(begin, end - begin)) : nullptr;
    begin = end + 1;
  }
  return node ? position_text(name, node->source().begin) : name;
}

void read_document(std::string_view text, Input& input, KeyErrors& errors) {
  if (int const line = too_deep_at_line(text); line > 0) {
    input.readable = false;
    errors.add(0, {.key = "",
                   .where = fmt::format("{}:{}", input.name, line),
                   .expected = fmt::format("lists, tables and dotted keys nested at most {} deep", deepest_nesting),
                   .found = "deeper ones",
                   .fix = "correct this line: a section has keys, and a key a value or a list of values"});
    return;
  }
  try {
    input.document = toml::parse(text);
  } catch (toml::parse_error const& error) {
    input.readable = false;
    auto const at = error.source().begin;
    auto const line = line_of(text, at.line);
    errors.add(KeyErrors::in_file(at), {.key = "",
                                        .where = position_text(input.name, at),
                                        .expected = "valid TOML",
                                        .found = std::string(error.description()) +
                                                 (line.empty() ? "" : fmt::format("; the line is: {}", line)),
                                        .fix = fix_of_syntax(error.description())});
    return;
  }
  for (auto const& [key, node] : input.document) {
    if (errors.size() >= most_unknown) break;
    std::string const name(key.str());
    if (!keys_of(name).empty()) {
      if (auto const* table = node.as_table())
        read_section(name, *table, input, errors);
      else
        refuse_section(name, key, node, input, errors);
      continue;
    }
    auto const at = key.source().begin;
    KeyError error{
        .key = name, .where = position_text(input.name, at), .expected = expected_key(""), .found = "", .fix = ""};
    if (node.is_table()) {
      error.found = fmt::format("[{}]", name);
      error.fix = ask_for_section(name, *node.as_table(), input);
    } else {
      error.found = fmt::format("the key {} outside of any section", name);
      error.fix = ask_for("", name, true, input);
    }
    errors.add(KeyErrors::in_file(at), std::move(error));
  }
}

void read_overrides(std::vector<std::string> const& overrides, Input& input, KeyErrors& errors) {
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    auto const& text = overrides[i];
    auto const shown = base::printable_line(text);
    auto const equals = text.find('=');
    auto const name = text.substr(0, equals);
    auto const last = name.rfind('.');
    bool const in_section = last != std::string::npos && !keys_of(name.substr(0, last)).empty();
    auto const dot = in_section ? last : name.find('.');
    auto const* key = find_key(name);
    KeyError error{.key = base::printable_line(name),
                   .where = "command line: " + shown,
                   .expected = "section.key=value",
                   .found = shown,
                   .fix = ""};
    if (equals == std::string::npos) {
      error.fix =
          key ? fmt::format("write {}=VALUE", name) : "give one input file, then only overrides such as run.steps=10";
    } else if (!key) {
      auto const section = dot == std::string::npos ? std::string() : name.substr(0, dot);
      error.expected = expected_key(section);
      error.found = shown_name(name);
      error.fix = ask_for(section, dot == std::string::npos ? name : name.substr(dot + 1), false, input);
    } else {
      Entry entry{.key = key, .node = nullptr, .override_text = shown, .override_index = i};
      toml::table value;
      if (read_value(text.substr(equals + 1), value)) {
        take_as_text(*key, text.substr(equals + 1), value);
        input.override_values.push_back(std::move(value));
        entry.node = input.override_values.back().get("v");
        input.entries.push_back(std::move(entry));
        continue;
      }
      input.entries.push_back(std::move(entry));
      error.expected = key->expected();
      error.found = shown.substr(equals + 1) + ", which is not a TOML value";
      error.fix = "close quotes and brackets, and keep the shell's hands off: put the whole argument in single quotes";
    }
    errors.add(KeyErrors::on_command_line(i), std::move(error));
  }
}

}  // namespace p3d::config
