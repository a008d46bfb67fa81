// SPDX-License-Identifier: Apache-2.0
// Weights in programs: every rule of the validator broken once, and what the passes make.
#include "programs.hpp"

#include <p3d/base/error.hpp>
#include <p3d/plan/simulator.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/schedule.hpp>
#include <p3d/schedule/valid_program.hpp>
#include <p3d/schedule/weights.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

using namespace p3d::schedule;

namespace {

/// One stage on one rank, two microbatches; compute actions take slot 0.
Program one_rank(std::string const& actions) {
  return parse_program("p3d-schedule 1 stages=1 ranks=1 microbatches=2 slots=1\nrank 0: " + actions);
}

/// The message for the action of that index (-1: for the rank as a whole); "": none.
std::string refusal(Program const& program, int index) {
  for (auto const& v : validate(program))
    if (v.index == index) return v.message;
  return "";
}

std::string const forward_backward = "0F0@0 0B0@0 0F1@0 0B1@0 ";

}  // namespace

TEST(Weights, text_of_the_actions) {
  for (char const* text :
       {"0GATHER", "3RELEASE", "1OFFLOADv2", "1RELOADv2", "0REDUCE_SCATTER", "2STEPv1", "2F3v1@4", "2B3v1", "1W0v7@1"})
    EXPECT_EQ(to_string(parse_action(text)), text);
  EXPECT_EQ(parse_action("2STEPv1"), (Action{Op::stage_step, 2, -1, -1, 1}));
  EXPECT_EQ(parse_action("0GATHER"), (Action{Op::gather_weights, 0}));
  for (char const* text :
       {"GATHER", "0STEP", "0GATHER1", "0GATHER@1", "0SEND_F1v1", "0REDUCEv1", "0F1v", "0F1@1v1", "STEPv1"})
    EXPECT_THROW(parse_action(text), p3d::base::Error) << text;
}

TEST(Weights, sharded) {
  EXPECT_EQ(refusal(one_rank("0GATHER " + forward_backward + "0RELEASE 0REDUCE_SCATTER STEP"), -1), "");
  // A missing GATHER, one after the use, a RELEASE before the use.
  EXPECT_EQ(refusal(one_rank("0GATHER 0F0@0 0RELEASE 0B0@0 0GATHER 0F1@0 0B1@0 0RELEASE 0REDUCE_SCATTER STEP"), 3),
            "the weights of stage 0 are in parts: 0GATHER has to come first");
  EXPECT_EQ(refusal(one_rank("0F0@0 0GATHER 0B0@0 0F1@0 0B1@0 0RELEASE 0REDUCE_SCATTER STEP"), 0),
            "the weights of stage 0 are in parts: 0GATHER has to come first");
  EXPECT_EQ(refusal(one_rank("0GATHER 0RELEASE " + forward_backward + "0REDUCE_SCATTER STEP"), 2),
            "the weights of stage 0 are in parts: 0GATHER has to come first");
  EXPECT_EQ(refusal(one_rank("0GATHER 0GATHER " + forward_backward + "0RELEASE 0REDUCE_SCATTER STEP"), 1),
            "the weights of stage 0 are whole already");
  EXPECT_EQ(refusal(one_rank("0GATHER " + forward_backward + "0REDUCE_SCATTER STEP"), -1),
            "version 0 of the weights of stage 0 stays at the end: 0RELEASE is missing");
  // W reads no weights.
  EXPECT_EQ(
      refusal(one_rank("0GATHER 0F0@0 0I0@0 0RELEASE 0W0@0 0GATHER 0F1@0 0B1@0 0RELEASE 0REDUCE_SCATTER STEP"), -1),
      "");
}

TEST(Weights, resident) {
  EXPECT_EQ(refusal(one_rank("0RELEASE " + forward_backward + "0REDUCE STEP"), 0),
            "nothing else holds version 0 of the weights of stage 0");
  EXPECT_EQ(refusal(one_rank("0OFFLOAD 0RELOAD " + forward_backward + "0GATHER 0REDUCE STEP"), 6),
            "stage 0 has its weights whole: there is nothing to gather");
}

