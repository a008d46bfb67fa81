// SPDX-License-Identifier: Apache-2.0
// A record made of a simulation must give back the costs that it was simulated with.

#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <report/trace_report.hpp>

#include <gtest/gtest.h>

#include <thread>

using namespace p3d;
using report::PipelineRecord;
using engine::Recorder;
using schedule::Op;

namespace {

/// What recorders would hold if every step ran as simulated; the first one `slow` times slower.
PipelineRecord record_of(plan::Simulation const& simulation, int steps, double slow) {
  PipelineRecord record;
  record.ranks.resize(simulation.ranks.size(), std::vector<Recorder::Step>(static_cast<std::size_t>(steps)));
  double begin = 1e6;
  for (int s = 0; s < steps; ++s) {
    double const factor = s == 0 ? slow : 1.0;
    for (auto& rank : record.ranks) rank[static_cast<std::size_t>(s)].number = s + 1;
    for (auto const& e : simulation.timeline.events)
      record.ranks[static_cast<std::size_t>(e.rank)][static_cast<std::size_t>(s)].events.push_back(
          {begin + factor * e.start, begin + factor * e.end, e.action, 0});
    begin += factor * simulation.step_time;
  }
  return record;
}

plan::PipelineCosts uneven_costs(schedule::Program const& program) {
  plan::PipelineCosts costs = plan::PipelineCosts::uniform(program.num_stages);
  for (int s = 0; s < program.num_stages; ++s)
    costs.stages[static_cast<std::size_t>(s)] = {1.0 + 0.125 * s, 1.25 + 0.0625 * s, 0.75 - 0.03125 * s};
  costs.latency = 0.25;
  costs.send = 0.03125;
  costs.receive = 0.015625;
  costs.reduce.assign(costs.stages.size(), 0.5);
  costs.step = 2.0;
  return costs;
}

/// Whether a backward of the stage comes in two parts at least once: then the report knows both.
bool is_divided(schedule::Program const& program, int stage) {
  for (auto const& a : program.ranks[static_cast<std::size_t>(schedule::rank_of(program, stage))])
    if (a.op == Op::backward_weight && a.stage == stage) return true;
  return false;
}

}  // namespace

TEST(TraceReport, gives_back_the_costs_of_every_schedule) {
  int divided = 0;  // stages whose backward came in two parts
  for (schedule::Generator const* g : schedule::generators()) {
    schedule::ValidProgram const program(schedule::complete(schedule::generate(g->name, {4, 9, 0})), engine::execution);
    auto const costs = uneven_costs(program);
    auto const simulated = plan::simulate(program, costs, engine::execution, true);
    auto const record = record_of(simulated, 4, 3.0);
    auto const found = report::report(std::string(g->name), program, {record, record}, costs.latency, 100, 1);
    EXPECT_EQ(found.steps, 3);
    for (std::size_t s = 0; s < costs.stages.size(); ++s) {
      auto const &a = found.costs.stages[s], &b = costs.stages[s];
      EXPECT_NEAR(a.forward, b.forward, 1e-9) << g->name;
      EXPECT_NEAR(a.whole(), b.whole(), 1e-9) << g->name;
      if (is_divided(program, static_cast<int>(s))) {
        ++divided;
        EXPECT_NEAR(a.input, b.input, 1e-9) << g->name;
        EXPECT_NEAR(a.weight, b.weight, 1e-9) << g->name;
      }
      EXPECT_NEAR(found.costs.reduce[s], costs.reduce[s], 1e-9);
    }
    EXPECT_NEAR(found.costs.step, costs.step, 1e-9);
    EXPECT_NEAR(found.costs.send, costs.send, 1e-9);
    EXPECT_NEAR(found.costs.receive, costs.receive, 1e-9);
    EXPECT_NEAR(found.simulated.bubble(), simulated.bubble(), 1e-9) << g->name;
    EXPECT_NEAR(found.replayed_bubble, simulated.bubble(), 1e-9) << g->name;
    EXPECT_NEAR(found.measured_bubble, simulated.bubble(), 1e-9) << g->name;
    EXPECT_NEAR(found.measured_makespan, simulated.makespan, 1e-6) << g->name;
    ASSERT_EQ(found.timelines.size(), 3u);  // two pipelines and the simulated step
    EXPECT_EQ(found.timelines[0].events.size(), 4 * simulated.timeline.events.size());
    EXPECT_EQ(found.drawn.size(), 2u);
    EXPECT_NE(report::summary(found, program).find("difference +0.0 points"), std::string::npos)
        << report::summary(found, program);
  }
  EXPECT_GE(divided, 2 * 4 + 4 * 8) << "zb_h1 and zb_h2; zb_v, v_half, v_min and dualpipe_v have two stages per rank";
}

