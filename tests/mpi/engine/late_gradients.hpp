// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tests of late gradients share: the ring of versions, w(t+1) = w(t) - lr u(gradient of batch t at older weights),
// that is written out here on one rank, and trainings whose state is compared. The ring takes nothing but gradients
// from p3d, of a training whose weights it sets before each step.

#include <p3d/engine/trainer.hpp>
#include <p3d/optim/lr_schedule.hpp>
#include <p3d/optim/optimizer.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "training.hpp"

namespace p3d::test::late_gradients {

inline constexpr char const* late = "optimizer.delay=1";
inline constexpr int updates = 50;

inline Keys const common{
    "batch.micro=1",     "batch.global=8", "optimizer.lr=1e-2",       "comm.bucket_mb=0.002", "run.precision=fp64",
    "run.seed=3",        "run.steps=50",   "optimizer.grad_clip=0.8", "data.split=0.2",       "model.preset=llama-tiny",
    test::licence_text()};

inline config::Config make_config(Keys const& more, int ranks) {
  return test::config_of(test::joined({test::tiny_model(4), common, more}), ranks);
}

using Numbers = std::vector<double>;
using Weights = std::map<std::string, Numbers>;

/// The losses of a ring of versions with AdamW, as arXiv 1711.05101 writes it, in double. `delays`: the keys that say
/// how late gradients are.
inline Numbers ring(Keys const& more, Keys const& delays) {
  auto const c = make_config(test::joined({more, delays}), 1);
  auto const& o = c.optimizer;
  engine::Trainer<device::Fp64> oracle(
      make_config(test::joined({more, Keys{"optimizer.type=sgd", "optimizer.lr=0", "optimizer.min_lr=0"}}), 1),
      comm::Communicator::self());
  oracle.inspection().keep_gradients(true);
  auto const& specs = oracle.plan().table.specs();
  // -1 is the embedding, layers [0, layers) have equal parts of the list, and the head goes with the last.
  auto const delay_of = [&](layout::ParamSpec const& spec) {
    auto const& list = c.pipeline.delays;
    if (list.empty()) return static_cast<int>(c.optimizer.delay);
    int const layers = static_cast<int>(c.model.layers), layer = std::max(0, std::min(spec.layer, layers - 1));
    return list[static_cast<std::size_t>(layer / (layers / static_cast<int>(list.size())))];
  };
  std::vector<Weights> versions(1);
  Weights first, second;
  for (auto const& spec : specs) {
    versions[0][spec.name] = oracle.inspection().gather_value(spec.name);
    first[spec.name] = second[spec.name] = Numbers(static_cast<std::size_t>(spec.size()), 0.0);
  }
  Numbers losses;
  for (int t = 0; t < updates; ++t) {
    for (auto const& part : oracle.checkpoint_parts({})) {
      auto const name = part.array.substr(part.array.find('/') + 1);
      auto const read = std::max(0, t - delay_of(oracle.plan().table.find(name)));
      auto const& numbers = versions[static_cast<std::size_t>(read)].at(name);
      part.copy_in(0, std::ssize(numbers), numbers.data());
    }
    auto const result = oracle.step();
    losses.push_back(result.loss);
    double const scale = o.grad_clip > 0 && result.grad_norm > o.grad_clip ? o.grad_clip / result.grad_norm : 1.0;
    double const lr = optim::learning_rate(o, t, c.run.steps);
    auto next = versions.back();
    for (auto const& spec : specs) {
      auto const gradient = oracle.inspection().gather_gradient(spec.name);
      auto &w = next[spec.name], &m = first[spec.name], &v = second[spec.name];
      for (std::size_t i = 0; i < w.size(); ++i) {
        double const g = scale * gradient[i];
        m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
        v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
        double const mean = m[i] / (1 - std::pow(o.beta1, t + 1)), square = v[i] / (1 - std::pow(o.beta2, t + 1));
        w[i] -= lr * (mean / (std::sqrt(square) + o.eps) + (spec.decay ? o.weight_decay : 0.0) * w[i]);
      }
    }
    versions.push_back(std::move(next));
  }
  return losses;
}

template <class P>
Numbers losses(Keys const& more, comm::Communicator const& world, int steps) {
  engine::Trainer<P> trainer(make_config(more, world.size()), world);
  Numbers out;
  for (int s = 0; s < steps; ++s) out.push_back(trainer.step().loss);
  return out;
}

/// The state of a training as a checkpoint holds it, by array and place.
template <class P>
std::vector<std::pair<std::string, std::vector<char>>> state(engine::Trainer<P>& trainer) {
  std::vector<std::pair<std::string, std::vector<char>>> out;
  for (auto const& part :
       trainer.checkpoint_parts(config::state_of(trainer.config().optimizer_with_versions()).arrays)) {
    auto const count = part.rows * part.cols;
    std::vector<char> bytes(static_cast<std::size_t>(count) * sizeof(typename P::Master));
    part.copy_out(0, count, bytes.data());
    out.emplace_back(part.array, std::move(bytes));
  }
  return out;
}

/// Gives a training the arrays that another one of its layout had: all of them, in their order.
template <class P>
void restore(engine::Trainer<P>& trainer, config::StateArrays arrays,
             std::vector<std::pair<std::string, std::vector<char>>> const& saved) {
  auto const parts = trainer.checkpoint_parts(arrays);
  ASSERT_EQ(parts.size(), saved.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ASSERT_EQ(parts[i].array, saved[i].first);
    parts[i].copy_in(0, parts[i].rows * parts[i].cols, saved[i].second.data());
  }
}

/// The arrays by name, each with its parts in their order.
using ByName = std::map<std::string, std::vector<std::vector<char>>>;
template <class P>
ByName by_name(engine::Trainer<P>& trainer) {
  ByName out;
  for (auto const& [name, bytes] : state(trainer)) out[name].push_back(bytes);
  return out;
}

/// Gives a training without delay the newest weights of one of its layout.
template <class P>
void give_newest(engine::Trainer<P>& trainer, ByName const& arrays) {
  std::map<std::string, std::size_t> used;
  for (auto const& part : trainer.checkpoint_parts({}))
    part.copy_in(0, part.rows * part.cols, arrays.at(part.array).at(used[part.array]++).data());
}

/// Steps that follow each other without a flush, but where `drains(step)` says that something else comes behind one.
/// Results come as late as the plan says.
template <class P>
std::vector<engine::StepResult> advance(engine::Trainer<P>& trainer, int steps,
                                        std::function<bool(std::int64_t)> const& drains = {}) {
  std::vector<engine::StepResult> out;
  int const late = trainer.plan().results_late(trainer.config());
  for (int s = 0; s < steps; ++s) {
    bool const last = s + 1 == steps || (drains && drains(trainer.steps_done() + 1));
    auto const before = trainer.steps_done();
    auto const results = trainer.advance(static_cast<double>(before + 1), !last);
    EXPECT_EQ(trainer.steps_done(), before + 1);
    for (auto const& r : results) out.push_back(r);
    if (last) {
      EXPECT_EQ(out.back().step, before + 1) << "a flush brings all results";
    } else {
      EXPECT_TRUE(out.empty() || out.back().step >= before + 1 - late) << "results come as late as the plan says";
    }
  }
  return out;
}

inline void expect_same(std::vector<engine::StepResult> const& a, std::vector<engine::StepResult> const& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].step, b[i].step);
    EXPECT_EQ(a[i].loss, b[i].loss) << "step " << a[i].step;
    EXPECT_EQ(a[i].grad_norm, b[i].grad_norm) << "step " << a[i].step;
    EXPECT_EQ(a[i].lr, b[i].lr);
    EXPECT_EQ(a[i].votes, b[i].votes);
  }
}

