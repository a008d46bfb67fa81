// SPDX-License-Identifier: Apache-2.0
// Readers of single TOML values, and how p3d writes them. Each reader says in words what it found and how to write it
// instead: for steps = "100" the fix is "write 100, a plain integer without quotes". A value that fits in no way gets
// the general advice of its type.
#include "config/values.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <system_error>

namespace p3d::config {

namespace {

/// The number that a string spells, if it spells one: people quote numbers, and write .5.
std::optional<double> spelled_number(toml::node const& node) {
  auto const* text = node.as_string();
  if (!text || text->get().empty()) return {};
  char* end = nullptr;
  double const value = std::strtod(text->get().c_str(), &end);
  if (*end != '\0' || !std::isfinite(value)) return {};
  return value;
}

/// True when a number is whole and small enough for a double to hold it exactly.
bool is_whole(double value) { return std::isfinite(value) && value == std::floor(value) && std::fabs(value) < 9e15; }

/// True for a string of a decimal integer that 64 bits do not hold. It need not have had quotes: TOML takes no such
/// number, and a command line then takes the word for a string.
bool is_long_integer(toml::node const& node) {
  auto const* text = node.as_string();
  if (!text || text->get().empty()) return false;
  std::string_view const word = text->get();
  std::int64_t value = 0;
  auto const* const end = word.data() + word.size();
  auto const read = std::from_chars(word.data() + (word.front() == '+' ? 1 : 0), end, value);
  return read.ec == std::errc::result_out_of_range && read.ptr == end;
}

}  // namespace

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    auto const byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\u{:04X}", byte);
    else
      out += c;
  }
  return out + '"';
}

std::string toml_list(std::vector<std::string> const& texts) {
  std::vector<std::string> parts;
  for (auto const& text : texts) parts.push_back(toml_string(text));
  return '[' + base::join(parts) + ']';
}

std::string toml_float(double value) {
  auto text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string describe(IntegerRange range) {
  if (range.max == std::numeric_limits<std::int64_t>::max()) return fmt::format("integer >= {}", range.min);
  return fmt::format("integer from {} to {}", range.min, range.max);
}

std::string describe(NumberRange range) {
  if (std::isinf(range.max)) return fmt::format("number {} {}", range.min_open ? ">" : ">=", range.min);
  return fmt::format("number in {}{}, {}{}", range.min_open ? '(' : '[', range.min, range.max,
                     range.max_open ? ')' : ']');
}

std::string describe(toml::node const& node) {
  switch (node.type()) {
    case toml::node_type::string: {
      auto const& s = node.as_string()->get();
      return s.empty() ? "an empty string" : "the string " + toml_string(s);
    }
    case toml::node_type::integer: return fmt::format("the integer {}", node.as_integer()->get());
    case toml::node_type::floating_point:
      return fmt::format("the number {}", toml_float(node.as_floating_point()->get()));
    case toml::node_type::boolean: return node.as_boolean()->get() ? "the boolean true" : "the boolean false";
    case toml::node_type::array: return fmt::format("a list of {}", node.as_array()->size());
    case toml::node_type::table: return "a table";
    default: return "a date or time";
  }
}

MaybeMismatch read_integer(toml::node const& node, IntegerRange range, std::int64_t& out) {
  if (auto const* value = node.as_integer()) {
    auto const v = value->get();
    if (v >= range.min && v <= range.max) {
      out = v;
      return {};
    }
    return Mismatch{&node, fmt::format("{}", v),
                    v < range.min ? fmt::format("set it to {} or more", range.min)
                                  : fmt::format("set it to {} or less", range.max)};
  }
  if (auto const* value = node.as_floating_point(); value && is_whole(value->get())) {
    return Mismatch{&node, describe(node), fmt::format("write {:.0f}, without point or exponent", value->get())};
  }
  if (is_long_integer(node)) {
    auto const& digits = node.as_string()->get();
    bool const negative = digits.front() == '-';
    return Mismatch{
        &node, fmt::format("{}, too {} an integer", digits, negative ? "small" : "large"),
        negative ? fmt::format("set it to {} or more", range.min) : fmt::format("set it to {} or less", range.max)};
  }
  if (auto const number = spelled_number(node); number && is_whole(*number)) {
    return Mismatch{&node, describe(node), fmt::format("write {:.0f}, a plain integer without quotes", *number)};
  }
  return Mismatch{&node, describe(node), "write an integer"};
}

MaybeMismatch read_number(toml::node const& node, NumberRange range, double& out) {
  double v = 0.0;
  if (auto const* integer = node.as_integer())
    v = static_cast<double>(integer->get());
  else if (auto const* number = node.as_floating_point())
    v = number->get();
  else if (auto const spelled = spelled_number(node)) {
    return Mismatch{&node, describe(node),
                    fmt::format("write {}, without quotes, digits on both sides of the point", *spelled)};
  } else {
    return Mismatch{&node, describe(node), "write a number"};
  }
  if (!std::isfinite(v)) return Mismatch{&node, fmt::format("{}", v), "write a finite number"};
  if (v < range.min || (range.min_open && v == range.min)) {
    return Mismatch{&node, fmt::format("{}", v),
                    fmt::format("set it to {} {}", range.min_open ? "more than" : "at least", range.min)};
  }
  if (v > range.max || (range.max_open && v == range.max)) {
    return Mismatch{&node, fmt::format("{}", v),
                    fmt::format("set it to {} {}", range.max_open ? "less than" : "at most", range.max)};
  }
  out = v == 0.0 ? 0.0 : v;  // -0.0 and 0.0 are one value: equal Configs must print the same bytes
  return {};
}

MaybeMismatch read_flag(toml::node const& node, bool& out) {
  if (auto const* value = node.as_boolean()) {
    out = value->get();
    return {};
  }
  return Mismatch{&node, describe(node), "write true or false, in lower case and without quotes"};
}

MaybeMismatch read_string(toml::node const& node, bool may_be_empty, std::string& out) {
  auto const* value = node.as_string();
  if (!value)
    return Mismatch{&node, describe(node),
                    "put the value in double quotes; on a command line, these inside single quotes: '\"...\"'"};
  if (value->get().empty() && !may_be_empty) return Mismatch{&node, "an empty string", "give at least one character"};
  out = value->get();
  return {};
}

MaybeMismatch read_choice(toml::node const& node, std::vector<std::string> const& choices, std::size_t& out) {
  std::vector<std::string> names;
  for (auto const& choice : choices) {
    if (!choice.empty()) names.push_back(choice);
  }
  auto const all = "use one of: " + base::join(names);
  auto const* value = node.as_string();
  if (!value) return Mismatch{&node, describe(node), all};
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == value->get()) {
      out = i;
      return {};
    }
  }
  auto const close = base::nearest(value->get(), names);
  return Mismatch{&node, toml_string(value->get()),
                  close.empty() ? all : fmt::format("did you mean {}?", toml_string(close))};
}