// Microbatches of different length: the mean cannot say it, every action's own time can. Then 0.125 s are lost before
// every action.
TEST(TraceReport, tells_uneven_times_from_messages) {
  schedule::ValidProgram const program(schedule::complete(schedule::generate("zb_v", {4, 8, 0})), engine::execution);
  auto costs = uneven_costs(program);
  for (auto const& cost : costs.stages)
    for (int m = 0; m < program->num_microbatches; ++m) {
      double const factor = m % 3 == 0 ? 1.5 : 0.75;
      costs.microbatches.push_back({factor * cost.forward, factor * cost.input, factor * cost.weight});
    }
  auto const simulated = plan::simulate(program, costs, engine::execution, true);
  auto record = record_of(simulated, 3, 1.0);
  auto const found = report::report("zb_v", program, {record}, costs.latency, 100, 1);
  EXPECT_NEAR(found.replayed_bubble, simulated.bubble(), 1e-9);
  EXPECT_NEAR(found.measured_bubble, simulated.bubble(), 1e-9);
  EXPECT_GT(found.replayed_bubble, found.simulated.bubble() + 0.01);
  for (auto& rank : record.ranks)
    for (auto& step : rank)
      for (auto& e : step.events) e.end -= std::min(0.125, e.end - e.begin);
  auto const late = report::report("zb_v", program, {record}, costs.latency, 100, 1);
  EXPECT_GT(late.measured_bubble, late.replayed_bubble + 0.02);
}

// A stage that takes longer than the others is named as what they wait for.
TEST(TraceReport, names_the_busiest_rank) {
  schedule::ValidProgram const program(schedule::complete(schedule::generate("1f1b", {4, 8, 0})), engine::execution);
  auto costs = plan::PipelineCosts::uniform(4, {1, 1, 1});
  costs.stages[2] = {2, 2, 2};
  auto const text = [&] {
    auto const record = record_of(plan::simulate(program, costs, engine::execution, true), 3, 1.0);
    return report::summary(report::report("1f1b", program, {record}, costs.latency, 100, 1), program);
  };
  EXPECT_NE(text().find("the busiest is pipeline rank 2, with 1.60 of the mean work"), std::string::npos) << text();
  costs.stages[2] = costs.stages[1];
  EXPECT_EQ(text().find("busiest"), std::string::npos) << text();
}

TEST(TraceReport, one_step_counts_though_it_is_the_first) {
  schedule::ValidProgram const program(schedule::complete(schedule::one_f_one_b(3, 4)), engine::execution);
  auto const simulated = plan::simulate(program, plan::PipelineCosts::uniform(3), engine::execution, true);
  auto const found = report::report("1f1b", program, {record_of(simulated, 1, 1.0)}, 0, 0, 1);
  EXPECT_EQ(found.steps, 1);
  EXPECT_NEAR(found.measured_bubble, simulated.bubble(), 1e-9);
}

TEST(Recorder, parts_an_action_at_its_waits_and_keeps_the_last_steps) {
  auto const pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  Recorder recorder(2);
  for (int step = 1; step <= 3; ++step) {
    recorder.begin_step(step);
    recorder.begin_action();
    double const begin = Recorder::now();
    pause();
    recorder.waited({Op::recv_activation, 1, 4, 0}, begin);
    pause();
    recorder.end_action({Op::forward, 1, 4, 0});
    recorder.begin_action();
    pause();
    double const again = Recorder::now();
    pause();
    recorder.waited({Op::optimizer_step}, again);
    pause();
    recorder.end_action({Op::optimizer_step});
  }
  ASSERT_EQ(recorder.steps().size(), 2u);
  EXPECT_EQ(recorder.steps().front().number, 2);
  for (auto const& step : recorder.steps()) {
    std::vector<std::pair<Op, bool>> seen;
    double last = 0;
    for (auto const& e : step.events) {
      seen.emplace_back(e.action.op, e.waits != 0);
      EXPECT_GE(e.begin, last);
      EXPECT_GE(e.end - e.begin, 1e-3);
      last = e.end;
    }
    EXPECT_EQ(seen, (std::vector<std::pair<Op, bool>>{{Op::recv_activation, true},
                                                      {Op::forward, false},
                                                      {Op::optimizer_step, false},
                                                      {Op::optimizer_step, true},
                                                      {Op::optimizer_step, false}}));
  }
}

// A round of messages may wait between two actions, and the end of a step waits for its sends: no action is busy there.
TEST(Recorder, a_wait_between_actions_belongs_to_none) {
  auto const pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  Recorder recorder(1);
  recorder.begin_step(1);
  for (int m = 0; m < 2; ++m) {
    recorder.begin_action();
    recorder.end_action({Op::forward, 1, m, 0});
    pause();
    double const begin = Recorder::now();
    recorder.waited({Op::send_activation, 1, -1, 0}, begin);
  }
  recorder.begin_action();
  recorder.end_pair({Op::forward, 1, 2, 0}, 0.0, {Op::backward, 1, 0, 0}, 0.0);
  pause();
  recorder.waited({Op::optimizer_step}, Recorder::now());
  int busy = 0;
  for (auto const& e : recorder.steps().front().events) {
    if (e.waits != 0) continue;
    EXPECT_GE(e.action.microbatch, 0);
    ++busy;
  }
  EXPECT_EQ(busy, 4);
}
