// SPDX-License-Identifier: Apache-2.0
// The vocabulary divided over the ranks of a pipeline.

#include <p3d/base/error.hpp>
#include <p3d/plan/simulator.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/schedule.hpp>
#include <p3d/schedule/valid_program.hpp>
#include <p3d/schedule/vocabulary.hpp>
#include <p3d/schedule/weights.hpp>

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <random>

using namespace p3d::schedule;
namespace plan = p3d::plan;

namespace {

constexpr Execution as_executed{true, std::numeric_limits<int>::max()};
constexpr Execution eager{false, std::numeric_limits<int>::max()};

/// Stages of `layers` forwards of length 1 in all, and a head of `head` of them.
struct Model {
  double layers = 3, head = 5.45;
};

VocabularyTimes times_of(Program const& p, Model const& model) {
  double const each = model.layers * p.num_ranks / p.num_stages, part = model.head / p.num_ranks;
  VocabularyTimes t;
  t.stages.assign(static_cast<std::size_t>(p.num_stages), {each, each, each});
  t.head_forward = part;
  t.head_backward = 2 * part;
  return t;
}

plan::PipelineCosts costs_of(VocabularyTimes const& t) {
  plan::PipelineCosts costs;
  for (auto const& s : t.stages) costs.stages.push_back({s.forward, s.input, s.weight});
  costs.vocabulary.head_forward = t.head_forward;
  costs.vocabulary.head_backward = t.head_backward;
  return costs;
}

Program divided(Program compute, VocabularyTimes const& times, VocabularyOrder order, int ahead = 1,
                bool tied = false) {
  divide_vocabulary(compute, times, order, ahead, tied);
  return complete(std::move(compute), 1, 1);
}

/// A rank's actions of one kind, as text.
std::vector<std::string> of_kind(std::vector<Action> const& list, bool (*wanted)(Op)) {
  std::vector<std::string> out;
  for (Action const& a : list)
    if (wanted(a.op)) out.push_back(to_string({a.op, a.stage, a.microbatch}));
  return out;
}
bool is_forward(Op op) { return op == Op::forward; }
bool is_weight(Op op) { return op == Op::backward_weight; }

Program example(int microbatches = 5) {
  auto compute = generate("1f1b", {3, microbatches});
  return divided(compute, times_of(compute, {}), VocabularyOrder::forwards_first);
}
Action* find(Program& p, int rank, Op op, int microbatch) {
  auto& list = p.ranks[static_cast<std::size_t>(rank)];
  auto const it =
      std::find_if(list.begin(), list.end(), [&](auto const& a) { return a.op == op && a.microbatch == microbatch; });
  return it == list.end() ? nullptr : &*it;
}
std::string first_error(Program const& p) {
  auto const found = validate(p, as_executed);
  return found.empty() ? "valid" : found.front().message;
}

}  // namespace

TEST(Vocabulary, every_schedule_runs_to_its_end_and_keeps_its_orders) {
  for (Generator const* g : generators())
    for (int p : {1, 2, 3, 4, 8})
      for (int m : {g->smallest_microbatches(p), std::max(g->smallest_microbatches(p), 2 * p), 3 * p + 1})
        for (double head : {0.1, 5.0, 40.0})
          for (auto order : {VocabularyOrder::forwards_first, VocabularyOrder::backwards_first}) {
            if (m < g->smallest_microbatches(p)) continue;
            auto const compute = generate(g->name, {p, m, 0});
            auto const times = times_of(compute, {2, head});
            auto const program = divided(compute, times, order);
            SCOPED_TRACE(std::string(g->name) + " p " + std::to_string(p) + " m " + std::to_string(m));
            ASSERT_EQ(first_error(program), "valid");
            ASSERT_TRUE(validate(program, eager).empty());
            for (std::size_t r = 0; r < program.ranks.size(); ++r)
              for (auto* kind : {&is_forward, &makes_input_gradient, &is_weight})
                ASSERT_EQ(of_kind(program.ranks[r], *kind), of_kind(compute.ranks[r], *kind));
            ValidProgram const valid(program, as_executed);
            EXPECT_EQ(forward_only(valid, 1)->ranks.size(), program.ranks.size());
            forward_only(valid, m);
            plan::simulate(program, costs_of(times), as_executed);
          }
}

