// SPDX-License-Identifier: Apache-2.0
// Mutated programs, as in fuzz_test.cpp, of the actions that go beyond compute and messages: weights that come and go,
// versions of them, the divided vocabulary, and pairs. The validator must refuse exactly what the interpreter refuses.

#include "fuzz_compare.hpp"
#include "interpreter.hpp"
#include "programs.hpp"

#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/valid_program.hpp>
#include <p3d/schedule/vocabulary.hpp>
#include <p3d/schedule/weights.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>

using namespace p3d::schedule;
using namespace p3d::test;

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

bool names_version(Op op) {
  switch (op) {
    case Op::forward:
    case Op::backward:
    case Op::backward_input:
    case Op::backward_weight:
    case Op::gather_weights:
    case Op::release_weights:
    case Op::offload_weights:
    case Op::reload_weights:
    case Op::stage_step:
    case Op::embed_forward:
    case Op::head_forward:
    case Op::head_backward: return true;
    default: return false;
  }
}

/// An action of another kind that has the same numbers.
void change_op(std::mt19937& random, Action& a) {
  static constexpr Op of_microbatch[]{Op::forward,         Op::backward,        Op::backward_input, Op::backward_weight,
                                      Op::send_activation, Op::recv_activation, Op::send_gradient,  Op::recv_gradient,
                                      Op::embed_forward,   Op::head_forward,    Op::head_backward,  Op::embed_backward};
  static constexpr Op of_stage[]{Op::reduce_gradients, Op::gather_weights,           Op::release_weights,
                                 Op::offload_weights,  Op::reduce_scatter_gradients, Op::reload_weights,
                                 Op::stage_step};
  if (a.op == Op::optimizer_step) return;
  a.op = a.microbatch >= 0 ? of_microbatch[draw(random, 12)] : of_stage[draw(random, 7)];
  if (!names_version(a.op)) a.version = 0;
}

/// One random change.
void mutate(std::mt19937& random, Program& p) {
  auto& list = p.ranks[at(draw(random, p.num_ranks))];
  if (list.empty()) return;
  int const n = static_cast<int>(list.size()), a = draw(random, n), b = draw(random, n);
  Action& action = list[at(a)];
  switch (draw(random, 10)) {
    case 0: list.erase(list.begin() + a); break;
    case 1: list.insert(list.begin() + b, Action(action)); break;
    case 2: std::swap(action, list[at(b)]); break;
    case 3:
      if (a < b) std::rotate(list.begin() + a, list.begin() + a + 1, list.begin() + b + 1);
      if (b < a) std::rotate(list.begin() + b, list.begin() + a, list.begin() + a + 1);
      break;
    case 4:
    case 5:
    case 6:  // neighbours: the mutants most likely to be harmless
      if (a + 1 < n) std::swap(action, list[at(a + 1)]);
      break;
    case 7:
      if (action.microbatch >= 0)
        action.microbatch = draw(random, p.num_microbatches + 1);
      else if (action.op != Op::optimizer_step)
        action.stage = draw(random, p.num_stages);
      break;
    case 8: change_op(random, action); break;
    default:
      if (names_version(action.op)) action.version = std::max(0, action.version + draw(random, 3) - 1);
  }
}

void compare(Program const& program, Execution how, unsigned seed, MutantCount& count, Pass pass = Pass::training) {
  compare(program, how, interpret_one_order(program, how, seed, pass), count, pass);
}

/// A schedule of the registry for a few ranks.
Program random_compute(std::mt19937& random, int most_ranks, int more_microbatches) {
  auto const all = generators();
  Generator const& g = *all[at(draw(random, static_cast<int>(all.size())))];
  int const p = 1 + draw(random, most_ranks), m = g.smallest_microbatches(p) + draw(random, more_microbatches);
  return generate(g.name, {p, m, 0});
}

/// Some of the forwards of a program of a step.
Program forward_part(std::mt19937& random, Program training) {
  int const forwards = 1 + draw(random, training.num_microbatches);
  return forward_only({std::move(training), {true, any_number}}, forwards).program();
}

void mutate_some(std::mt19937& random, Program& program) {
  for (int changes = draw(random, 5) == 0 ? 0 : 1 + draw(random, 2); changes > 0; --changes) mutate(random, program);
}

}  // namespace

TEST(FuzzMore, weights_that_come_and_go) {
  std::mt19937 random(88);
  MutantCount count;
  for (int round = 0; round < 6000 && !HasFatalFailure(); ++round) {
    Program compute = random_compute(random, 3, 3);
    if (draw(random, 2) == 0) compute = refine(compute, std::vector<int>(at(compute.num_stages), 2));
    compute.tied =
        draw(random, 2) == 0 && compute.num_stages > 1 && compute.stage_rank.front() == compute.stage_rank.back();
    Program program = complete(std::move(compute));
    shard_weights(program, {.gather = draw(random, 2) == 0 ? Every::step : Every::microbatch,
                            .reduce = draw(random, 2) == 0 ? Every::step : Every::microbatch,
                            .ahead = draw(random, 2),
                            .offloads = draw(random, 3) == 0});
    Execution const how{draw(random, 4) != 0, draw(random, 3)};
    Pass const pass = draw(random, 4) == 0 ? Pass::forward_only : Pass::training;
    if (pass == Pass::forward_only) program = forward_part(random, std::move(program));
    mutate_some(random, program);
    compare(program, pass == Pass::training ? how : Execution{true, any_number}, static_cast<unsigned>(round), count,
            pass);
  }
  expect_outcomes(count);
}

