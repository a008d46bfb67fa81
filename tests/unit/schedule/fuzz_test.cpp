// SPDX-License-Identifier: Apache-2.0
// Mutated programs: the validator must refuse a mutant exactly when the interpreter (interpreter.hpp) finds that it
// deadlocks, misuses a slot or a message, or changes the result. fuzz_more_test.cpp does the same for weights, the
// divided vocabulary and pairs.

#include "fuzz_compare.hpp"
#include "interpreter.hpp"
#include "programs.hpp"

#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <gtest/gtest.h>

#include <iostream>

using namespace p3d::schedule;
using namespace p3d::test;

namespace {

std::vector<Action>& list_of(std::mt19937& random, Program& p) {
  for (;;)
    if (auto& list = p.ranks[static_cast<std::size_t>(draw(random, p.num_ranks))]; !list.empty()) return list;
}

std::ptrdiff_t place(std::mt19937& random, std::vector<Action> const& list) {
  return draw(random, static_cast<int>(list.size()));
}

/// One random change.
void mutate(std::mt19937& random, Program& p) {
  auto& list = list_of(random, p);
  auto const a = place(random, list), b = place(random, list);
  auto& action = list[static_cast<std::size_t>(a)];
  switch (draw(random, 9)) {
    case 0: list.erase(list.begin() + a); break;
    case 1: list.insert(list.begin() + b, Action(action)); break;
    case 2: std::swap(action, list[static_cast<std::size_t>(b)]); break;
    case 3: {  // move
      Action const moved = action;
      list.erase(list.begin() + a);
      list.insert(list.begin() + std::min(b, static_cast<std::ptrdiff_t>(list.size())), moved);
      break;
    }
    case 4:
    case 5:  // neighbours: the mutants most likely to be harmless
      if (static_cast<std::size_t>(a) + 1 < list.size()) std::swap(action, list[static_cast<std::size_t>(a) + 1]);
      break;
    case 6:
      if (action.microbatch >= 0) action.microbatch = draw(random, p.num_microbatches + 1);
      break;
    case 7: {  // another slot for one action, or for all of its microbatch
      if (action.slot < 0) break;
      int const stage = action.stage, microbatch = action.microbatch;
      int const slot = draw(random, p.num_slots[static_cast<std::size_t>(stage)] + 1);
      bool const all = draw(random, 2) == 0;
      action.slot = slot;
      for (auto& other : list)
        if (all && other.stage == stage && other.microbatch == microbatch) other.slot = slot;
      break;
    }
    default:
      if (action.microbatch >= 0)
        action.op = static_cast<Op>(draw(random, 10));
      else
        action.stage = draw(random, p.num_stages);
  }
}

Execution random_execution(std::mt19937& random) { return {draw(random, 4) != 0, draw(random, 3)}; }

struct FuzzPlacement {
  std::vector<int> stage_rank;
  int ranks;
};

Program random_whole(std::mt19937& random, std::vector<FuzzPlacement> const& placements, int most_microbatches) {
  auto const& [stages, ranks] = placements[static_cast<std::size_t>(draw(random, static_cast<int>(placements.size())))];
  int const m = 1 + draw(random, most_microbatches);
  Program compute;
  if (draw(random, 2) == 0) {  // every second one is a schedule of the registry
    auto const all = generators();
    Generator const& g = *all[static_cast<std::size_t>(draw(random, static_cast<int>(all.size())))];
    if (int const p = std::min(ranks, 3); m >= g.smallest_microbatches(p))
      return complete(generate(g.name, {p, m, 0}), draw(random, 4), draw(random, 3));
  }
  switch (stages.size() == static_cast<std::size_t>(ranks) ? draw(random, 3) : 2) {
    case 0: compute = gpipe(ranks, m); break;
    case 1: compute = one_f_one_b(ranks, m); break;
    default: compute = random_program(random, stages, ranks, m, draw(random, 3));
  }
  return complete(std::move(compute), draw(random, 4), draw(random, 3));
}

/// Prints the counts of mutants among which programs must deadlock, too.
void expect_all_outcomes(MutantCount const& c) {
  expect_outcomes(c);
  EXPECT_GT(c.deadlocks, c.mutants / 200);
}

}  // namespace

TEST(Fuzz, every_order_of_two_ranks) {
  std::mt19937 random(2024);
  MutantCount count;
  for (int round = 0; round < 4000 && !HasFatalFailure(); ++round) {
    Program program = random_whole(random, {{{0, 1}, 2}, {{0, 1, 1, 0}, 2}, {{0, 1, 0, 1}, 2}, {{1, 0, 0}, 2}}, 3);
    for (int changes = draw(random, 8) == 0 ? 0 : 1 + draw(random, 3); changes > 0; --changes) mutate(random, program);
    Execution const how = random_execution(random);
    compare(program, how, interpret_all_orders(program, how), count);
  }
  expect_all_outcomes(count);
}