/// The results of steps that end with a flush.
template <class P>
std::vector<engine::StepResult> flushed(engine::Trainer<P>& trainer, int steps) {
  std::vector<engine::StepResult> out;
  for (int s = 0; s < steps; ++s) out.push_back(trainer.step(static_cast<double>(trainer.steps_done() + 1)));
  return out;
}

/// Trains with a flush behind each step, behind none, and behind the first two of each `period` steps.
template <class P>
void expect_flush_changes_no_bit(config::Config const& config, comm::Communicator const& world, int steps, int period) {
  // One after the other: the memory that a node shares, and with it the order of sums, is the first one's.
  auto const train = [&](auto const& run) {
    engine::Trainer<P> trainer(config, world);
    auto results = run(trainer);
    return std::pair(std::move(results), state(trainer));
  };
  auto const [expected, end] = train([&](auto& trainer) { return flushed(trainer, steps); });
  auto const flowing = train([&](auto& trainer) { return advance(trainer, steps); });
  auto const at_times = train([&](auto& trainer) {
    return advance(trainer, steps, [period](std::int64_t step) { return step % period < 2; });
  });
  expect_same(flowing.first, expected);
  expect_same(at_times.first, expected);
  EXPECT_TRUE(flowing.second == end);
  EXPECT_TRUE(at_times.second == end);
}

}  // namespace p3d::test::late_gradients
