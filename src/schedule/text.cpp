// SPDX-License-Identifier: Apache-2.0
// The text form of a program, both ways. Reading is strict: a wrong word is refused with its line, what was expected
// and how to mend it, and no size is believed before it was checked. Example: "rank 0: 0F0 0B0 0REDUCE STEP".

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>

namespace p3d::schedule {
namespace {

constexpr std::string_view blanks = " \t\r";
constexpr int largest_count = 1 << 20;  // of stages, ranks or microbatches: a bound on what a wrong file can allocate

[[noreturn]] void refuse(int line, std::string expected, std::string_view found,
                         std::string fix = "correct this line; p3d schedule show --text FILE writes such a file") {
  base::refuse({.expected = std::move(expected),
                .found = fmt::format("\"{}\"", found.substr(0, 80)),
                .where = fmt::format("schedule text, line {}", line),
                .fix = std::move(fix)});
}

/// The next word of `text`, taken off its front; empty at the end.
std::string_view take_word(std::string_view& text) {
  std::size_t const begin = std::min(text.find_first_not_of(blanks), text.size());
  std::size_t const end = std::min(text.find_first_of(blanks, begin), text.size());
  std::string_view const word = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return word;
}

int number(std::string_view word, int line, std::string_view what) {
  int value = 0;
  auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() || value < 0 || value > largest_count)
    refuse(line, fmt::format("{}: a whole number from 0 to {}", what, largest_count), word);
  return value;
}

std::vector<int> numbers(std::string_view list, int line, std::string_view what) {
  std::vector<int> values;
  for (;;) {
    std::size_t const comma = std::min(list.find(','), list.size());
    values.push_back(number(list.substr(0, comma), line, what));
    if (values.size() > static_cast<std::size_t>(largest_count))
      refuse(line, fmt::format("{}: at most {} numbers", what, largest_count), "more");
    if (comma == list.size()) return values;
    list.remove_prefix(comma + 1);
  }
}

void read_header(Program& program, std::string_view text, int line) {
  std::string_view const whole = text;
  if (take_word(text) != "p3d-schedule" || take_word(text) != "1")
    refuse(line, "the header \"p3d-schedule 1 stages=... ranks=... microbatches=...\"", whole);
  for (std::string_view word = take_word(text); !word.empty(); word = take_word(text)) {
    std::size_t const equals = std::min(word.find('='), word.size());
    std::string_view const key = word.substr(0, equals);
    std::string_view const value = word.substr(std::min(equals + 1, word.size()));
    if (key == "stages")
      program.num_stages = number(value, line, key);
    else if (key == "ranks")
      program.num_ranks = number(value, line, key);
    else if (key == "microbatches")
      program.num_microbatches = number(value, line, key);
    else if (key == "placement")
      program.stage_rank = numbers(value, line, key);
    else if (key == "tied")
      program.tied = number(value, line, key) != 0;
    else if (key == "vocabulary")
      program.divides_vocabulary = number(value, line, key) != 0;
    else if (key == "slots")
      program.num_slots = numbers(value, line, key);
    else
      refuse(line, "one of stages=, ranks=, microbatches=, placement=, slots=, tied=, vocabulary=", word);
  }
  if (program.num_stages < 1 || program.num_ranks < 1 || program.num_microbatches < 1)
    refuse(line, "stages, ranks and microbatches, each at least 1", whole);
  if (std::int64_t{program.num_stages} * program.num_microbatches > most_forwards)
    refuse(line, fmt::format("stages x microbatches of at most {}", most_forwards), whole);
  for (int slots : program.num_slots)
    if (slots > program.num_microbatches)
      refuse(line, fmt::format("slots= of at most {} each, one for every microbatch", program.num_microbatches), whole);
  auto const stages = static_cast<std::size_t>(program.num_stages);
  if (program.stage_rank.empty())
    for (int s = 0; s < program.num_stages; ++s) program.stage_rank.push_back(s % program.num_ranks);
  if (program.stage_rank.size() != stages) refuse(line, fmt::format("placement= with {} ranks", stages), whole);
  for (int rank : program.stage_rank)
    if (rank >= program.num_ranks) refuse(line, fmt::format("placement= on ranks below {}", program.num_ranks), whole);
  if (!program.num_slots.empty() && program.num_slots.size() != stages)
    refuse(line, fmt::format("slots= with {} counts", stages), whole);
  program.ranks.resize(static_cast<std::size_t>(program.num_ranks));
}

/// The passes and the validator index by what actions name.
void require_known(Program const& program, Action const& a, std::size_t rank, int line, std::string_view word) {
  if (a.stage >= program.num_stages) refuse(line, fmt::format("a stage below {}", program.num_stages), word);
  if (rank_of(program, a.stage) != static_cast<int>(rank))
    refuse(line,
           fmt::format("actions of the stages of rank {}; stage {} is on rank {}", rank, a.stage,
                       rank_of(program, a.stage)),
           word);
  if (a.microbatch >= program.num_microbatches)
    refuse(line, fmt::format("a microbatch below {}", program.num_microbatches), word);
  if (a.slot >= program.num_microbatches)
    refuse(line, fmt::format("a slot below {}, the number of microbatches", program.num_microbatches), word);
}

}  // namespace