TEST(Fuzz, random_orders_of_more_ranks) {
  std::mt19937 random(77);
  MutantCount count;
  for (int round = 0; round < 12000 && !HasFatalFailure(); ++round) {
    Program program = random_whole(
        random,
        {{{0, 1, 2}, 3}, {{0, 1, 2, 3}, 4}, {{0, 1, 2, 2, 1, 0}, 3}, {{0, 1, 2, 0, 1, 2}, 3}, {{2, 0, 1, 1, 3}, 4}}, 5);
    for (int changes = draw(random, 8) == 0 ? 0 : 1 + draw(random, 3); changes > 0; --changes) mutate(random, program);
    Execution const how = random_execution(random);
    Report const truth = interpret_one_order(program, how, 1);
    // The outcome cannot depend on the order in which the ranks run.
    for (unsigned seed : {2u, 3u}) {
      auto const other = interpret_one_order(program, how, seed);
      ASSERT_EQ(truth.outcome == Outcome::fine, other.outcome == Outcome::fine)
          << truth.why << " / " << other.why << '\n'
          << to_text(program);
    }
    compare(program, how, truth, count);
  }
  expect_all_outcomes(count);
}

// Mutants of forward-only programs, of both ways to make them.
TEST(Fuzz, forward_only) {
  std::mt19937 random(1307);
  MutantCount count;
  std::vector<FuzzPlacement> const placements{{{0, 1, 2}, 3},       {{0, 1, 2, 0, 1, 2}, 3}, {{0, 1, 2, 2, 1, 0}, 3},
                                              {{0, 1, 0, 1}, 2},    {{0, 0, 1, 1}, 2},       {{0, 1, 2, 3}, 4},
                                              {{2, 0, 1, 1, 3}, 4}, {{0, 1, 0}, 2}};
  for (int round = 0; round < 12000 && !HasFatalFailure(); ++round) {
    Execution const how = random_execution(random);
    Program program;
    if (draw(random, 3) == 0) {
      auto const& [stages, ranks] =
          placements[static_cast<std::size_t>(draw(random, static_cast<int>(placements.size())))];
      program = forward_by_microbatch(stages, ranks, 1 + draw(random, 4));
    } else {  // the forwards of a program of a step, in its order: some of these cannot run
      Program const whole = random_whole(random, placements, 4);
      program = p3d::test::empty_program(whole.stage_rank, whole.num_ranks, whole.num_microbatches);
      for (std::size_t r = 0; r < whole.ranks.size(); ++r)
        for (Action const& a : whole.ranks[r])
          if (a.op == Op::forward) program.ranks[r].push_back({a.op, a.stage, a.microbatch});
      assign_slots(program, draw(random, 3));
      add_messages(program, draw(random, 3));
    }
    for (int changes = draw(random, 3) == 0 ? 0 : 1 + draw(random, 2); changes > 0; --changes) mutate(random, program);
    compare(program, how, interpret_one_order(program, how, static_cast<unsigned>(round), Pass::forward_only), count,
            Pass::forward_only);
  }
  expect_all_outcomes(count);
}

// Every single neighbour swap of a small program: none is left out by chance.
TEST(Fuzz, every_swap_of_neighbours) {
  MutantCount count;
  for (Program const& whole :
       {complete(one_f_one_b(2, 3)), complete(gpipe(2, 3), 3), complete(one_f_one_b(3, 2), 2, 2)})
    for (std::size_t r = 0; r < whole.ranks.size(); ++r)
      for (std::size_t i = 0; i + 1 < whole.ranks[r].size(); ++i)
        for (int in_flight : {0, 1, 2}) {
          Program program = whole;
          std::swap(program.ranks[r][i], program.ranks[r][i + 1]);
          Execution const how{true, in_flight};
          ASSERT_NO_FATAL_FAILURE(compare(program, how, interpret_all_orders(program, how), count));
        }
  EXPECT_GT(count.accepted, 0);
  EXPECT_GT(count.misuses, 0);
}