// T and G add to one matrix where the embedding is tied: in one order, whatever the times are.
TEST(Vocabulary, no_time_decides_the_order_of_sums_of_a_tied_matrix) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> factor(0.0, 3.0);
  int free_orders_differ = 0;
  for (Generator const* g : generators())
    for (int p : {2, 3, 4}) {
      auto const compute = generate(g->name, {p, std::max(g->smallest_microbatches(p), 3 * p + 1), 0});
      auto const sums = [&](VocabularyTimes const& times, VocabularyOrder order, bool tied) {
        auto const program = divided(compute, times, order, 1, tied);
        EXPECT_EQ(first_error(program), "valid");
        std::vector<std::vector<std::string>> out;
        for (auto const& list : program.ranks) out.push_back(of_kind(list, makes_vocabulary_gradient));
        return out;
      };
      auto const even = times_of(compute, {});
      auto const tied = sums(even, VocabularyOrder::forwards_first, true);
      auto const untied = sums(even, VocabularyOrder::forwards_first, false);
      for (int trial = 0; trial < 8; ++trial) {
        auto times = even;
        times.head_forward *= factor(random);
        times.head_backward *= factor(random);
        times.exchange = factor(random);
        for (auto& s : times.stages) s.input *= 1 + factor(random);
        for (auto order : {VocabularyOrder::forwards_first, VocabularyOrder::backwards_first}) {
          EXPECT_EQ(sums(times, order, true), tied) << g->name << " p " << p;
          free_orders_differ += sums(times, order, false) != untied;
        }
      }
    }
  EXPECT_GT(free_orders_differ, 50);
}

// dualpipe_v has whole and split backwards on one stage: with two predicted orders, W2 and B3 of a stage changed
// places.
TEST(Vocabulary, no_time_decides_the_order_of_sums_of_a_stage) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> factor(0.0, 3.0);
  for (Generator const* g : generators())
    for (int p : {2, 4, 6}) {
      auto const compute = generate(g->name, {p, std::max(g->smallest_microbatches(p), 2 * p), 0});
      auto const sums = [](Program const& program) {
        std::vector<std::vector<int>> out(static_cast<std::size_t>(program.num_stages));
        for (auto const& list : program.ranks)
          for (Action const& a : list)
            if (makes_weight_gradient(a.op)) out[static_cast<std::size_t>(a.stage)].push_back(a.microbatch);
        return out;
      };
      for (int trial = 0; trial < 8; ++trial) {
        auto times = times_of(compute, {});
        for (auto& s : times.stages) s.input *= 1 + factor(random);
        for (auto& s : times.stages) s.weight *= factor(random);
        for (auto order : {VocabularyOrder::forwards_first, VocabularyOrder::backwards_first}) {
          auto const program = divided(compute, times, order, 1, false);
          EXPECT_EQ(first_error(program), "valid");
          EXPECT_EQ(sums(program), sums(compute)) << g->name << " p " << p;
        }
      }
    }
}