TEST(Weights, offloaded) {
  EXPECT_EQ(refusal(one_rank("0RELOAD " + forward_backward + "0OFFLOAD 0REDUCE STEP"), -1), "");
  EXPECT_EQ(refusal(one_rank("0RELOAD 0F0@0 0OFFLOAD 0B0@0 0F1@0 0B1@0 0REDUCE STEP"), 3),
            "the weights of stage 0 are offloaded: 0RELOAD has to come first");
  EXPECT_EQ(refusal(one_rank("0RELOAD 0RELOAD " + forward_backward + "0OFFLOAD 0REDUCE STEP"), 1),
            "version 0 of the weights of stage 0 is not offloaded");
  EXPECT_EQ(refusal(one_rank("0RELOAD " + forward_backward + "0REDUCE STEP"), 6),
            "STEP updates the weights of stage 0, which are not in their place");
  // Resident weights may leave for a while, but come back.
  EXPECT_EQ(refusal(one_rank("0F0@0 0B0@0 0OFFLOAD 0RELOAD 0F1@0 0B1@0 0REDUCE STEP"), -1), "");
  EXPECT_EQ(refusal(one_rank("0OFFLOAD 0RELOAD " + forward_backward + "0OFFLOAD 0REDUCE STEP"), 8),
            "STEP updates the weights of stage 0, which are not in their place");
}

TEST(Weights, one_version_for_a_microbatch) {
  // Updates in place, one a microbatch.
  EXPECT_EQ(refusal(one_rank("0F0@0 0B0@0 0REDUCE 0STEPv1 0F1v1@0 0B1v1@0 0REDUCE 0STEPv2"), -1), "");
  // Weight stashing: microbatch 1 ran forward with version 0, and goes back with it.
  auto const two_slots = [](std::string const& actions) {
    return parse_program("p3d-schedule 1 stages=1 ranks=1 microbatches=2 slots=2\nrank 0: " + actions);
  };
  std::string const stash = "0F0@0 0F1@1 0B0@0 0REDUCE 0STEPv1 ";
  EXPECT_EQ(refusal(two_slots(stash + "0B1@1 0REDUCE 0RELEASE 0STEPv2"), -1), "");
  EXPECT_EQ(refusal(two_slots(stash + "0B1v1@1 0REDUCE 0STEPv2"), 5),
            "runs with version 1 of the weights, but 0F1 ran with version 0");
  EXPECT_EQ(refusal(two_slots(stash + "0B1@1 0REDUCE 0STEPv2"), -1),
            "version 0 of the weights of stage 0 stays at the end: 0RELEASE is missing");
  EXPECT_EQ(refusal(two_slots(stash + "0RELEASE 0B1@1 0REDUCE 0STEPv2"), 6),
            "version 0 of the weights of stage 0 is gone: released, or overwritten by an update");
  EXPECT_EQ(refusal(two_slots("0F0v1@0 0B0v1@0 0REDUCE 0STEPv1 0F1v1@0 0B1v1@0 0REDUCE 0STEPv2"), 0),
            "version 1 of the weights of stage 0 is not made yet");
  EXPECT_EQ(refusal(one_rank("0F0@0 0I0@0 0W0v1@0 0REDUCE 0STEPv1 0F1v1@0 0B1v1@0 0REDUCE 0STEPv2"), 2),
            "runs with version 1 of the weights, but 0F0 ran with version 0");
}

TEST(Weights, updates_of_a_stage) {
  EXPECT_EQ(refusal(one_rank(forward_backward + "0REDUCE 0STEPv1"), -1), "");
  EXPECT_EQ(refusal(one_rank(forward_backward + "0STEPv1 0REDUCE"), 4),
            "STEP before the last gradients of stage 0 are reduced");
  EXPECT_EQ(refusal(one_rank("0F0@0 0B0@0 0REDUCE 0STEPv2 0F1@0 0B1@0 0REDUCE 0STEPv1"), 3),
            "makes version 2 of the weights of stage 0, whose newest is 0");
  EXPECT_EQ(refusal(one_rank(forward_backward + "0REDUCE 0STEPv1 0STEPv2"), 6),
            "STEP of stage 0 without new gradients");
  EXPECT_EQ(refusal(one_rank("0F0@0 0B0@0 0REDUCE 0STEPv1 0F1v1@0 0B1v1@0 0REDUCE"), -1),
            "stage 0 ends with gradients that no STEP has used");
  EXPECT_EQ(refusal(one_rank(forward_backward + "0REDUCE 0REDUCE 0STEPv1"), 5),
            "stage 0 has no gradients that were not reduced yet");
  EXPECT_EQ(refusal(one_rank(forward_backward + "0REDUCE 0STEPv1 STEP"), 6),
            "STEP updates stages that are updated by themselves too");
  EXPECT_EQ(refusal(one_rank("0F0v3@0 0B0@0 0F1@0 0B1@0 0REDUCE STEP"), 0),
            "version 3 of the weights of stage 0, which is updated 0 times");
  Program const two = parse_program(
      "p3d-schedule 1 stages=2 ranks=1 microbatches=1 slots=1,1\nrank 0: 0F0@0 1F0@0 1B0@0 0B0@0 0REDUCE 1REDUCE "
      "0STEPv1");
  EXPECT_EQ(refusal(two, -1), "1 of the rank's 2 stages are updated, the others never");
}

