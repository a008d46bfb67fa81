// SPDX-License-Identifier: Apache-2.0
// One row per rank, as PyTorch writes schedules: cells "2F0", "1I3", "0W3", in order; empty cells are steps without
// work.

#include "channels.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::schedule {

std::string to_csv(Program const& program) {
  std::string text;
  for (auto const& actions : program.ranks) {
    bool first = true;
    for (Action a : actions) {
      a.slot = -1;
      if (!first) text += ',';
      first = false;
      text += to_string(a);
    }
    text += '\n';
  }
  return text;
}

Program parse_csv(std::string_view text) {
  Program program;
  int line = 0;
  auto const refuse = [&](std::string expected, std::string_view found, std::string fix) {
    base::refuse({.expected = std::move(expected),
                  .found = fmt::format("\"{}\"", found.substr(0, 40)),
                  .where = fmt::format("schedule CSV, line {}", line),
                  .fix = std::move(fix)});
  };
  while (!text.empty()) {
    std::size_t const end = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line;
    row = row.substr(0, row.find('#'));
    if (row.find_first_not_of(" \t\r,") == std::string_view::npos) {
      if (row.find(',') == std::string_view::npos) continue;  // an empty line is no rank; a row of empty cells is
    }
    auto& actions = program.ranks.emplace_back();
    for (int column = 1; !row.empty(); ++column) {
      std::size_t const comma = std::min(row.find(','), row.size());
      std::string_view word = row.substr(0, comma);
      row.remove_prefix(std::min(comma + 1, row.size()));
      auto const blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '"'; };
      while (!word.empty() && blank(word.front())) word.remove_prefix(1);
      while (!word.empty() && blank(word.back())) word.remove_suffix(1);
      if (word.empty()) continue;
      Action a;
      try {
        a = parse_action(word);
      } catch (base::Error const& error) {
        refuse(error.text().expected, word, fmt::format("cell {}; {}", column, error.text().fix));
      }
      constexpr int largest = 1 << 20;  // a bound on what a wrong file can allocate
      if (a.stage >= largest || a.microbatch >= largest || a.slot >= largest)
        refuse(fmt::format("numbers below {}", largest), word, "correct the cell");
      if (a.op != Op::optimizer_step) {
        auto const stage = static_cast<std::size_t>(a.stage);
        if (program.stage_rank.size() <= stage) program.stage_rank.resize(stage + 1, -1);
        int const rank = static_cast<int>(program.ranks.size()) - 1;
        int& home = program.stage_rank[stage];
        if (home >= 0 && home != rank)
          refuse(fmt::format("stage {} on one rank", a.stage), word,
                 fmt::format("it also stands in row {} (rank {})", home + 1, home));
        home = rank;
      }
      program.num_microbatches = std::max(program.num_microbatches, a.microbatch + 1);
      program.divides_vocabulary = program.divides_vocabulary || is_vocabulary(a.op);
      actions.push_back(a);
    }
  }
  program.num_ranks = static_cast<int>(program.ranks.size());
  program.num_stages = static_cast<int>(program.stage_rank.size());
  if (std::int64_t{program.num_stages} * program.num_microbatches > most_forwards)
    refuse(fmt::format("stages x microbatches of at most {}", most_forwards),
           fmt::format("{} x {}", program.num_stages, program.num_microbatches), "number both from 0, without a gap");
  if (program.num_microbatches == 0) refuse("one row of actions per rank", "", "for example 0F0,0F1,0B0,0B1");
  for (std::size_t s = 0; s < program.stage_rank.size(); ++s)
    if (program.stage_rank[s] < 0)
      refuse(fmt::format("actions of every stage up to {}", program.num_stages - 1), fmt::format("none of stage {}", s),
             "number the stages without a gap");
  return program;
}

Program parse_schedule_file(std::string_view text, int slot_lookahead) {
  // Editors and spreadsheets on Windows put a byte order mark in front of UTF-8.
  if (constexpr std::string_view mark = "\xef\xbb\xbf"; text.starts_with(mark)) text.remove_prefix(mark.size());
  std::size_t at = 0;  // past blanks and comments
  while (at < text.size()) {
    at = std::min(text.find_first_not_of(" \t\r\n", at), text.size());
    if (at == text.size() || text[at] != '#') break;
    at = std::min(text.find('\n', at), text.size());
  }
  Program program = text.substr(at).starts_with("p3d-schedule") ? parse_program(text) : parse_csv(text);
  bool messages = false, slots = true, reductions = false, weights = false, moves = false;
  for (auto const& actions : program.ranks)
    for (Action const& a : actions) {
      messages = messages || is_message(a.op);
      slots = slots && (a.slot >= 0 || a.microbatch < 0);
      reductions = reductions || reduces(a.op) || a.op == Op::optimizer_step || a.op == Op::stage_step;
      weights = weights || moves_weights(a.op);
      moves = moves || moves_activations(a.op);
    }
  require_in_range(program);
  bool const neighbours_apart = program.num_ranks > 1;
  if (weights && (!reductions || (neighbours_apart && !messages)))
    base::refuse({.expected = "a schedule with GATHER, RELEASE, OFFLOAD or RELOAD that has its messages and "
                              "reductions too",
                  .found = reductions ? "no SEND and RECV" : "no REDUCE and STEP",
                  .where = "schedule file",
                  .fix = "write the schedule without them, complete it with `p3d schedule show input.toml "
                         "--text FILE`, and put them into that file"});
  if (moves && (!slots || !reductions || (neighbours_apart && !messages)))
    base::refuse({.expected = "a schedule with OFFLOAD_F or RELOAD_F that has its slots, messages and reductions too",
                  .found = !slots       ? "actions without slots"
                           : reductions ? "no SEND and RECV"
                                        : "no REDUCE and STEP",
                  .where = "schedule file",
                  .fix = "leave OFFLOAD_F and RELOAD_F out and set memory.offload_activations, which adds them"});
  if (!messages && !slots && !reductions) return complete(std::move(program), 1, slot_lookahead);
  if (!slots) assign_slots(program);
  if (program.num_slots.empty()) {  // slots are given, their numbers are not
    program.num_slots.assign(static_cast<std::size_t>(program.num_stages), 0);
    for (auto const& actions : program.ranks)
      for (Action const& a : actions)
        if (a.slot >= 0 && !is_vocabulary(a.op)) {
          if (a.slot >= program.num_microbatches)
            base::refuse(
                {.expected = fmt::format("a slot below {}, the number of microbatches", program.num_microbatches),
                 .found = to_string(a),
                 .where = "schedule file",
                 .fix = "correct the slot, or leave all of them out"});
          int& count = program.num_slots[static_cast<std::size_t>(a.stage)];
          count = std::max(count, a.slot + 1);
        }
  }
  if (!reductions) add_reductions(program);
  return program;
}

}  // namespace p3d::schedule
