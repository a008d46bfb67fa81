// SPDX-License-Identifier: Apache-2.0
// What actions need and give, as text: "needs 1SEND_B0" is the message that is sent there, "gives SUM2" an exchange of
// microbatch 2, "copy0" the first copy.

#include "programs.hpp"

#include <p3d/schedule/graph.hpp>
#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/valid_program.hpp>

#include <gtest/gtest.h>

#include <string>

using namespace p3d::schedule;
using namespace p3d::test;

namespace {

std::string name(Action const& a) { return to_string({a.op, a.stage, a.microbatch}); }

std::string name(Graph const& graph, std::uint32_t event) {
  switch (graph.kind(event)) {
    case EventKind::message: {
      Channel const& c = graph.channels().all[static_cast<std::size_t>(graph.channel(event))];
      auto const& list = graph.program().ranks[static_cast<std::size_t>(c.source)];
      return name(list[static_cast<std::size_t>(graph.ends(event).send)]);
    }
    case EventKind::exchange:
      return vocabulary_exchanges[static_cast<std::size_t>(graph.exchange(event))] +
             std::to_string(graph.microbatch(event));
    case EventKind::copy: break;
  }
  std::uint32_t first = event;
  while (first > 0 && graph.kind(first - 1) == EventKind::copy) --first;
  return "copy" + std::to_string(event - first);
}

std::string ties(Graph const& graph, int rank, std::ptrdiff_t index) {
  static constexpr char const* words[]{"needs ", "delays ", "gives ", "ends "};
  std::string out;
  for (Edge const& e : graph.edges(rank, index))
    out += (out.empty() ? "" : ", ") + std::string(words[static_cast<int>(e.tie)]) + name(graph, e.event);
  return out;
}
/// Of the action with this text but for its slot.
std::string ties(Graph const& graph, std::string const& text) {
  for (int r = 0; r < graph.program().num_ranks; ++r) {
    auto const& list = graph.program().ranks[static_cast<std::size_t>(r)];
    for (std::size_t i = 0; i < list.size(); ++i)
      if (name(list[i]) == text && (list[i].op != Op::optimizer_step || r == 0))
        return ties(graph, r, static_cast<std::ptrdiff_t>(i));
  }
  return "no " + text;
}

}  // namespace

TEST(Graph, messages_and_slots) {
  Program const p = complete(one_f_one_b(2, 3));  // as in Passes.one_f_one_b_completed_by_hand: one slot on rank 1
  Graph const graph = build_graph(p, as_executed);
  EXPECT_EQ(ties(graph, "0F0"), "");
  EXPECT_EQ(ties(graph, "0SEND_F0"), "gives 0SEND_F0");
  EXPECT_EQ(ties(graph, "0RECV_B0"), "gives 1SEND_B0");
  EXPECT_EQ(ties(graph, "0B0"), "needs 1SEND_B0");
  EXPECT_EQ(ties(graph, "0F2"), "needs 0SEND_F0") << "it takes the slot of microbatch 0";
  EXPECT_EQ(ties(graph, "1RECV_F1"), "needs 1SEND_B0, gives 0SEND_F1");
  EXPECT_EQ(ties(graph, "1F1"), "needs 0SEND_F1");
  EXPECT_EQ(ties(graph, "1B1"), "");
  EXPECT_EQ(ties(graph, "STEP"), "needs 0SEND_F2");
  EXPECT_EQ(graph.num_events(), 6u);
}