TEST(Weights, reduce_scatter_in_parts) {
  EXPECT_EQ(refusal(one_rank("0F0@0 0B0@0 0REDUCE_SCATTER 0F1@0 0B1@0 0REDUCE_SCATTER STEP"), -1), "");
  EXPECT_EQ(refusal(one_rank("0F0@0 0B0@0 0REDUCE_SCATTER 0F1@0 0B1@0 STEP"), 5),
            "STEP before the last gradients of stage 0 are reduced");
  EXPECT_EQ(refusal(one_rank(forward_backward + "0REDUCE_SCATTER 0REDUCE_SCATTER STEP"), 5),
            "stage 0 has no gradients that were not reduced yet");
  EXPECT_EQ(refusal(one_rank("0F0@0 0B0@0 0REDUCE_SCATTER 0F1@0 0B1@0 0REDUCE STEP"), 5),
            "stage 0 has both REDUCE and REDUCE_SCATTER");
}

// The pass shards every schedule; each of its weight actions is needed; the forward-only programs that follow bring
// their weights too.
TEST(Weights, the_pass_shards_every_schedule) {
  Execution const executor{true, any_number};
  for (auto const* g : generators())
    for (int p : {1, 2, 4}) {
      int const m = std::max(2 * p, g->smallest_microbatches(p));
      Program const whole = complete(generate(g->name, {p, m, 0, 0}));
      for (auto every : {Every::step, Every::microbatch}) {
        Program sharded = whole;
        shard_weights(sharded, {.gather = every});
        auto const found = validate(sharded, executor);
        ASSERT_TRUE(found.empty()) << g->name << ": " << found.front().message;
        EXPECT_EQ(parse_program(to_text(sharded)), sharded);
        ValidProgram const forward = forward_only(ValidProgram(sharded, executor), m);
        for (auto home : weight_homes(forward)) EXPECT_EQ(home, WeightHome::sharded);
        Program offloaded = whole;
        shard_weights(offloaded, {.gather = every, .ahead = 1, .offloads = true});
        EXPECT_TRUE(validate(offloaded, executor).empty()) << g->name;
        for (auto home : weight_homes(offloaded)) EXPECT_EQ(home, WeightHome::offloaded);
        auto const number = [](Program const& program, Op op) {
          auto const& actions = program.ranks[0];
          return std::count_if(actions.begin(), actions.end(), [&](auto const& a) { return a.op == op; });
        };
        EXPECT_EQ(number(offloaded, Op::reload_weights), number(sharded, Op::gather_weights)) << g->name;
        EXPECT_EQ(number(offloaded, Op::reduce_gradients), number(whole, Op::reduce_gradients)) << g->name;
        if (p != 2) continue;
        for (std::size_t r = 0; r < sharded.ranks.size(); ++r)
          for (std::size_t i = 0; i < sharded.ranks[r].size(); ++i) {
            if (!moves_weights(sharded.ranks[r][i].op)) continue;
            Program lacking = sharded;
            lacking.ranks[r].erase(lacking.ranks[r].begin() + static_cast<std::ptrdiff_t>(i));
            EXPECT_FALSE(validate(lacking, executor).empty()) << g->name << " without action " << i;
          }
      }
    }
}