// What a bubble is without a vocabulary and with even stages; S and T fill a part of it.
TEST(Vocabulary, one_f_one_b_is_busier_than_with_even_stages_and_no_vocabulary) {
  struct Case {
    int p, m;
    Model model;
  };
  for (Case const& c : {Case{2, 8, {6, 5.45}},
                        {4, 16, {3, 5.45}},
                        {4, 32, {3, 5.45}},
                        {8, 32, {2, 5.45}},
                        {8, 64, {2, 10}},
                        {16, 64, {2, 10}}}) {
    auto const compute = generate("1f1b", {c.p, c.m});
    auto const times = times_of(compute, c.model);
    auto const result =
        plan::simulate(divided(compute, times, VocabularyOrder::forwards_first), costs_of(times), as_executed);
    double const even = static_cast<double>(c.p - 1) / (c.m + c.p - 1);
    EXPECT_LT(result.bubble(), even) << c.p << " ranks, " << c.m << " microbatches";
    // One microbatch in flight more than 1F1B has.
    for (int r = 0; r < c.p; ++r) EXPECT_LE(result.ranks[static_cast<std::size_t>(r)].peak_live, c.p - r + 1);
  }
}

TEST(Vocabulary, all_work_is_counted_once) {
  auto const compute = generate("zb_h1", {4, 12});
  auto times = times_of(compute, {});
  times.embed = 0.25;
  auto costs = costs_of(times);
  costs.vocabulary.embed_forward = costs.vocabulary.embed_backward = 0.25;
  auto const result = plan::simulate(divided(compute, times, VocabularyOrder::backwards_first), costs, as_executed);
  EXPECT_NEAR(result.busy(), 12 * (4 * 9.0 + 3 * 5.45 + 4 * 0.5), 1e-9);
}

TEST(Vocabulary, exchanges_take_time) {
  auto const compute = generate("1f1b", {2, 4});
  auto const times = times_of(compute, {});
  auto const program = divided(compute, times, VocabularyOrder::forwards_first);
  auto costs = costs_of(times);
  double const without = plan::simulate(program, costs, as_executed).makespan;
  costs.vocabulary.broadcast = costs.vocabulary.sum = costs.vocabulary.gather = 100;
  // E, F, S, T, B and G of a microbatch follow each other; of the last, G is within the makespan.
  EXPECT_GT(plan::simulate(program, costs, as_executed).makespan, without + 400);
}

TEST(Vocabulary, text_round_trips) {
  auto const program = example();
  EXPECT_EQ(parse_program(to_text(program)), program);
  EXPECT_EQ(to_string({Op::head_forward, 1, 4, 0}), "1S4@0");
}

TEST(Vocabulary, errors_are_named) {
  auto const good = example();
  ASSERT_EQ(first_error(good), "valid");
  {
    auto p = good;
    *find(p, 1, Op::head_backward, 2) = {Op::head_forward, 1, 2, 0};
    EXPECT_THAT(first_error(p), testing::HasSubstr("1S of microbatch 3 is due"));
  }
  {
    auto p = good;
    auto& list = p.ranks[2];
    list.erase(list.begin() + (find(p, 2, Op::embed_backward, 4) - list.data()));
    EXPECT_THAT(first_error(p), testing::HasSubstr("2G of microbatch 4 is missing"));
  }
  {
    auto p = good;
    find(p, 0, Op::head_forward, 1)->slot = 0;
    EXPECT_THAT(first_error(p), testing::HasSubstr("slots are used in turn"));
  }
  {
    auto p = good;
    std::swap(*find(p, 0, Op::head_forward, 1), *find(p, 0, Op::head_forward, 2));
    EXPECT_THAT(first_error(p), testing::HasSubstr("is due"));
  }
  {
    auto p = good;
    std::swap(*find(p, 0, Op::head_forward, 1), *find(p, 0, Op::head_backward, 1));
    EXPECT_THAT(first_error(p), testing::HasSubstr("T runs before S"));
  }
  {
    auto p = good;
    p.divides_vocabulary = false;
    EXPECT_THAT(first_error(p), testing::HasSubstr("the vocabulary is not divided"));
  }
  {  // a rank reduces before its last T
    auto p = good;
    auto& list = p.ranks[1];
    auto const reduce =
        std::find_if(list.begin(), list.end(), [](auto const& a) { return a.op == Op::reduce_gradients; });
    Action const a = *reduce;
    list.erase(reduce);
    list.insert(list.begin() + 1, a);
    EXPECT_THAT(first_error(p), testing::HasSubstr("before the last of its backward actions"));
  }
}