// Mutants of every schedule of the registry, each met equally often.
TEST(Fuzz, every_schedule_of_the_registry) {
  std::mt19937 random(403);
  MutantCount count;
  for (Generator const* g : generators())
    for (int round = 0; round < 1200 && !HasFatalFailure(); ++round) {
      int const p = 2 + draw(random, 3), v = g->any_stages_per_rank ? 1 + draw(random, 3) : 0;
      int const m = g->smallest_microbatches(p) + draw(random, 5);
      Program program = complete(generate(g->name, {p, m, v, g->any_group_size ? p + draw(random, 3) : 0}),
                                 draw(random, 4), draw(random, 3));
      for (int changes = draw(random, 8) == 0 ? 0 : 1 + draw(random, 2); changes > 0; --changes)
        mutate(random, program);
      Execution const how = random_execution(random);
      compare(program, how, interpret_one_order(program, how, static_cast<unsigned>(round)), count);
    }
  expect_all_outcomes(count);
}

// Every swap of two actions of a rank, and every other slot for every microbatch, of programs with several stages per
// rank: messages of several stages share a channel, and stages read each other's slots.
TEST(Fuzz, every_swap_and_every_slot_with_several_stages_per_rank) {
  std::mt19937 random(5);
  MutantCount count;
  Execution const how{true, 1};
  std::vector<FuzzPlacement> const placements{
      {{0, 0}, 1}, {{0, 0, 0}, 1}, {{0, 1, 1, 0}, 2}, {{0, 1, 0, 1}, 2}, {{0, 1, 0}, 2}};
  for (int round = 0; round < 40; ++round) {
    auto const& [stages, ranks] = placements[static_cast<std::size_t>(round) % placements.size()];
    Program const whole = complete(random_program(random, stages, ranks, 2 + round % 2, round % 3), 3);
    auto const check = [&](Program const& program) {
      compare(program, how, interpret_one_order(program, how, 1), count);
    };
    for (std::size_t r = 0; r < whole.ranks.size(); ++r)
      for (std::size_t i = 0; i < whole.ranks[r].size(); ++i)
        for (std::size_t j = 0; j < i; ++j) {
          Program program = whole;
          std::swap(program.ranks[r][i], program.ranks[r][j]);
          ASSERT_NO_FATAL_FAILURE(check(program));
        }
    for (int stage = 0; stage < whole.num_stages; ++stage)
      for (int m = 0; m < whole.num_microbatches; ++m)
        for (int slot = 0; slot < whole.num_slots[static_cast<std::size_t>(stage)]; ++slot) {
          Program program = whole;
          for (auto& list : program.ranks)
            for (Action& a : list)
              if (a.stage == stage && a.microbatch == m) a.slot = slot;
          ASSERT_NO_FATAL_FAILURE(check(program));
        }
  }
  expect_all_outcomes(count);
}

// Mutants of programs that offload activations, some of them with finer stages.
TEST(Fuzz, offloaded_activations) {
  std::mt19937 random(31);
  MutantCount count;
  std::vector<FuzzPlacement> const placements{
      {{0, 0, 0}, 1}, {{0, 1}, 2}, {{0, 1, 1, 0}, 2}, {{0, 1, 2}, 3}, {{0, 1, 2, 2, 1, 0}, 3}, {{0, 0, 1, 1}, 2}};
  int offloaded = 0;
  for (int round = 0; round < 8000 && !HasFatalFailure(); ++round) {
    Execution const how = random_execution(random);
    Program program;
    if (round % 2 == 0) {
      auto const all = generators();
      Generator const& g = *all[static_cast<std::size_t>(draw(random, static_cast<int>(all.size())))];
      int const p = 1 + draw(random, 4), m = g.smallest_microbatches(p) + 2 + draw(random, 4);
      Program const compute = generate(g.name, {p, m, 0});
      std::vector<int> parts;
      for (int s = 0; s < compute.num_stages; ++s) parts.push_back(round % 4 == 0 ? 1 : 1 + draw(random, 2));
      program = complete(refine(compute, parts), 1 + draw(random, 2), draw(random, 2));
    } else {
      auto const& [stages, ranks] =
          placements[static_cast<std::size_t>(draw(random, static_cast<int>(placements.size())))];
      program = complete(random_program(random, stages, ranks, 3 + draw(random, 4), draw(random, 3)));
    }
    // Unproved: of what the pass makes for eager sends some run to their end with others.
    offload_activations(program, 2 + draw(random, 2), draw(random, 2) == 0 ? how : Execution{false, 1});
    for (auto const& list : program.ranks)
      for (Action const& a : list) offloaded += a.op == Op::offload_activations;
    for (int changes = draw(random, 4) == 0 ? 0 : 1 + draw(random, 2); changes > 0; --changes) mutate(random, program);
    compare(program, how, interpret_one_order(program, how, static_cast<unsigned>(round)), count);
  }
  EXPECT_GT(offloaded, 20000);
  expect_all_outcomes(count);
}