// Every stage is updated several times in a step; a microbatch goes back with the weights with which it went forward,
// which stay until their last use.
TEST(FuzzMore, versions_of_weights) {
  std::mt19937 random(2406);
  MutantCount count;
  int stashed = 0;
  for (int round = 0; round < 6000 && !HasFatalFailure(); ++round) {
    Program program = complete(random_compute(random, 3, 4));
    int const every = 1 + draw(random, 2);
    for (auto& list : program.ranks) {
      std::map<int, int> newest, sums, left;  // by stage
      std::map<std::pair<int, int>, int> version_of;
      std::vector<Action> out;
      for (Action const& a : list) left[a.stage] += a.op == Op::backward || a.op == Op::backward_weight;
      for (Action a : list) {
        if (a.op == Op::reduce_gradients || a.op == Op::optimizer_step) continue;
        if (a.op == Op::forward) version_of[{a.stage, a.microbatch}] = newest[a.stage];
        if (is_compute(a.op)) a.version = version_of.at({a.stage, a.microbatch});
        out.push_back(a);
        if (a.op != Op::backward && a.op != Op::backward_weight) continue;
        --left[a.stage];
        if (++sums[a.stage] % every != 0 && left[a.stage] > 0) continue;
        out.push_back({Op::reduce_gradients, a.stage});
        out.push_back({Op::stage_step, a.stage, -1, -1, ++newest[a.stage]});
      }
      for (auto const& [stage, last] : newest)
        for (int v = 0; v < last; ++v) {  // who is named after the update that replaces it
          auto const update = std::find(out.begin(), out.end(), Action{Op::stage_step, stage, -1, -1, v + 1});
          auto const use = std::find_if(out.rbegin(), out.rend(), [&](Action const& a) {
            return a.stage == stage && a.version == v && is_compute(a.op) && a.op != Op::backward_weight;
          });
          if (use == out.rend() || use.base() <= update) continue;
          out.insert(use.base(), {Op::release_weights, stage, -1, -1, v});
          ++stashed;
        }
      list = std::move(out);
    }
    mutate_some(random, program);
    compare(program, {draw(random, 4) != 0, draw(random, 3)}, static_cast<unsigned>(round), count);
  }
  EXPECT_GT(stashed, 1000);
  expect_outcomes(count);
}

TEST(FuzzMore, divided_vocabulary) {
  std::mt19937 random(5288);
  MutantCount count;
  for (int round = 0; round < 6000 && !HasFatalFailure(); ++round) {
    Program compute = random_compute(random, 3, 4);
    VocabularyTimes times{.stages = {}, .embed = 0.1, .head_forward = 0.5 * draw(random, 6), .head_backward = 1};
    times.stages.assign(at(compute.num_stages), {});
    divide_vocabulary(compute, times,
                      draw(random, 2) == 0 ? VocabularyOrder::forwards_first : VocabularyOrder::backwards_first,
                      1 + draw(random, 2), draw(random, 2) == 0);
    Program program = complete(std::move(compute), 1, draw(random, 2));
    bool const pairs = draw(random, 4) == 0;
    if (pairs) close_pairs(program);
    if (draw(random, 3) == 0)
      shard_weights(program, {.gather = Every::microbatch,
                              .reduce = draw(random, 2) == 0 ? Every::step : Every::microbatch,
                              .ahead = draw(random, 2)});
    Execution const how{draw(random, 4) != 0, draw(random, 3) == 0 ? draw(random, 3) : any_number, pairs};
    Pass const pass = draw(random, 4) == 0 ? Pass::forward_only : Pass::training;
    if (pass == Pass::forward_only) program = forward_part(random, std::move(program));
    mutate_some(random, program);
    compare(program, pass == Pass::training ? how : Execution{true, any_number}, static_cast<unsigned>(round), count,
            pass);
  }
  EXPECT_GT(count.deadlocks, count.mutants / 100);
  expect_outcomes(count);
}

// Two actions of a pair wait together, and that changes no outcome.
TEST(FuzzMore, pairs) {
  std::mt19937 random(1437);
  MutantCount count;
  for (int round = 0; round < 4000 && !HasFatalFailure(); ++round) {
    Program compute = random_compute(random, 3, 4);
    if (draw(random, 2) == 0) exchange_pairs(compute);
    Program program = complete(std::move(compute), 1, draw(random, 2));
    close_pairs(program);
    if (draw(random, 4) == 0) offload_activations(program, 2, {false, 1});
    mutate_some(random, program);
    Execution how{draw(random, 4) != 0, draw(random, 3), true};
    compare(program, how, static_cast<unsigned>(round), count);
    auto const together = interpret_one_order(program, how, 1);
    how.pairs = false;
    ASSERT_EQ(together.outcome == Outcome::fine, interpret_one_order(program, how, 1).outcome == Outcome::fine);
  }
  EXPECT_GT(count.deadlocks, 10);
  expect_outcomes(count);
}
