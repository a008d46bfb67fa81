// SPDX-License-Identifier: Apache-2.0
// A program that takes part in training steps through p3d/engine/trainer_hooks.hpp: it averages gradients its own way,
// puts off the sums of microbatches, changes gradients and weights, and scales the loss. It runs on any number of
// ranks, all of them replicas. It ends with exit code 1 and the line of the first wrong answer.
#include <p3d/base/error.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/kernels/elementwise.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../checks.hpp"

namespace {

using p3d::device::Bf16;
using p3d::device::Fp64;
using Hooks = p3d::engine::TrainerHooks<Fp64>;
using Bucket = p3d::engine::GradientBucket<Fp64>;
using Numbers = p3d::engine::OwnedNumbers<double>;
using Keys = std::vector<std::string>;

using p3d::example::error_of;
using p3d::example::has;

struct Run {
  std::vector<double> losses, norms;
  std::int64_t sent = 0;  ///< bytes of sums over replicas
};

/// Trains three steps of a tiny model, whose replicas read 4 microbatches each.
template <class P = Fp64>
Run train(p3d::engine::TrainerHooks<P> const& hooks, Keys const& more = {}) {
  auto const world = p3d::comm::Communicator::world();
  Keys keys{"model.preset=llama-tiny", "model.layers=2",        "model.seq_len=16",     "batch.microbatches=4",
            "batch.micro=1",           "data.format=synthetic", "run.precision=fp64",   "run.steps=3",
            "optimizer.lr=0.01",       "comm.bucket_mb=0.01",   "optimizer.grad_clip=1"};
  keys.insert(keys.end(), more.begin(), more.end());
  auto const parsed = p3d::config::parse_text("", "hooks", ".", keys, world.size());
  if (!parsed.config) throw std::runtime_error(p3d::config::format(parsed.errors));
  p3d::engine::Trainer<P> trainer(*parsed.config, world);
  trainer.set_hooks(hooks);
  Run run;
  for (int step = 0; step < 3; ++step) {
    auto const result = trainer.step();
    run.losses.push_back(result.loss);
    run.norms.push_back(result.grad_norm);
  }
  run.sent = trainer.mesh().along({"dp"}).accounting().sent.total();
  return run;
}

double distance(Run const& a, Run const& b) {
  double most = 0.0;
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    most = std::max({most, std::abs(a.losses[i] - b.losses[i]), std::abs(a.norms[i] - b.norms[i])});
  return most;
}
bool same(Run const& a, Run const& b) { return a.losses == b.losses && a.norms == b.norms; }

/// A sum of the program's own: every rank gathers the bucket of every replica, and adds them in the order of ranks when
/// they have come.
p3d::comm::Request sum_in_order_of_ranks(Bucket const& bucket) {
  auto const n = static_cast<std::int64_t>(bucket.values.extent(0));
  auto const ranks = bucket.replicas->size();
  auto const host = p3d::device::copy_to_host("hooks", p3d::device::ExecSpace(), bucket.values);
  auto const mine = std::make_shared<std::vector<double>>(host.data(), host.data() + n);
  auto const all = std::make_shared<std::vector<double>>(static_cast<std::size_t>(n * ranks));
  auto request = bucket.replicas->all_gather(mine->data(), all->data(), n, p3d::comm::Type::float64);
  request.on_complete([values = bucket.values, mine, all, n, ranks] {
    for (std::int64_t i = 0; i < n; ++i) {
      double sum = 0.0;
      for (std::int64_t r = 0; r < ranks; ++r) sum += (*all)[static_cast<std::size_t>(r * n + i)];
      (*mine)[static_cast<std::size_t>(i)] = sum;
    }
    p3d::device::copy_from_host<double>(p3d::device::ExecSpace(), *mine, values);
  });
  return request;
}

void run() {
  auto const world = p3d::comm::Communicator::world();
  int const n = world.size();
  auto const plain = train<Fp64>({});

  // grad_sync: the program's own sum; and one that leaves all sums to p3d.
  int asked = 0;
  Hooks own;
  own.grad_sync = [&](Bucket const& bucket) -> std::optional<p3d::comm::Request> {
    ++asked;
    CHECK(bucket.replicas->size() == n && bucket.values.extent(0) > 0);
    CHECK(bucket.shard->buckets.at(bucket.bucket).begin == bucket.layout->begin);
    return sum_in_order_of_ranks(bucket);
  };
  CHECK(distance(train(own), plain) < 1e-12);
  int const buckets = asked / 3;
  CHECK(buckets > 2 && asked == 3 * buckets);
  asked = 0;
  own.grad_sync = [&](Bucket const&) -> std::optional<p3d::comm::Request> {
    ++asked;
    return {};
  };
  CHECK(same(train(own), plain) && asked == 3 * buckets);
  own.grad_sync = [](Bucket const&) { return std::optional<p3d::comm::Request>(std::in_place); };  // no sum at all
  CHECK(n == 1 || distance(train(own), plain) > 1e-6);

  // no_sync: three of four sums are put off; so p3d sends a quarter, and asks for each bucket once.
  Hooks hooks;
  int puts_off = 0;
  hooks.no_sync = [&](std::int64_t step, int stage, int number) {
    CHECK(step >= 1 && step <= 3 && stage == 0 && number == puts_off++ % 3);
    return true;
  };
  CHECK(has(error_of([&] { train(hooks); }), "memory.reduce"));
  if (n > 1) {
    Keys const often{"memory.shard=gradients", "memory.reduce=microbatch", "memory.shard_layers=2"};
    auto const four_sums = train<Fp64>({}, often);
    asked = puts_off = 0;
    hooks.grad_sync = [&](Bucket const&) -> std::optional<p3d::comm::Request> {
      ++asked;
      return {};
    };
    auto const one_sum = train(hooks, often);
    CHECK(puts_off == 9 && asked % 3 == 0 && asked > 0);
    CHECK(distance(one_sum, plain) < 1e-12 && distance(four_sums, plain) < 1e-12);
    CHECK(4 * one_sum.sent < 2 * four_sums.sent);
    puts_off = 0;
    hooks.no_sync = [&](std::int64_t, int, int number) { return number % 2 == 0; };  // sums of two microbatches
    CHECK(distance(train(hooks, often), plain) < 1e-12);
  }

  // finalize_model_grads: gradients are there in the size of the model, and what becomes of them is what counts.
  Hooks last;
  std::int64_t elements = 0, calls = 0;
  last.finalize_model_grads = [&](std::span<Numbers const> gradients, std::int64_t targets) {
    CHECK(targets == 4 * n * 16);
    elements = 0;
    ++calls;
    for (auto const& g : gradients) {
      elements += g.run.count;
      p3d::kernels::fill<double>(p3d::device::ExecSpace(), g.values, 0.0);
    }
  };
  auto const none = train(last);
  CHECK(calls == 3 && none.norms == std::vector<double>(3, 0.0) && elements > 0);
  auto const whole = elements;
  if (n > 1) {
    train(last, {"memory.shard=gradients"});
    double sum = static_cast<double>(elements);
    p3d::comm::Communicator(world.mpi(), "sum")
        .all_reduce(&sum, 1, p3d::comm::Type::float64, p3d::comm::Reduction::sum)
        .wait();
    CHECK(sum == static_cast<double>(whole));  // replicas own parts
  }

  // param_sync: weights that become zero give every token the same probability.
  Hooks after;
  after.param_sync = [&](std::span<Numbers const> weights, std::int64_t update) {
    CHECK(update >= 1 && update <= 3);
    for (auto const& w : weights) p3d::kernels::fill<double>(p3d::device::ExecSpace(), w.values, 0.0);
  };
  auto const zero = train(after);
  CHECK(zero.losses[0] == plain.losses[0] && std::abs(zero.losses[1] - std::log(256.0)) < 1e-12);
  CHECK(n == 1 || std::abs(train(after, {"memory.shard=parameters"}).losses[2] - std::log(256.0)) < 1e-12);
  CHECK(has(error_of([&] { train(after, {"memory.offload_optimizer=disk", "memory.offload_dir=."}); }), "offloaded"));

  // Where layers read rounded weights the hook is given the master weights; a tied embedding is on both stages.
  p3d::engine::TrainerHooks<Bf16> rounded;
  rounded.param_sync = [](std::span<p3d::engine::OwnedNumbers<float> const> weights, std::int64_t) {
    for (auto const& w : weights) p3d::kernels::fill<float>(p3d::device::ExecSpace(), w.values, 0.0F);
  };
  Keys stages{"run.precision=bf16", "model.tied_embeddings=true"};
  if (n > 1) stages.insert(stages.end(), {"parallel.pp=2", "pipeline.schedule=1f1b"});
  CHECK(std::abs(train<Bf16>(rounded, stages).losses[2] - std::log(256.0)) < 1e-6);

  // grad_scale: a power of two changes no bit; zero is refused.
  Hooks scale;
  scale.grad_scale = [](std::int64_t step) { return std::ldexp(1.0, static_cast<int>(3 * step)); };
  CHECK(same(train(scale), plain));
  scale.grad_scale = [](std::int64_t) { return 0.0; };
  CHECK(has(error_of([&] { train(scale); }), "finite positive factor"));
  if (world.rank() == 0) std::printf("hooks: all answers are right on %d ranks\n", n);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    p3d::comm::Environment mpi(argc, argv);
    try {
      auto const node = p3d::comm::node_share();
      p3d::device::Environment kokkos(argc, argv, 1, node.rank);
      run();
      return mpi.exit_code(0);
    } catch (std::exception const& e) {
      std::fprintf(stderr, "%s\n", e.what());
      p3d::comm::abort_all(1);
    }
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