TEST(Graph, few_sends_are_outstanding) {
  Program const p = complete(gpipe(2, 3));
  EXPECT_EQ(ties(build_graph(p, {true, 1}), "0SEND_F1"), "needs 0SEND_F0, gives 0SEND_F1");
  EXPECT_EQ(ties(build_graph(p, {true, 2}), "0SEND_F1"), "gives 0SEND_F1");
  EXPECT_EQ(ties(build_graph(p, {true, 2}), "0SEND_F2"), "needs 0SEND_F0, gives 0SEND_F2");
  EXPECT_EQ(ties(build_graph(p, {true, 0}), "0SEND_F0"), "gives 0SEND_F0, ends 0SEND_F0") << "a blocking send";
  for (int in_flight : {0, 1}) {
    Graph const eager = build_graph(p, {false, in_flight});
    EXPECT_EQ(ties(eager, "0SEND_F1"), "gives 0SEND_F1") << "over at once";
    EXPECT_EQ(ties(eager, "1F1"), "needs 0SEND_F1");
    EXPECT_EQ(ties(eager, "STEP"), "");
  }
}

TEST(Graph, input_part_waits_for_what_leaves_its_output) {
  Program const p = complete(generate("zb_h1", {2, 4}));
  Graph const graph = build_graph(p, as_executed);
  EXPECT_EQ(ties(graph, "0I0"), "needs 1SEND_B0, needs 0SEND_F0");
  EXPECT_EQ(ties(graph, "0W0"), "");
}

TEST(Graph, pairs_need_what_either_needs) {
  Program const p = parse_program(
      "p3d-schedule 1 stages=2 ranks=2 microbatches=2 slots=2,2\n"
      "rank 0: 0F0@0 0SEND_F0@0 0RECV_B0@0 0F1@1 0B0@0 0SEND_F1@1 0RECV_B1@1 0B1@1 0REDUCE STEP\n"
      "rank 1: 1RECV_F0@0 1F0@0 1B0@0 1SEND_B0@0 1RECV_F1@1 1F1@1 1B1@1 1SEND_B1@1 1REDUCE STEP\n");
  EXPECT_EQ(ties(build_graph(p, as_executed), "0F1"), "");
  Graph const graph = build_graph(p, {true, any_number, true});
  EXPECT_EQ(ties(graph, "0F1"), "needs 1SEND_B0");
  EXPECT_EQ(ties(graph, "0B0"), "needs 1SEND_B0");
}

// Copies delay the messages of receives, but not their rank, unless it waits inside actions.
TEST(Graph, copies_of_activations) {
  Program p = complete(one_f_one_b(3, 5));  // as in Offload.one_f_one_b_by_hand
  offload_activations(p, 2, as_executed);
  Graph const graph = build_graph(p, as_executed);
  EXPECT_EQ(ties(graph, "0OFFLOAD_F0"), "gives copy0");
  EXPECT_EQ(ties(graph, "0RELOAD_F0"), "gives copy2");
  EXPECT_EQ(ties(graph, "0F2"), "needs 0SEND_F1, needs copy1") << "it takes the slot of microbatch 1";
  EXPECT_EQ(ties(graph, "0B0"), "needs 1SEND_B0, needs copy2");
  // The backwards of a row read each other's slots.
  Program row = complete(refine(gpipe(1, 3), {2}));
  offload_activations(row, 2, as_executed);
  Graph const of_row = build_graph(row, as_executed);
  EXPECT_EQ(ties(of_row, "1B0"), "needs copy4, needs copy5") << to_text(row);
  Program split = complete(generate("zb_h1", {4, 8, 0}));
  offload_activations(split, 2, as_executed);
  for (Execution how : {as_executed, as_executed_waiting}) {
    Graph const of_split = build_graph(split, how);
    int delayed = 0, whole = 0;
    for (int r = 0; r < split.num_ranks; ++r) {
      auto const& list = split.ranks[static_cast<std::size_t>(r)];
      for (std::size_t i = 0; i < list.size(); ++i)
        for (Edge const& e : of_split.edges(r, static_cast<std::ptrdiff_t>(i))) {
          if (of_split.kind(e.event) == EventKind::copy && is_recv(list[i].op)) {
            EXPECT_EQ(e.tie, how.waits_inside ? Tie::needs : Tie::delays);
            ++delayed;
          }
          // With the gradients it reaches into buffers from which messages may leave.
          whole += list[i].op == Op::reload_activations && e.tie == Tie::needs;
        }
    }
    EXPECT_GT(delayed, 0);
    EXPECT_GT(whole, 0);
  }
}

