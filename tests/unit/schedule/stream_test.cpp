// SPDX-License-Identifier: Apache-2.0
// Steps that follow each other without a flush. A run of many steps is made of the lists of a stream and compared with
// the program of as many microbatches, which the validator proves; slots are followed by hand.

#include <p3d/schedule/query.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/schedule.hpp>
#include <p3d/schedule/stream.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>

using namespace p3d;
using namespace p3d::schedule;

namespace {

constexpr Execution as_executed{true, std::numeric_limits<int>::max()};

ValidProgram steps_of(std::string const& name, int ranks, int microbatches, int steps, int lookahead) {
  Shape const shape{ranks, microbatches * steps, name == "interleaved_1f1b" ? 2 : 0, 0};
  auto compute = generate(name, shape);
  finish_weight_gradients(compute, microbatches);
  return {complete(std::move(compute), 1, lookahead), as_executed};
}

/// How many steps early forwards of each stage may be: one, or in PipeDream what stages behind it take.
std::vector<int> ahead_of(std::string const& name, int ranks, int microbatches) {
  std::vector<int> out;
  if (name != "pipedream") return std::vector<int>(static_cast<std::size_t>(name[0] == 'i' ? 2 * ranks : ranks), 1);
  for (int s = 0; s < ranks; ++s) out.push_back((ranks - 1 - s + microbatches - 1) / microbatches);
  return out;
}

std::optional<Stream> stream_of(std::string const& name, int ranks, int microbatches, int lookahead = 1) {
  std::string why;
  auto const ahead = ahead_of(name, ranks, microbatches);
  int const steps = stream_steps(*std::max_element(ahead.begin(), ahead.end()));
  auto out = make_stream(steps_of(name, ranks, microbatches, steps, lookahead), ahead, why);
  EXPECT_EQ(out.has_value(), why.empty()) << why;
  return out;
}

/// The list of a rank in step t of `steps`.
StreamPart const& part(Stream const& s, std::size_t rank, int t, int steps) {
  return (t == 0 ? s.first : t + 1 < steps || s.last.empty() ? s.middle : s.last)[rank];
}

struct Case {
  std::string name;
  int ranks, microbatches;
};
std::vector<Case> const cases{{"1f1b", 2, 1},
                              {"1f1b", 2, 2},
                              {"1f1b", 2, 3},
                              {"1f1b", 3, 5},
                              {"1f1b", 4, 3},
                              {"1f1b", 4, 4},
                              {"1f1b", 4, 7},
                              {"1f1b", 8, 16},
                              {"zb_h1", 2, 4},
                              {"zb_h1", 4, 8},
                              {"zb_h1", 4, 6},
                              {"interleaved_1f1b", 2, 4},
                              {"interleaved_1f1b", 4, 8},
                              {"pipedream", 2, 1},
                              {"pipedream", 3, 1},
                              {"pipedream", 4, 1},
                              {"pipedream", 4, 2},
                              {"pipedream", 4, 3},
                              {"pipedream", 5, 3},
                              {"pipedream", 8, 1},
                              {"pipedream", 8, 3}};

// The lists in a row are the program of all microbatches, whose order the validator has proved.
TEST(Stream, ListsInARowAreOneProgram) {
  for (auto const& c : cases)
    for (int steps : {2, 3, 6}) {
      SCOPED_TRACE(c.name + " " + std::to_string(c.ranks) + " " + std::to_string(c.microbatches));
      auto const stream = stream_of(c.name, c.ranks, c.microbatches);
      ASSERT_TRUE(stream);
      // Where forwards are several steps early, later steps are cut off.
      bool const ends = !stream->last.empty();
      auto const whole = steps_of(c.name, c.ranks, c.microbatches, steps + (ends ? 0 : stream->most_ahead()), 1);
      for (std::size_t r = 0; r < whole->ranks.size(); ++r) {
        std::vector<Action> in_a_row, expected;
        for (int t = 0; t < steps; ++t)
          for (Action a : part(*stream, r, t, steps).actions) {
            if (!has_microbatch(a.op)) continue;
            a.microbatch += t * c.microbatches;
            a.slot = -1;
            in_a_row.push_back(a);
          }
        for (Action a : whole->ranks[r]) {
          if (!has_microbatch(a.op)) continue;
          a.slot = -1;
          expected.push_back(a);
        }
        ASSERT_LE(in_a_row.size(), expected.size());
        if (!ends) expected.resize(in_a_row.size());
        EXPECT_EQ(in_a_row, expected) << steps << " steps, rank " << r;
      }
    }
}

// Over many steps, each (stage, microbatch) has one slot from its first to its last action, and no other one has it.
TEST(Stream, SlotsKeepTheirMicrobatches) {
  for (auto const& c : cases) {
    SCOPED_TRACE(c.name + " " + std::to_string(c.ranks) + " " + std::to_string(c.microbatches));
    auto const stream = stream_of(c.name, c.ranks, c.microbatches);
    ASSERT_TRUE(stream);
    constexpr int steps = 9;
    for (std::size_t r = 0; r < stream->first.size(); ++r) {
      SlotNames names;
      std::map<std::pair<int, int>, int> slot_of;  // by stage and microbatch of the run
      std::map<std::pair<int, int>, int> user;     // the other way round
      for (int t = 0; t < steps; ++t)
        for (Action const& a : names.apply(stream->steps, part(*stream, r, t, steps), t > 0)) {
          if (!has_microbatch(a.op)) continue;
          int const m = a.microbatch + t * c.microbatches;
          ASSERT_LT(a.slot, stream->steps->num_slots[static_cast<std::size_t>(a.stage)]);
          if (takes_slot(stream->steps, a)) {
            ASSERT_FALSE(user.contains({a.stage, a.slot})) << to_string(a) << " in step " << t;
            user[{a.stage, a.slot}] = m;
            slot_of[{a.stage, m}] = a.slot;
          }
          ASSERT_EQ(slot_of.at({a.stage, m}), a.slot) << to_string(a) << " in step " << t;
          if (makes_weight_gradient(a.op)) user.erase({a.stage, a.slot});
        }
      if (!stream->last.empty()) {
        EXPECT_TRUE(user.empty());
      }
    }
  }
}

// A step ends with its own gradients, whole, and with nothing of the next step's in them.
TEST(Stream, StepsKeepTheirGradients) {
  for (auto const& c : cases) {
    auto const stream = stream_of(c.name, c.ranks, c.microbatches);
    ASSERT_TRUE(stream);
    for (std::size_t r = 0; r < stream->middle.size(); ++r) {
      auto const& actions = stream->middle[r].actions;
      std::map<int, std::set<int>> added;  // by stage
      int reduced = 0;
      for (Action const& a : actions) {
        if (makes_weight_gradient(a.op)) {
          EXPECT_LT(a.microbatch, c.microbatches);
          EXPECT_TRUE(added[a.stage].insert(a.microbatch).second);
        }
        if (a.op != Op::reduce_gradients) continue;
        EXPECT_EQ(std::ssize(added[a.stage]), c.microbatches);
        ++reduced;
      }
      EXPECT_EQ(reduced, std::ssize(added));
      EXPECT_EQ(actions.back().op, Op::optimizer_step);
    }
  }
}

// 1F1B on 2 ranks has one forward of the next step on its first rank, and none on its last.
TEST(Stream, FirstRankIsAheadByOneForward) {
  auto const stream = stream_of("1f1b", 2, 2, 0);
  ASSERT_TRUE(stream);
  auto const computed = [](StreamPart const& part) {
    std::string out;
    for (Action a : part.actions) {
      if (!is_compute(a.op)) continue;
      a.slot = -1;
      out += to_string(a) + " ";
    }
    return out;
  };
  EXPECT_EQ(computed(stream->first[0]), "0F0 0F1 0B0 0F2 0B1 ");
  EXPECT_EQ(computed(stream->middle[0]), "0F1 0B0 0F2 0B1 ");
  EXPECT_EQ(computed(stream->last[0]), "0F1 0B0 0B1 ");
  EXPECT_EQ(computed(stream->middle[1]), "1F0 1B0 1F1 1B1 ");
}

// When a stream ends before its time, the ends of messages that are missing are these, each once on its rank, and in
// the order in which the rank has them.
TEST(Stream, UnmatchedEndsCompleteTheMessages) {
  using Message = std::tuple<bool, int, int>;  // of activations, the receiving stage, the microbatch
  for (auto const& c : cases) {
    auto const stream = stream_of(c.name, c.ranks, c.microbatches, 2);
    ASSERT_TRUE(stream);
    std::map<Message, int> sent, received;  // in the lists up to a step
    for (int t = 0; t < 4; ++t) {
      auto const count = [&](std::map<Message, int>& sends, std::map<Message, int>& receives, Action const& a) {
        if (!is_message(a.op)) return;
        bool const forward = a.op == Op::send_activation || a.op == Op::recv_activation;
        Message const m{forward, is_send(a.op) ? peer_stage(a) : a.stage, a.microbatch + t * c.microbatches};
        ++(is_send(a.op) ? sends : receives)[m];
      };
      for (auto const& p : t == 0 ? stream->first : stream->middle)
        for (Action const& a : p.actions) count(sent, received, a);
      auto all_sent = sent, all_received = received;
      for (auto const& p : t == 0 ? stream->first : stream->middle)
        for (Action const& a : p.unmatched) {
          EXPECT_GE(a.microbatch, c.microbatches);
          count(all_sent, all_received, a);
        }
      EXPECT_EQ(all_sent, all_received) << "step " << t;
    }
  }
}

// A rank that does the last stage's forwards of the next step early would add up losses of two steps.
TEST(Stream, SchedulesThatMixStepsAreRefused) {
  for (std::string const name : {"gpipe", "zb_v"}) {
    std::string why;
    EXPECT_FALSE(make_stream(steps_of(name, 4, 8, 4, 1), ahead_of("1f1b", name == "zb_v" ? 8 : 4, 8), why));
    auto const words = name == "gpipe" ? "2 steps early" : "before the gradients of the step before are complete";
    EXPECT_NE(why.find(words), std::string::npos) << why;
  }
}

TEST(Stream, AStepIsAheadByLessThanAStep) {
  std::string why;
  auto const ahead = ahead_of("1f1b", 5, 4);
  EXPECT_TRUE(make_stream(steps_of("1f1b", 5, 4, 4, 0), ahead, why)) << why;
  EXPECT_FALSE(make_stream(steps_of("1f1b", 5, 3, 4, 0), ahead, why));
  EXPECT_NE(why.find("2 steps early, where 1 is allowed"), std::string::npos) << why;
}

// In PipeDream rank s does the forwards of p - 1 - s microbatches more than it has done backwards of.
TEST(Stream, PipeDreamIsAheadByTheStagesBehind) {
  auto const stream = stream_of("pipedream", 4, 1, 0);
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->ahead, (std::vector{3, 2, 1, 0}));
  for (int r = 0; r < 4; ++r) {
    std::vector<int> forwards, backwards;
    for (Action const& a : stream->middle[static_cast<std::size_t>(r)].actions) {
      if (a.op == Op::forward) forwards.push_back(a.microbatch);
      if (a.op == Op::backward) backwards.push_back(a.microbatch);
    }
    EXPECT_EQ(forwards, std::vector{3 - r});
    EXPECT_EQ(backwards, std::vector{0});
  }
  std::string why;
  EXPECT_FALSE(make_stream(steps_of("pipedream", 4, 1, 5, 0), {2, 2, 1, 0}, why));
  EXPECT_EQ(why, "on pipeline rank 0, 0F3@3 comes 3 steps early, where 2 are allowed");
}

