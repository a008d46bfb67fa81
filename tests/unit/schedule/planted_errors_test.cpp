// SPDX-License-Identifier: Apache-2.0
// Errors planted in programs that run: the interpreter finds each of them, by the reason that is expected, and the
// validator refuses it.

#include "interpreter.hpp"
#include "programs.hpp"

#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/registry.hpp>
#include <p3d/schedule/vocabulary.hpp>
#include <p3d/schedule/weights.hpp>

#include <gtest/gtest.h>

#include <algorithm>

using namespace p3d::schedule;
using namespace p3d::test;

namespace {

/// A place in a program.
struct Place {
  std::vector<Action>* list;
  std::ptrdiff_t index;
};
/// Where the action stands that has this text but for its slot, from the n-th on (0: the first).
Place find(Program& p, std::string const& text, int n = 0) {
  for (auto& list : p.ranks)
    for (std::size_t i = 0; i < list.size(); ++i) {
      Action a = list[i];
      a.slot = -1;
      if (to_string(a) == text && n-- == 0) return {&list, static_cast<std::ptrdiff_t>(i)};
    }
  throw std::runtime_error("no " + text);
}
Action& action(Program& p, std::string const& text) {
  auto const place = find(p, text);
  return (*place.list)[static_cast<std::size_t>(place.index)];
}
void erase(Program& p, std::string const& text, int n = 0) {
  auto const place = find(p, text, n);
  place.list->erase(place.list->begin() + place.index);
}
/// Moves an action to before another one of its rank.
void move_before(Program& p, std::string const& text, std::string const& other) {
  auto const from = find(p, text);
  Action const a = (*from.list)[static_cast<std::size_t>(from.index)];
  from.list->erase(from.list->begin() + from.index);
  auto const to = find(p, other);
  to.list->insert(to.list->begin() + to.index, a);
}
void insert_before(Program& p, Action const& a, std::string const& other) {
  auto const to = find(p, other);
  to.list->insert(to.list->begin() + to.index, a);
}

/// Plants one error after the other in replicas of a program.
class Plants {
public:
  explicit Plants(Program good, Execution how = as_executed, Pass pass = Pass::training)
      : good_(std::move(good)), how_(how), pass_(pass) {
    auto const report = interpret_one_order(good_, how_, 1, pass_);
    EXPECT_EQ(report.outcome, Outcome::fine) << report.why << '\n' << to_text(good_);
    EXPECT_TRUE(validate(good_, how_, pass_).empty()) << to_text(good_);
  }
  template <class Change>
  void expect(std::string const& why, Change const& change) {
    Program bad = good_;
    change(bad);
    for (unsigned seed : {1u, 2u, 3u}) EXPECT_EQ(interpret_one_order(bad, how_, seed, pass_).why, why) << to_text(bad);
    EXPECT_FALSE(validate(bad, how_, pass_).empty()) << why << '\n' << to_text(bad);
  }

private:
  Program good_;
  Execution how_;
  Pass pass_;
};

Program sharded(Sharding const& sharding) {
  Program p = generate("zb_v", {2, 4, 0});
  p.tied = true;
  p = complete(std::move(p));
  shard_weights(p, sharding);
  return p;
}

}  // namespace

TEST(PlantedErrors, messages_and_slots) {
  Plants plants(complete(generate("zb_h1", {3, 4})));
  plants.expect("wrong input", [](Program& p) {
    std::swap(action(p, "1RECV_F0").microbatch, action(p, "1RECV_F1").microbatch);
    std::swap(action(p, "1RECV_F0").slot, action(p, "1RECV_F1").slot);
  });
  plants.expect("sends what is not there", [](Program& p) { move_before(p, "1SEND_F1", "1F1"); });
  plants.expect("no rank can go on", [](Program& p) { erase(p, "1SEND_B3"); });
  plants.expect("no receive posted", [](Program& p) { move_before(p, "1RECV_B0", "1W0"); });
  plants.expect("another microbatch's slot", [](Program& p) { action(p, "1F0").slot = 1; });
  plants.expect("slot in use", [](Program& p) { action(p, "1RECV_F1").slot = action(p, "1RECV_F0").slot; });
  plants.expect("W without I", [](Program& p) { move_before(p, "2W0", "2I0"); });
  plants.expect("wrong gradient sum", [](Program& p) { move_before(p, "1REDUCE", "1W3"); });
  plants.expect("a step on gradients not reduced", [](Program& p) { erase(p, "1REDUCE"); });
  plants.expect("works after the step", [](Program& p) { p.ranks[0].push_back(action(p, "0W3")); });
}

