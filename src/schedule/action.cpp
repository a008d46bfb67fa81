// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/schedule/action.hpp>
#include <p3d/schedule/query.hpp>

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>

namespace p3d::schedule {
namespace {

/// Takes a non-negative number off the front of `text`.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

/// Takes "v1" or "@1" off the front, where it is there. False: no number follows.
bool take_suffix(std::string_view& text, char mark, int& value) {
  if (text.empty() || text.front() != mark) return true;
  text.remove_prefix(1);
  auto const number = take_number(text);
  if (number) value = *number;
  return number.has_value();
}

std::optional<Action> parse(std::string_view text) {
  Action action;
  if (text == "STEP") return Action{Op::optimizer_step};
  auto const stage = take_number(text);
  if (!stage) return std::nullopt;
  action.stage = *stage;
  std::size_t const length = text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
  std::string_view const name = text.substr(0, length);
  text.remove_prefix(name.size());
  std::size_t op = 0;
  while (op < num_ops && op_rows[op].word != name) ++op;
  if (op == num_ops) return std::nullopt;
  action.op = static_cast<Op>(op);
  if (action.op == Op::optimizer_step) {  // with a stage, STEP is another action, which says what version it makes
    action.op = Op::stage_step;
    if (text.empty()) return std::nullopt;
  }
  if (has_microbatch(action.op)) {
    auto const microbatch = take_number(text);
    if (!microbatch) return std::nullopt;
    action.microbatch = *microbatch;
  }
  if (has_version(action.op) && !take_suffix(text, 'v', action.version)) return std::nullopt;
  if (has_microbatch(action.op) && !take_suffix(text, '@', action.slot)) return std::nullopt;
  if (!text.empty()) return std::nullopt;
  return action;
}

}  // namespace

std::string to_string(Action const& action) {
  std::string_view const name = static_cast<std::size_t>(action.op) < num_ops ? word(action.op) : "?";
  if (action.op == Op::optimizer_step) return std::string(name);
  std::string text = fmt::format("{}{}", action.stage, name);
  if (action.microbatch >= 0) text += fmt::format("{}", action.microbatch);  // a wait may not know it
  if (action.version > 0) text += fmt::format("v{}", action.version);
  if (action.slot >= 0) text += fmt::format("@{}", action.slot);
  return text;
}

Action parse_action(std::string_view text) {
  if (auto const action = parse(text)) return *action;
  base::refuse({.expected = "an action (p3d schedule show --actions lists them)",
                .found = fmt::format("\"{}\"", text),
                .where = "",
                .fix = "for example 2F0, 3B1@2, 1SEND_F4@0, 0REDUCE, 2GATHER, 2F0v1, STEP"});
}

std::string actions_text() {
  std::string text;
  for (std::size_t i = 0; i < num_ops; ++i) {
    auto const op = static_cast<Op>(i);
    std::string form = op == Op::optimizer_step ? "" : "<stage>";
    form += word(op);
    if (has_microbatch(op)) form += "<microbatch>";
    if (op == Op::stage_step)
      form += "v<version>";
    else if (has_version(op))
      form += "[v<version>]";
    if (has_microbatch(op)) form += "[@<slot>]";
    text += fmt::format("{:<42} {}\n", form, op_rows[i].text);
  }
  return text;
}

}  // namespace p3d::schedule