std::string to_text(Program const& program) {
  std::string text = fmt::format("p3d-schedule 1 stages={} ranks={} microbatches={}", program.num_stages,
                                 program.num_ranks, program.num_microbatches);
  bool round_robin = true;
  for (std::size_t s = 0; s < program.stage_rank.size(); ++s)
    round_robin = round_robin && program.stage_rank[s] == static_cast<int>(s) % program.num_ranks;
  if (!round_robin) text += fmt::format(" placement={}", fmt::join(program.stage_rank, ","));
  if (!program.num_slots.empty()) text += fmt::format(" slots={}", fmt::join(program.num_slots, ","));
  if (program.tied) text += " tied=1";
  if (program.divides_vocabulary) text += " vocabulary=1";
  text += '\n';
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    fmt::format_to(std::back_inserter(text), "rank {}:", rank);
    for (Action const& a : program.ranks[rank]) (text += ' ') += to_string(a);
    text += '\n';
  }
  return text;
}

Program parse_program(std::string_view text) {
  Program program;
  bool header = false;
  std::vector<bool> seen;
  int line = 0;
  while (!text.empty()) {
    std::size_t const end = std::min(text.find('\n'), text.size());
    std::string_view content = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line;
    content = content.substr(0, content.find('#'));
    if (content.find_first_not_of(blanks) == std::string_view::npos) continue;
    if (!header) {
      read_header(program, content, line);
      seen.resize(program.ranks.size());
      header = true;
      continue;
    }
    std::string_view const whole = content;
    std::size_t const colon = content.find(':');
    std::string_view label = content.substr(0, colon);
    if (colon == std::string_view::npos || take_word(label) != "rank")
      refuse(line, "\"rank <number>: <actions>\"", whole.substr(0, 40));
    auto const rank = static_cast<std::size_t>(number(take_word(label), line, "rank"));
    if (!take_word(label).empty() || rank >= program.ranks.size())
      refuse(line, fmt::format("a rank below {}", program.ranks.size()), whole.substr(0, colon));
    if (seen[rank]) refuse(line, "each rank once", whole.substr(0, colon));
    seen[rank] = true;
    content.remove_prefix(colon + 1);
    int column = 0;
    for (std::string_view word = take_word(content); !word.empty(); word = take_word(content)) {
      ++column;
      Action action;
      try {
        action = parse_action(word);
      } catch (base::Error const& error) {
        refuse(line, error.text().expected, word,
               fmt::format("action {} of rank {}; {}", column, rank, error.text().fix));
      }
      if (action.op != Op::optimizer_step) require_known(program, action, rank, line, word);  // STEP is the rank's
      program.ranks[rank].push_back(action);
    }
  }
  if (!header) refuse(line, "the header \"p3d-schedule 1 stages=... ranks=... microbatches=...\"", "an empty text");
  for (std::size_t rank = 0; rank < seen.size(); ++rank)
    if (!seen[rank]) refuse(line, fmt::format("a line \"rank {}: ...\"", rank), "end of text");
  return program;
}

}  // namespace p3d::schedule