// ZB-H1 has weight parts of a step behind backwards of the next one, and on the last stage behind its first forward.
TEST(Stream, WeightPartsOfAStepComeFirst) {
  auto compute = generate("zb_h1", {3, 12, 0, 0});
  auto const before = compute;
  finish_weight_gradients(compute, 4);
  auto const place = [](Program const& p, std::size_t rank, Action const& wanted) {
    return std::find(p.ranks[rank].begin(), p.ranks[rank].end(), wanted) - p.ranks[rank].begin();
  };
  for (int stage : {1, 2}) {
    Action const part{Op::backward_weight, stage, 3}, next{stage == 2 ? Op::forward : Op::backward_input, stage, 4};
    auto const rank = static_cast<std::size_t>(stage);
    EXPECT_GT(place(before, rank, part), place(before, rank, next));
    EXPECT_LT(place(compute, rank, part), place(compute, rank, next));
  }
  EXPECT_EQ(compute.ranks[0], before.ranks[0]);
}

// Whatever a rank waits for in its part of a step stands in parts of that step and of those before.
TEST(Stream, AStepEndsWithoutTheNext) {
  for (auto const& c : cases) {
    SCOPED_TRACE(c.name + " " + std::to_string(c.ranks) + " " + std::to_string(c.microbatches));
    auto const stream = stream_of(c.name, c.ranks, c.microbatches);
    ASSERT_TRUE(stream);
    Program const& steps = stream->steps;
    std::set<std::tuple<bool, int, int>> done;  // forward or backward, stage, microbatch of the run
    for (int t = 0; t < 5; ++t) {
      std::vector<std::size_t> next(stream->first.size(), 0);
      auto const list = [&](std::size_t r) -> std::vector<Action> const& { return part(*stream, r, t, 5).actions; };
      for (bool moved = true; std::exchange(moved, false);)
        for (std::size_t r = 0; r < next.size(); ++r)
          for (; next[r] < list(r).size(); ++next[r], moved = true) {
            Action const& a = list(r)[next[r]];
            int const m = a.microbatch + t * c.microbatches;
            bool const forward = a.op == Op::forward, backward = makes_input_gradient(a.op);
            if (forward && a.stage > 0 && !done.contains({true, a.stage - 1, m})) break;
            if (backward && a.stage + 1 < steps.num_stages && !done.contains({false, a.stage + 1, m})) break;
            if (forward || backward) done.insert({forward, a.stage, m});
          }
      for (std::size_t r = 0; r < next.size(); ++r) ASSERT_EQ(next[r], list(r).size()) << "step " << t << " rank " << r;
    }
  }
}

}  // namespace