/// Moves the action that comes later in a rank's list to right before the other one.
void move_before(Program& p, int rank, Action const* later, Action const* other) {
  auto& list = p.ranks[static_cast<std::size_t>(rank)];
  auto const from = list.begin() + (later - list.data()), to = list.begin() + (other - list.data());
  ASSERT_LT(to, from);
  std::rotate(to, from, from + 1);
}

TEST(Vocabulary, buffers_are_not_overwritten_and_not_read_too_early) {
  auto const good = example();
  int const last = 2;
  {
    auto p = good;
    move_before(p, 0, find(p, 0, Op::forward, 0), find(p, 0, Op::embed_forward, 0));
    EXPECT_THAT(first_error(p), testing::HasSubstr("runs before the rank's part of the embedding, E0"));
  }
  {
    auto p = good;
    move_before(p, last, find(p, last, Op::backward, 0), find(p, last, Op::head_backward, 0));
    EXPECT_THAT(first_error(p), testing::HasSubstr("runs before the rank's part of its gradient, T0"));
  }
  {
    auto p = good;
    for (int m : {1, 2})
      for (Op op : {Op::recv_activation, Op::forward, Op::head_forward, Op::head_backward})
        if (auto* const a = find(p, last, op, m); a > find(p, last, Op::backward, 0))
          move_before(p, last, a, find(p, last, Op::backward, 0));
    EXPECT_THAT(first_error(p), testing::HasSubstr("overwrites what 2B0 has not read"));
  }
  {
    auto p = good;
    auto* const first = find(p, last, Op::head_backward, 0);
    for (int m : {1, 2}) {
      for (Op op : {Op::recv_activation, Op::forward})
        if (auto* const a = find(p, last, op, m); a > first)
          move_before(p, last, a, find(p, last, Op::head_backward, 0));
    }
    EXPECT_THAT(first_error(p), testing::HasSubstr("overwrites what T0 has not read"));
  }
  {
    auto p = good;
    for (int m : {2, 3})
      if (auto* const e = find(p, 0, Op::embed_forward, m); e > find(p, 0, Op::forward, 0))
        move_before(p, 0, e, find(p, 0, Op::forward, 0));
    EXPECT_THAT(first_error(p), testing::HasSubstr("overwrites what 0F0 has not read"));
  }
  {
    auto p = example(3);
    for (int m : {1, 2})
      for (Op op : {Op::recv_gradient, Op::backward})
        if (auto* const a = find(p, 0, op, m); a > find(p, 0, Op::embed_backward, 0))
          move_before(p, 0, a, find(p, 0, Op::embed_backward, 0));
    EXPECT_THAT(first_error(p), testing::HasSubstr("overwrites what G0 has not read"));
  }
}

// Rank 0 wants the output of a forward that cannot run before rank 0's own.
TEST(Vocabulary, a_circle_is_a_deadlock) {
  auto p = example();
  auto& list = p.ranks[0];
  auto const s = list.begin() + (find(p, 0, Op::head_forward, 0) - list.data());
  std::rotate(list.begin(), s, s + 1);
  EXPECT_THAT(first_error(p), testing::HasSubstr("waits until all ranks take part in OUTPUT of microbatch 0"));
}

// A file of compute actions, or one without slots, leaves the buffers of E, S, T and G to p3d.
TEST(Vocabulary, a_file_needs_no_slots) {
  auto const good = example();
  EXPECT_EQ(to_text(parse_schedule_file(to_text(good))), to_text(good));
  auto const read = parse_schedule_file(to_csv(good));
  EXPECT_TRUE(read.divides_vocabulary);
  EXPECT_EQ(first_error(read), "valid");
  for (std::size_t r = 0; r < good.ranks.size(); ++r)
    for (std::size_t i = 0; i < good.ranks[r].size(); ++i)
      if (is_vocabulary(good.ranks[r][i].op)) {
        EXPECT_EQ(read.ranks[r][i], good.ranks[r][i]);
      }
}