TEST(Graph, exchanges_of_the_vocabulary) {
  Program const p = divided(generate("1f1b", {2, 4}));
  Graph const graph = build_graph(p, as_executed);
  EXPECT_EQ(ties(graph, 0, -1), "gives OUTPUT0, gives OUTPUT1") << "asked for before the first action";
  EXPECT_EQ(ties(graph, 1, -1), "gives GRADIENT0, gives GRADIENT1");
  EXPECT_EQ(ties(graph, "0E1"), "gives SUM1");
  EXPECT_EQ(ties(graph, "1E3"), "needs SUM1, gives SUM3");
  EXPECT_EQ(ties(graph, "0F0"), "needs SUM0");
  EXPECT_EQ(ties(graph, "1F0"), "needs 0SEND_F0, gives OUTPUT0");
  EXPECT_EQ(ties(graph, "0S0"), "needs OUTPUT0, gives PARTS0");
  EXPECT_EQ(ties(graph, "0T0"), "needs PARTS0, gives INPUT_GRADIENT0, gives OUTPUT2");
  EXPECT_EQ(ties(graph, "1T2"), "needs PARTS2, needs INPUT_GRADIENT0, gives INPUT_GRADIENT2");
  EXPECT_EQ(ties(graph, "1B0"), "needs INPUT_GRADIENT0");
  EXPECT_EQ(ties(graph, "0B0"), "needs 1SEND_B0, gives GRADIENT0");
  EXPECT_EQ(ties(graph, "0G0"), "needs GRADIENT0");
  EXPECT_EQ(ties(graph, "1G0"), "needs GRADIENT0, gives GRADIENT2");
  EXPECT_EQ(ties(graph, "1G3"), "needs GRADIENT3") << "there is no microbatch 5";
  EXPECT_EQ(ties(graph, "STEP"), "needs 0SEND_F3, needs SUM3, needs INPUT_GRADIENT3");
  Program forward = forward_by_microbatch(p.stage_rank, 2, 4, true);
  EXPECT_EQ(ties(build_graph(forward, as_executed, Pass::forward_only), "0T2"), "needs PARTS2");
}

// Each event has the number of givers that it says, and a message its two ends.
TEST(Graph, every_event_is_given) {
  for (Generator const* g : generators())
    for (bool vocabulary : {false, true}) {
      Program p = generate(g->name, {3, g->smallest_microbatches(3) + 2, 0});
      VocabularyTimes times;
      times.stages.assign(static_cast<std::size_t>(p.num_stages), {});
      if (vocabulary) divide_vocabulary(p, times, VocabularyOrder::forwards_first);
      p = complete(std::move(p));
      if (!vocabulary) offload_activations(p, 2, as_executed);
      Graph const graph = build_graph(p, as_executed);
      std::vector<int> given(graph.num_events(), 0);
      for (int r = 0; r < p.num_ranks; ++r)
        for (std::size_t k = 0; k < graph.edges(r).size(); ++k) {
          Edge const& e = graph.edges(r)[k];
          given[e.event] += e.tie == Tie::gives;
          auto const index = graph.action_of(r, k);
          auto const of_action = graph.edges(r, index);
          EXPECT_TRUE(&e >= of_action.data() && &e < of_action.data() + of_action.size());
          if (graph.kind(e.event) != EventKind::message || e.tie != Tie::gives) continue;
          Action const& a = p.ranks[static_cast<std::size_t>(r)][static_cast<std::size_t>(index)];
          EXPECT_EQ(graph.channels().of(a), graph.channel(e.event));
          EXPECT_EQ(index, is_send(a.op) ? graph.ends(e.event).send : graph.ends(e.event).receive);
          EXPECT_GE(graph.number(e.event), 0);
        }
      for (std::uint32_t e = 0; e < graph.num_events(); ++e) EXPECT_EQ(given[e], graph.givers(e)) << g->name;
    }
}