TEST(PlantedErrors, offloaded_activations) {
  Program p = complete(one_f_one_b(3, 5));
  offload_activations(p, 2, as_executed);
  Plants plants(p);
  plants.expect("another microbatch's slot", [](Program& q) { erase(q, "0RELOAD_F2"); });
  plants.expect("slot in use", [](Program& q) { erase(q, "0OFFLOAD_F1"); });
  plants.expect("offloaded before its output is sent", [](Program& q) { move_before(q, "0OFFLOAD_F0", "0SEND_F0"); });
  plants.expect("reloads what is not away", [](Program& q) {
    insert_before(q, {Op::reload_activations, 0, 4, 0}, "0F0");
  });
}

TEST(PlantedErrors, weights) {
  Plants plants(sharded({.gather = Every::microbatch}));
  plants.expect("reads weights that are not there", [](Program& p) { erase(p, "1GATHER", 1); });
  plants.expect("gathers twice", [](Program& p) { erase(p, "1RELEASE"); });
  plants.expect("weights are not where they were at the begin", [](Program& p) { erase(p, "1RELEASE", 5); });
  plants.expect("reduces nothing", [](Program& p) { insert_before(p, {Op::reduce_scatter_gradients, 0}, "STEP"); });
  // The last stage's W adds to the gradients of stage 0, too.
  plants.expect("a step on gradients not reduced", [](Program& p) { move_before(p, "0REDUCE_SCATTER", "3W3"); });
  Plants offloaded(sharded({.offloads = true}));
  offloaded.expect("wrong gradient sum", [](Program& p) {
    move_before(p, "3REDUCE", "STEP");
    move_before(p, "3W3", "3REDUCE");
  });
  offloaded.expect("reloads what is not offloaded", [](Program& p) {
    insert_before(p, {Op::reload_weights, 0}, "0F0");
  });
  offloaded.expect("updates weights that are elsewhere", [](Program& p) { erase(p, "0OFFLOAD"); });
  offloaded.expect("gathers what is not in parts", [](Program& p) {
    insert_before(p, {Op::gather_weights, 0}, "0F0");
  });
}

TEST(PlantedErrors, versions_of_weights) {
  Plants plants(
      parse_program("p3d-schedule 1 stages=1 ranks=1 microbatches=2 slots=2\nrank 0: 0F0@0 0F1@1 0B0@0 0REDUCE 0STEPv1 "
                    "0B1@1 0REDUCE 0RELEASE 0STEPv2"));
  plants.expect("forward and backward with different weights", [](Program& p) { action(p, "0B1").version = 1; });
  plants.expect("reads weights that are not there", [](Program& p) { move_before(p, "0RELEASE", "0B1"); });
  plants.expect("an update that makes another version", [](Program& p) { action(p, "0STEPv1").version = 2; });
  plants.expect("a step on gradients not reduced", [](Program& p) { erase(p, "0REDUCE"); });
  plants.expect("weights are not where they were at the begin", [](Program& p) { erase(p, "0RELEASE"); });
}

TEST(PlantedErrors, divided_vocabulary) {
  Plants plants(divided(generate("1f1b", {3, 5})));
  plants.expect("no embedding", [](Program& p) { move_before(p, "0F0", "0E0"); });
  plants.expect("an embedding is overwritten", [](Program& p) {
    for (char const* early : {"0E1", "0E2"})
      if (find(p, early).index > find(p, "0F0").index) move_before(p, early, "0F0");
  });
  plants.expect("no rank can go on", [](Program& p) { move_before(p, "0S0", "0E0"); });
  plants.expect("no logits", [](Program& p) { std::swap(action(p, "1S1"), action(p, "1T1")); });
  plants.expect("no gradient of the head", [](Program& p) { move_before(p, "2B0", "2T0"); });
  plants.expect("microbatches of an exchange out of their order",
                [](Program& p) { std::swap(action(p, "1E0"), action(p, "1E1")); });
  plants.expect("buffers of the vocabulary are used in turn", [](Program& p) { action(p, "1G2").slot = 1; });
  plants.expect("wrong gradient sum", [](Program& p) { move_before(p, "1REDUCE", "1T4"); });
  plants.expect("wrong gradient sum", [](Program& p) { erase(p, "1G4"); });
}

TEST(PlantedErrors, pairs) {
  Program p = generate("1f1b", {2, 4});
  exchange_pairs(p);
  p = complete(std::move(p));
  close_pairs(p);
  Plants plants(p, {true, any_number, true});
  plants.expect("no rank can go on", [](Program& q) { move_before(q, "0SEND_F2", "0SEND_F3"); });
}