MaybeMismatch read_list(toml::array const& list, std::function<MaybeMismatch(toml::node const&)> const& read_one) {
  for (auto const& element : list) {
    if (auto mismatch = read_one(element)) {
      mismatch->found += " in the list";
      return mismatch;
    }
  }
  return {};
}

MaybeMismatch read_numbers(toml::node const& node, NumberRange range, std::vector<double>& out) {
  auto const* list = node.as_array();
  if (!list) return Mismatch{&node, describe(node), "write a list: [1.0, 1.5]"};
  std::vector<double> values;
  auto mismatch = read_list(*list, [&](toml::node const& element) {
    double value = 0.0;
    auto wrong = read_number(element, range, value);
    if (!wrong) values.push_back(value);
    return wrong;
  });
  if (!mismatch) out = std::move(values);
  return mismatch;
}

MaybeMismatch read_of_layers(toml::node const& node, IntegerRange range, std::int64_t usual,
                             std::vector<std::int64_t>& out) {
  std::vector<std::int64_t> values;
  auto const read_one = [&](toml::node const& element) {
    std::int64_t value = 0;
    auto mismatch = read_integer(element, range, value);
    if (!mismatch) values.push_back(value);
    return mismatch;
  };
  if (auto const* list = node.as_array()) {
    if (auto mismatch = read_list(*list, read_one)) return mismatch;
    if (values.empty()) return Mismatch{&node, "an empty list", "give one number for each layer, or remove the key"};
  } else if (auto mismatch = read_one(node)) {
    return mismatch;
  }
  bool const none = std::all_of(values.begin(), values.end(), [&](auto value) { return value == usual; });
  out = none ? std::vector<std::int64_t>{} : values;
  return {};
}

std::string text_of_layers(std::vector<std::int64_t> const& values, std::int64_t usual) {
  if (values.size() > 1) return fmt::format("[{}]", fmt::join(values, ", "));
  return fmt::format("{}", values.empty() ? usual : values[0]);
}

MaybeMismatch read_duration(toml::node const& node, std::int64_t& seconds) {
  char const* const fix = "write a number and a unit: \"90s\", \"30min\" or \"2h\"";
  auto const* text = node.as_string();
  if (!text) return Mismatch{&node, describe(node), fix};
  char* end = nullptr;
  double const number = std::strtod(text->get().c_str(), &end);
  std::string_view const unit(end);
  double const factor = unit == "s" ? 1 : unit == "min" ? 60 : unit == "h" ? 3600 : 0;
  double const value = number * factor;
  if (end == text->get().c_str() || !is_whole(value) || value < 1 || value > 3.6e7)
    return Mismatch{&node, describe(node), fix};
  seconds = static_cast<std::int64_t>(value);
  return {};
}

}  // namespace p3d::config