// Evaluation and sampling share the memory of training's whole weights: no two stages are whole together that are not
// in training, and none stays between two of its forwards where it does not in training.
TEST(Weights, forward_only_programs_hold_no_more_than_training) {
  Execution const executor{true, any_number};
  int each_use = 0;
  for (auto const* g : generators())
    for (int p : {1, 2, 4})
      for (int parts : {1, 3}) {
        int const m = std::max(2 * p, g->smallest_microbatches(p));
        auto compute = generate(g->name, {p, m, 0, 0});
        compute = refine(compute, std::vector<int>(static_cast<std::size_t>(compute.num_stages), parts));
        compute.tied = compute.num_stages > 1 && compute.stage_rank.front() == compute.stage_rank.back();
        Program const whole = complete(compute);
        for (auto const& sharding :
             {Sharding{.gather = Every::microbatch, .ahead = 1}, Sharding{.gather = Every::microbatch},
              Sharding{.gather = Every::microbatch, .ahead = 1, .offloads = true}, Sharding{.ahead = 1}}) {
          Program training = whole;
          shard_weights(training, sharding);
          auto const there = whole_weights(training);
          std::vector<double> const one(static_cast<std::size_t>(training.num_stages), 1.0);
          auto const most = peak_weight_bytes(training, one);
          for (int forwards : {1, m}) {
            ValidProgram const forward = forward_only(ValidProgram(training, executor), forwards);
            auto const here = whole_weights(forward);
            auto const found = peak_weight_bytes(forward, one);
            for (std::size_t r = 0; r < most.size(); ++r)
              EXPECT_LE(found[r], most[r]) << g->name << ", " << p << " ranks of " << parts << " parts, " << forwards;
            for (std::size_t a = 0; a < here.size(); ++a)
              for (std::size_t b = 0; b < a; ++b)
                if (training.stage_rank[a] == training.stage_rank[b] && meet(here[a], here[b])) {
                  EXPECT_TRUE(meet(there[a], there[b])) << g->name << ": stages " << a << " and " << b;
                }
          }
          if (sharding.gather == Every::microbatch && parts > 1) {
            EXPECT_LE(most[0], training.tied ? 3 : 2);
            ++each_use;
          }
        }
      }
  EXPECT_GE(each_use, 50);
}

TEST(Weights, intervals_that_meet) {
  std::vector<LiveInterval> const a{{0, 2}, {6, 8}};
  EXPECT_TRUE(meet(a, {{2, 3}}));
  EXPECT_TRUE(meet(a, {{3, 5}, {7, 9}}));
  EXPECT_TRUE(meet({{0, 9}}, a));
  EXPECT_FALSE(meet(a, {{3, 5}, {9, 10}}));
  EXPECT_FALSE(meet(a, {}));
}

TEST(Weights, memory_and_time_in_the_simulator) {
  auto costs = p3d::plan::PipelineCosts::uniform(4, {1, 1, 1});
  costs.weight_bytes = {10, 20, 30, 40};
  costs.gather = {1, 1, 1, 1};
  Program program = complete(generate("interleaved_1f1b", {2, 4, 2, 0}));  // stages 0 and 2 on rank 0
  auto const resident = p3d::plan::simulate(program, costs);
  EXPECT_EQ(resident.ranks[0].peak_weight_bytes, 40);
  EXPECT_EQ(resident.ranks[1].peak_weight_bytes, 60);
  Program sharded = program;
  shard_weights(sharded, {.gather = Every::microbatch});
  auto const gathered = p3d::plan::simulate(sharded, costs);
  EXPECT_EQ(gathered.ranks[0].peak_weight_bytes, 30);  // one stage at a time
  EXPECT_EQ(gathered.ranks[1].peak_weight_bytes, 40);
  // 2 stages x 4 microbatches x (F and B), but for those that follow one of their stage, and 2 reduce-scatters.
  auto const& list = program.ranks[0];
  int gathers = 0, before = -1;
  for (auto const& a : list)
    if (reads_weights(a.op)) gathers += std::exchange(before, a.stage) != a.stage ? 1 : 0;
  EXPECT_EQ(gathers, 11);
  EXPECT_DOUBLE_EQ(gathered.ranks[0].other - resident.ranks[0].other, gathers + 2);
}

TEST(Weights, kept_versions_take_memory) {
  Program const stash = parse_program(
      "p3d-schedule 1 stages=1 ranks=1 microbatches=2 slots=2\nrank 0: 0F0@0 0F1@1 0B0@0 0REDUCE 0STEPv1 0B1@1 "
      "0REDUCE 0RELEASE 0STEPv2");
  EXPECT_EQ(peak_weight_bytes(stash, {8}), std::vector<double>{16});
}

TEST(Weights, a_file_with_weight_actions_is_complete) {
  EXPECT_THROW(parse_schedule_file("0GATHER,0F0,0B0,0RELEASE\n"), p3d::base::Error);
  Program const p = parse_schedule_file("0GATHER,0F0,0B0,0RELEASE,0REDUCE_SCATTER,STEP\n");
  EXPECT_TRUE(validate(p).empty()) << to_text(p);
}