// Read backwards from each sum: the nearest B or W and the nearest T or G are those that complete it.
TEST(Vocabulary, the_last_actions_before_a_sum_complete_its_gradients) {
  auto const build = [](bool divides) {
    auto p = generate("interleaved_1f1b", {2, 4, 2});
    if (divides) divide_vocabulary(p, times_of(p, {}), VocabularyOrder::forwards_first);
    return complete(std::move(p), 1, 1);
  };
  for (bool divides : {false, true}) {
    auto const p = build(divides);
    for (int rank = 0; rank < p.num_ranks; ++rank) {
      auto const& actions = p.ranks[static_cast<std::size_t>(rank)];
      std::vector<bool> wanted(actions.size(), false);
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (!reduces(actions[i].op)) continue;
        bool stage = false, part = !divides || actions[i].stage != first_stage_of(p, rank);
        for (std::size_t j = i; j-- > 0;) {
          if (actions[j].stage != actions[i].stage) continue;
          if (!stage && makes_weight_gradient(actions[j].op)) stage = wanted[j] = true;
          if (!part && makes_vocabulary_gradient(actions[j].op)) part = wanted[j] = true;
        }
      }
      EXPECT_EQ(completes_gradients(p, rank, actions), wanted) << to_text(p);
      EXPECT_NE(std::count(wanted.begin(), wanted.end(), true), 0);
    }
  }
}

// A part to which nothing was added is complete at its sum: what was summed before may start anew.
TEST(Vocabulary, a_sum_completes_a_part_to_which_nothing_was_added) {
  Program p;
  p.num_ranks = p.num_stages = 2;
  p.stage_rank = {0, 1};
  p.divides_vocabulary = true;
  std::vector<Action> const actions{{Op::backward, 0, 0},
                                    {Op::embed_backward, 0, 0},
                                    {Op::reduce_gradients, 0},
                                    {Op::backward, 0, 1},
                                    {Op::reduce_gradients, 0}};
  EXPECT_EQ(completes_gradients(p, 0, actions), (std::vector<bool>{true, true, false, true, true}));
}

// memory.reduce = "microbatch": a sum for each B or W; T and G add to the next one, and all is summed at the end.
TEST(Vocabulary, sums_of_each_microbatch_leave_nothing_out) {
  int behind = 0;
  for (Generator const* g : generators())
    for (int p : {2, 3, 4}) {
      Program compute = generate(g->name, {p, 3 * p, 0});
      auto const times = times_of(compute, {});
      for (auto order : {VocabularyOrder::forwards_first, VocabularyOrder::backwards_first}) {
        Program program = divided(compute, times, order);
        shard_weights(program, {.gather = Every::microbatch, .reduce = Every::microbatch});
        EXPECT_EQ(first_error(program), "valid") << g->name;
        for (int rank = 0; rank < p; ++rank) {
          int const stage = first_stage_of(program, rank);
          int sums = 0, backwards = 0;
          bool summed = true, part_last = false;
          for (Action const& a : program.ranks[static_cast<std::size_t>(rank)]) {
            if (a.stage != stage) continue;
            backwards += makes_weight_gradient(a.op);
            if (makes_weight_gradient(a.op) || makes_vocabulary_gradient(a.op)) {
              summed = false;
              part_last = makes_vocabulary_gradient(a.op);
            }
            if (a.op != Op::reduce_scatter_gradients) continue;
            ++sums;
            summed = true;
          }
          EXPECT_TRUE(summed) << g->name << ", rank " << rank;
          EXPECT_EQ(sums, backwards) << g->name << ", rank " << rank;
          behind += part_last;
        }
      }
    }
  EXPECT_GT(behind, 10) << "often G comes last";
}
