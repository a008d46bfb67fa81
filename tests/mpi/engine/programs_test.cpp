// SPDX-License-Identifier: Apache-2.0
// Programs of every shape, run by the executor, against one rank: whole and split backwards, weight parts put off,
// several stages per rank in any placement, stages without layers, with dropout and tied embeddings, beside dp and tp.

#include <p3d/engine/executor.hpp>
#include <p3d/engine/trainer.hpp>

#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>

#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;
using schedule::Op;
using schedule::Program;

constexpr int steps = 2;

struct Mesh {
  int dp = 1, tp = 1, pp = 1;
};

config::Config make_config(bool llama, Mesh mesh) {
  return test::config_of(test::joined({test::family(llama),
                                       test::tiny_model(6),
                                       test::mesh_keys(mesh.dp, mesh.tp, mesh.pp),
                                       {"batch.micro=1", "batch.global=10", "run.precision=fp64", "model.dropout=0.1",
                                        "optimizer.lr=1e-2", "comm.bucket_mb=0.01", test::licence_text()}}),
                         mesh.dp * mesh.tp * mesh.pp);
}

/// Every B becomes I, and W follows after `delay` more compute actions of its rank, or at the end.
Program put_off_weights(Program const& whole, int delay) {
  Program p = whole;
  for (auto& actions : p.ranks) {
    std::deque<std::pair<int, schedule::Action>> waiting;
    std::vector<schedule::Action> out;
    int n = 0;
    for (auto const& a : actions) {
      ++n;
      bool const split = a.op == Op::backward;
      out.push_back({split ? Op::backward_input : a.op, a.stage, a.microbatch});
      if (split) waiting.emplace_back(n + delay, schedule::Action{Op::backward_weight, a.stage, a.microbatch});
      for (; !waiting.empty() && waiting.front().first <= n; waiting.pop_front()) out.push_back(waiting.front().second);
    }
    for (auto const& w : waiting) out.push_back(w.second);
    actions = out;
  }
  return p;
}

/// List scheduling: in every time step each rank takes, of what is ready, the input part first, then a forward (of the
/// later stage first), then a weight part; microbatches of a stage in order. `split`: 0 whole backwards, 1 split, 2
/// mixed.
Program list_schedule(std::vector<int> placement, int ranks, int microbatches, int split) {
  Program p;
  p.num_stages = static_cast<int>(placement.size());
  p.num_ranks = ranks;
  p.num_microbatches = microbatches;
  p.stage_rank = std::move(placement);
  p.ranks.resize(static_cast<std::size_t>(ranks));
  struct Progress {
    int forward = 0, input = 0, weight = 0;  ///< microbatches done
  };
  std::vector<Progress> done(p.stage_rank.size());
  auto const is_split = [&](int s, int m) { return split == 1 || (split == 2 && (s + m) % 2 == 0); };
  for (bool any = true; any;) {
    any = false;
    auto const before = done;
    for (int r = 0; r < ranks; ++r) {
      schedule::Action best;
      int rating = -1;
      auto const consider = [&](int value, Op op, int stage, int m) {
        if (value <= rating) return;
        rating = value;
        best = {op, stage, m};
      };
      for (int s = 0; s < p.num_stages; ++s) {
        auto const at = static_cast<std::size_t>(s);
        if (p.stage_rank[at] != r) continue;
        auto const& d = before[at];
        int const f = d.forward, b = d.input, w = d.weight;
        bool const last = s + 1 == p.num_stages;
        if (b < (last ? f : std::min(f, before[at + 1].input)))
          consider(300 + s, is_split(s, b) ? Op::backward_input : Op::backward, s, b);
        if (f < microbatches && f < b + 2 * ranks && (s == 0 || f < before[at - 1].forward))
          consider(200 + s, Op::forward, s, f);
        int next = w;  // the next microbatch with a weight part of its own
        while (next < b && !is_split(s, next)) ++next;
        if (next < b) consider(100 + s, Op::backward_weight, s, next);
      }
      if (rating < 0) continue;
      any = true;
      auto& d = done[static_cast<std::size_t>(best.stage)];
      if (best.op == Op::forward) ++d.forward;
      if (best.op == Op::backward || best.op == Op::backward_input) ++d.input;
      if (best.op == Op::backward_weight) d.weight = best.microbatch + 1;
      p.ranks[static_cast<std::size_t>(r)].push_back(best);
    }
  }
  return p;
}

struct Case {
  std::string name;
  Program compute;
};

