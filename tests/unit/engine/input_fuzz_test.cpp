// SPDX-License-Identifier: Apache-2.0
// Mutated inputs and schedule files: whatever a file says, it is refused with an error of four parts, or its plan has
// figures that make sense. Deterministic; P3D_FUZZ_ROUNDS sets the number of rounds of each test (3600).

#include <p3d/base/error.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/plan/model_cost.hpp>
#include <p3d/report/describe.hpp>
#include <p3d/schedule/registry.hpp>

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <random>
#include <regex>

namespace {

using namespace p3d;

int rounds() {
  char const* const asked = std::getenv("P3D_FUZZ_ROUNDS");
  return asked != nullptr ? std::atoi(asked) : 3600;
}

/// Draws that are the same everywhere.
class Dice {
public:
  explicit Dice(unsigned seed) : random_(seed) {}
  std::size_t below(std::size_t n) { return n == 0 ? 0 : random_() % n; }
  template <class V>
  auto const& one_of(V const& values) {
    return values[below(values.size())];
  }

private:
  std::mt19937 random_;
};

std::string read(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> good_inputs() {
  std::vector<std::string> out;
  std::string const root = P3D_SOURCE_DIR;
  for (char const* name : {"gpt2-124m", "gpt2-tiny", "llama-tiny", "llama3-8b", "quickstart"})
    out.push_back(read(fmt::format("{}/inputs/{}.toml", root, name)));
  for (char const* name : {"gpt2", "llama"}) out.push_back(read(fmt::format("{}/tests/golden/{}.toml", root, name)));
  return out;
}

std::vector<std::string> hostile_values() {
  std::vector<std::string> values{"0",
                                  "1",
                                  "-1",
                                  "2",
                                  "3",
                                  "64",
                                  "1024",
                                  "65536",
                                  "1048576",
                                  "16777216",
                                  "2147483647",
                                  "2147483648",
                                  "99999999999",
                                  "4294967297",
                                  "9223372036854775807",
                                  "-9223372036854775808",
                                  "9223372036854775808",
                                  "1e308",
                                  "1e-320",
                                  "nan",
                                  "inf",
                                  "-inf",
                                  "0.5",
                                  "-0.0",
                                  "\"\"",
                                  "\" \"",
                                  "\"..\"",
                                  "\"/\"",
                                  "\"a/b\"",
                                  "\"\\u0000\"",
                                  "'\n'",
                                  "true",
                                  "[]",
                                  "[[]]",
                                  "[1, 2, 3]",
                                  "[\"\"]",
                                  "{}",
                                  "{a = 1}",
                                  "1979-05-27",
                                  "07:32:00",
                                  "0x7fffffffffffffff",
                                  "\"auto\"",
                                  "\"1f1b\"",
                                  "\"zb_v\"",
                                  "\"looped_bfs\"",
                                  "\"cost\"",
                                  "\"90s\"",
                                  "\"1e300h\"",
                                  "= 1",
                                  "\"\"\"",
                                  "'''",
                                  "\xff\xfe",
                                  ""};
  values.push_back(std::string(400000, '['));
  values.push_back("\"" + std::string(200, 'x') + "\"");
  return values;
}

std::vector<std::string> lines_of(std::string const& text) {
  std::vector<std::string> lines(1);
  for (char c : text) {
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  }
  return lines;
}

std::string mutated(Dice& dice, std::string const& text, std::vector<std::string> const& values) {
  auto lines = lines_of(text);
  auto& line = lines[dice.below(lines.size())];
  switch (dice.below(11)) {
    case 0:
    case 1:
    case 2:
    case 3:  // another value, for the next key from here
      for (std::size_t i = 0, at = dice.below(lines.size()); i < lines.size(); ++i, at = (at + 1) % lines.size())
        if (auto const equals = lines[at].find('='); equals != std::string::npos && lines[at].front() != '#') {
          lines[at] = lines[at].substr(0, equals + 1) + " " + dice.one_of(values);
          break;
        }
      break;
    case 4: line.insert(dice.below(line.size() + 1), 1, static_cast<char>(dice.below(256))); break;
    case 5:
      if (!line.empty()) line.erase(dice.below(line.size()), 1 + dice.below(4));
      break;
    case 6: line += "\n" + std::string(line); break;
    case 7: std::swap(line, lines[dice.below(lines.size())]); break;
    case 8: lines.resize(1 + dice.below(lines.size())); break;
    case 9: {
      std::vector<std::string> const strange{
          "\"\" = 1", "[\"\"]",        "[]",  "[[model]]", "model.hidden = 3", "[model.hidden]", "\" \" = 1",
          "[a.b.c]",  "\"a\\nb\" = 1", "= 3", "[run",      "run = 3",          "\x01 = 2"};
      line += "\n" + dice.one_of(strange);
      break;
    }
    default: {
      std::string deep;
      for (int i = 0; i < 100000; ++i) deep += "a.";
      std::vector<std::string> const nested{deep + "b = 1", "[" + deep + "b]", "x = " + std::string(100000, '{'),
                                            "x = [" + std::string(100000, '[') + "1]", std::string(100000, '[')};
      line += "\n" + dice.one_of(nested);
    }
  }
  std::string out;
  for (auto const& l : lines) out += l + "\n";
  return out;
}

void expect_four_parts(std::string const& expected, std::string const& found, std::string const& where,
                       std::string const& fix) {
  auto const blank = [](std::string const& s) { return s.find_first_not_of(" \t\r\n") == std::string::npos; };
  EXPECT_FALSE(blank(expected) || blank(found) || blank(where) || blank(fix))
      << "expected: " << expected << "\nfound: " << found << "\nwhere: " << where << "\nfix: " << fix;
}

/// Refusals carry four parts; anything else than base::Error, and an internal error, fails the test.
template <class Work>
bool accepted(Work&& work) {
  try {
    work();
    return true;
  } catch (base::Error const& e) {
    EXPECT_EQ(e.code(), base::ExitCode::bad_input) << e.what();
    expect_four_parts(e.text().expected, e.text().found, e.text().where, e.text().fix);
  } catch (std::exception const& e) {
    ADD_FAILURE() << e.what();
  }
  return false;
}

void expect_sane(config::Config const& c, engine::RunPlan const& plan) {
  for (int r = 0; r < c.parallel.pp; ++r) {
    auto const m = plan.memory_of(r);
    for (auto bytes : {m.params, m.grads, m.optimizer, m.activations, m.workspace, m.total()})
      ASSERT_TRUE(bytes >= 0 && bytes < std::int64_t{1} << 62) << bytes;
  }
  ASSERT_GT(plan.table.num_parameters(), 0);
  double const flops = plan::model_flops_per_step(c);
  ASSERT_TRUE(std::isfinite(flops) && flops > 0) << flops;
  auto const text = report::describe(c, plan);
  static std::regex const negative("-[0-9.]+ ([KMGTPE]i)?B\\b");
  ASSERT_FALSE(std::regex_search(text, negative)) << text;
  auto const again = config::parse_text(config::canonical_toml(c), "resolved.toml", "/", {}, c.num_ranks());
  ASSERT_TRUE(again.config) << config::format(again.errors);
  ASSERT_EQ(*again.config, c);
}

TEST(InputFuzz, inputs) {
  Dice dice(13);
  auto const inputs = good_inputs();
  auto const values = hostile_values();
  auto const keys = config::key_help();
  std::string const folder = std::string(P3D_SOURCE_DIR) + "/inputs";
  int valid = 0, refused = 0, unplanned = 0;
  for (int round = 0; round < rounds() && !::testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    auto text = dice.one_of(inputs);
    std::vector<std::string> overrides;
    if (dice.below(3) > 0) text = mutated(dice, text, values);
    for (auto n = dice.below(4); n > 0; --n) {
      auto const& key = dice.one_of(keys).key;
      overrides.push_back(fmt::format("{}={}", dice.below(20) == 0 ? "" : key, dice.one_of(values)));
    }
    auto const ranks = dice.one_of(std::vector<int>{0, 1, 4, 64, 512, 1 << 20});
    config::ParseResult result;
    if (!accepted([&] { result = config::parse_text(text, "fuzz.toml", folder, overrides, ranks); })) {
      ADD_FAILURE() << "parse_text throws";
      break;
    }
    EXPECT_EQ(result.config.has_value(), result.errors.empty());
    for (auto const& f : result.errors) expect_four_parts(f.expected, f.found, f.where, f.fix);
    if (!result.config) {
      ++refused;
      continue;
    }
    std::optional<engine::RunPlan> plan;
    if (!accepted([&] { plan.emplace(engine::make_run_plan(*result.config)); })) {
      ++unplanned;
      continue;
    }
    ++valid;
    expect_sane(*result.config, *plan);
  }
  std::cout << valid << " valid, " << refused << " refused, " << unplanned << " refused when planned\n";
  EXPECT_GT(valid, rounds() / 40);
  EXPECT_GT(refused, rounds() / 4);
}

TEST(InputFuzz, schedule_files) {
  Dice dice(2000);
  std::vector<std::string> files;
  for (char const* name : {"1f1b", "gpipe", "zb_v", "interleaved_1f1b"}) {
    auto const program = schedule::complete(schedule::generate(name, {3, 6, 0}));
    files.push_back(schedule::to_text(program));
    files.push_back(schedule::to_csv(program));
    files.push_back(schedule::to_csv(schedule::generate(name, {3, 6, 0})));
  }
  std::vector<std::string> const numbers{"0", "1", "7", "-1", "1048575", "1048576", "2147483647", "99999999999", ""};
  int valid = 0, refused = 0, unproved = 0;
  for (int round = 0; round < rounds() && !::testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    auto text = dice.one_of(files);
    for (auto n = dice.below(4); n > 0; --n) {
      auto const at = dice.below(text.size());
      switch (dice.below(4)) {
        case 0: text[at] = static_cast<char>(dice.below(256)); break;
        case 1: text.erase(at, 1 + dice.below(12)); break;
        case 2: text.insert(at, text.substr(dice.below(text.size()), dice.below(40))); break;
        default: {  // a number at or after the place
          auto const first = text.find_first_of("0123456789", at);
          if (first == std::string::npos) break;
          auto const end = std::min(text.find_first_not_of("0123456789", first), text.size());
          text.replace(first, end - first, dice.one_of(numbers));
        }
      }
    }
    schedule::Program program;
    if (!accepted([&] { program = schedule::parse_schedule_file(text, static_cast<int>(dice.below(3))); }))
      ++refused;
    else if (accepted([&] { schedule::require_valid(program, engine::execution); }))
      ++valid;
    else
      ++unproved;
  }
  std::cout << valid << " valid, " << refused << " refused, " << unproved << " without proof\n";
  EXPECT_GT(valid, rounds() / 10);
  EXPECT_GT(refused, rounds() / 10);
}

}  // namespace