std::vector<Case> cases(int pp, int microbatches) {
  std::vector<Case> out;
  for (int delay : {0, 1, 3, 1000}) {
    out.push_back(
        {fmt::format("1f1b, W put off by {}", delay), put_off_weights(schedule::one_f_one_b(pp, microbatches), delay)});
  }
  out.push_back({"gpipe, W put off", put_off_weights(schedule::gpipe(pp, microbatches), 2)});
  std::vector<int> around, v, inner;
  for (int s = 0; s < 2 * pp; ++s) {
    around.push_back(s % pp);
    v.push_back(s < pp ? s : 2 * pp - 1 - s);
    inner.push_back((s / 2 + 1) % pp);  // neighbours in pairs; the first stage on rank 1
  }
  int n = 0;
  for (auto const& placement : {around, v, inner}) {
    for (int split : {0, 1, 2}) {
      out.push_back(
          {fmt::format("placement {} split {}", n / 3, split), list_schedule(placement, pp, microbatches, split)});
      ++n;
    }
  }
  return out;
}

/// What a run gives: losses, and for each parameter its gradient of the first step.
struct Outcome {
  std::vector<double> losses;
  std::vector<double> gradients;
  double eval = 0.0;
  std::vector<int> text;
};

Outcome train(engine::Trainer<device::Fp64>& trainer) {
  Outcome o;
  for (int s = 0; s < steps; ++s) {
    trainer.inspection().keep_gradients(s == 0);
    o.losses.push_back(trainer.step().loss);
    if (s > 0) continue;
    for (auto const& spec : trainer.plan().table.specs()) {
      auto const g = trainer.inspection().gather_gradient(spec.name);
      o.gradients.insert(o.gradients.end(), g.begin(), g.end());
    }
  }
  o.eval = trainer.evaluate(1);
  o.text = test::greedy(trainer, "The", 2);
  return o;
}

class Programs : public ::testing::TestWithParam<bool> {};

TEST_P(Programs, GiveTheLossesAndGradientsOfOneRank) {
  bool const llama = GetParam();
  auto world = comm::Communicator::world();
  auto self = comm::Communicator::self();
  engine::Trainer<device::Fp64> alone(make_config(llama, {}), self);
  auto const expected = train(alone);
  ASSERT_GT(expected.losses.front(), expected.losses.back() + 1e-3)
      << "the reference learns, so that losses can differ";

  int const ranks = world.size();
  int turn = 0, ran = 0;
  for (Mesh mesh : {Mesh{1, 1, ranks}, Mesh{2, 1, ranks / 2}, Mesh{1, 2, ranks / 2}, Mesh{2, 2, ranks / 4}}) {
    if (mesh.dp * mesh.tp * mesh.pp != ranks || mesh.pp == 0 || (mesh.pp == 1 && ranks > 2) || mesh.pp > 4) continue;
    auto const config = make_config(llama, mesh);
    for (auto const& c : cases(mesh.pp, static_cast<int>(config.batch.microbatches))) {
      if (++turn % (ranks < 6 ? 2 : 4) != (llama ? 1 : 0)) continue;  // each program with one of the models, or some
      SCOPED_TRACE(fmt::format("dp{} tp{} pp{}: {}", mesh.dp, mesh.tp, mesh.pp, c.name));
      schedule::ValidProgram const program(schedule::complete(c.compute), plan::execution_of(config));
      layout::StageMap const stages(layout::even_layers(6, program->num_stages), program->stage_rank, mesh.pp);
      engine::Trainer<device::Fp64> trainer(config, engine::make_run_plan(config, stages, program), world);
      auto const found = train(trainer);
      for (int s = 0; s < steps; ++s) {
        auto const i = static_cast<std::size_t>(s);
        EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-9 * expected.losses[i]) << "step " << s;
      }
      double size = 0.0, difference = 0.0;
      ASSERT_EQ(found.gradients.size(), expected.gradients.size());
      for (std::size_t i = 0; i < found.gradients.size(); ++i) {
        size = std::max(size, std::fabs(expected.gradients[i]));
        difference = std::max(difference, std::fabs(found.gradients[i] - expected.gradients[i]));
      }
      EXPECT_LE(difference, 1e-9 * size);
      EXPECT_NEAR(found.eval, expected.eval, 1e-9 * expected.eval);
      EXPECT_EQ(found.text, expected.text);
      auto const memory = trainer.plan().memory_of(trainer.mesh().coordinate("pp"));
      EXPECT_EQ(static_cast<std::int64_t>(trainer.inspection().activation_high_water()),
                memory.activations + memory.workspace);
      if (::testing::Test::HasFailure()) return;
      ++ran;
    }
  }
  EXPECT_GE(ran, 7) << "of the " << turn << " programs for these ranks";
}

INSTANTIATE_TEST_SUITE_P(Models, Programs, ::testing::Bool(),
                         [](auto const& info) { return info.param ? "llama" : "gpt2"; });

}  // namespace
