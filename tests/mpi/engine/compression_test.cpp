// SPDX-License-Identifier: Apache-2.0
// Compressed gradients (comm.compress): every layout has the losses of workers that are written out here on one rank.
// The oracle takes nothing but gradients from p3d: those of worker v of V in step s are those of step s V + v of a
// training whose batch is a worker's.

#include <p3d/config/optimizer_state.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/optim/lr_schedule.hpp>
#include <p3d/plan/memory.hpp>

#include <support/errors.hpp>
#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "training.hpp"

namespace {

using namespace p3d;
using test::Keys;
using test::words_of;

constexpr int updates = 12, all_workers = 4;

Keys const common{"batch.micro=1",
                  "batch.global=8",
                  "optimizer.lr=1e-2",
                  "comm.bucket_mb=0.002",
                  "run.seed=3",
                  "run.steps=50",
                  "data.split=0.2",
                  "comm.workers=4",
                  "model.preset=llama-tiny",
                  "model.tied_embeddings=false",
                  test::licence_text()};

config::Config make_config(Keys const& more, int ranks) {
  return test::config_of(test::joined({test::tiny_model(4), common, more}), ranks);
}

using Numbers = std::vector<double>;
using ByName = std::map<std::string, Numbers>;

/// The shape of a parameter's lines: rows, or columns where tp divides the columns.
struct Lines {
  std::int64_t number, length;
  bool columns;
  std::size_t at(std::int64_t line, std::int64_t e) const {
    return static_cast<std::size_t>(columns ? e * number + line : line * length + e);
  }
};
Lines lines_of(layout::ParamSpec const& spec) {
  bool const columns = !spec.splits.empty() && spec.splits[0].dimension == 1;
  return columns ? Lines{spec.cols, spec.rows, true} : Lines{spec.rows, spec.cols, false};
}

/// Numbers of 8 bits with a scale for each 128 of a line, as kernels/compression.hpp describes them.
Numbers rounded(layout::ParamSpec const& spec, Numbers const& x, std::uint64_t seed, int step, int worker) {
  auto out = x;
  auto const key = base::random_key(seed, "compress." + spec.name);
  auto const stream = static_cast<std::uint64_t>(step) * 131072 + static_cast<std::uint64_t>(worker);
  auto const lines = lines_of(spec);
  for (std::int64_t l = 0; l < lines.number; ++l) {
    for (std::int64_t begin = 0; begin < lines.length; begin += 128) {
      auto const end = std::min(lines.length, begin + 128);
      double most = 0;
      for (auto e = begin; e < end; ++e) most = std::max(most, std::fabs(x[lines.at(l, e)]));
      double const scale = static_cast<float>(most / 127);
      for (auto e = begin; e < end; ++e) {
        double const y = scale > 0 ? x[lines.at(l, e)] / scale : 0.0;
        auto const random = base::random_word(key, stream, static_cast<std::uint64_t>(l * lines.length + e));
        double const up = (random >> 8) * std::ldexp(1.0, -24) < y - std::floor(y) ? 1 : 0;
        out[lines.at(l, e)] = scale * std::clamp(std::floor(y) + up, -127.0, 127.0);
      }
    }
  }
  return out;
}

/// The k numbers of each line that are largest; the others are zero.
Numbers largest(layout::ParamSpec const& spec, Numbers const& x, double share) {
  Numbers out(x.size(), 0.0);
  auto const lines = lines_of(spec);
  auto const k = std::max<std::int64_t>(1, std::llround(share * static_cast<double>(lines.length)));
  std::vector<std::int64_t> order(static_cast<std::size_t>(lines.length));
  for (std::int64_t l = 0; l < lines.number; ++l) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return std::fabs(x[lines.at(l, a)]) > std::fabs(x[lines.at(l, b)]); });
    for (std::int64_t e = 0; e < k; ++e)
      out[lines.at(l, order[static_cast<std::size_t>(e)])] = x[lines.at(l, order[static_cast<std::size_t>(e)])];
  }
  return out;
}

/// Makes rows of r numbers each orthonormal columns, one after the other.
void orthonormalise(Numbers& x, std::size_t r) {
  auto const n = x.size() / r;
  for (std::size_t i = 0; i < r; ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      double dot = 0;
      for (std::size_t e = 0; e < n; ++e) dot += x[e * r + i] * x[e * r + k];
      for (std::size_t e = 0; e < n; ++e) x[e * r + i] -= dot * x[e * r + k];
    }
    double square = 0;
    for (std::size_t e = 0; e < n; ++e) square += x[e * r + i] * x[e * r + i];
    for (std::size_t e = 0; e < n; ++e) x[e * r + i] /= std::sqrt(square);
  }
}

/// PowerSGD of one matrix: takes what workers have to send, leaves what they keep, and returns what is applied. q:
/// [cols, rank], from step to step.
Numbers low_rank(layout::ParamSpec const& spec, std::vector<Numbers*> const& workers, Numbers& q, std::size_t rank) {
  auto const n = static_cast<std::size_t>(spec.rows), m = static_cast<std::size_t>(spec.cols);
  Numbers sum(n * m, 0.0), p(n * rank, 0.0), out(n * m, 0.0);
  for (auto const* w : workers)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += (*w)[i];
  orthonormalise(q, rank);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < m; ++j)
      for (std::size_t k = 0; k < rank; ++k) p[i * rank + k] += sum[i * m + j] * q[j * rank + k];
  orthonormalise(p, rank);
  std::fill(q.begin(), q.end(), 0.0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < m; ++j)
      for (std::size_t k = 0; k < rank; ++k) q[j * rank + k] += sum[i * m + j] * p[i * rank + k];
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < m; ++j)
      for (std::size_t k = 0; k < rank; ++k) out[i * m + j] += p[i * rank + k] * q[j * rank + k];
  for (auto* w : workers)
    for (std::size_t i = 0; i < sum.size(); ++i) (*w)[i] -= out[i] / static_cast<double>(workers.size());
  return out;
}
/// The first factor: as parallel/low_rank.cpp draws it in step 1.
Numbers first_factor(layout::ParamSpec const& spec, std::uint64_t seed, std::size_t rank) {
  Numbers q(static_cast<std::size_t>(spec.cols) * rank);
  auto const key = base::random_key(seed, "low_rank." + spec.name);
  for (std::size_t j = 0; j < q.size() / rank; ++j)
    for (std::size_t k = 0; k < rank; ++k) q[j * rank + k] = base::random_normal(key, 1, j * rank + k);
  return q;
}

/// Losses of AdamW (arXiv 1711.05101) with gradients of workers that are compressed each on its own.
Numbers oracle(Keys const& more) {
  auto const c = make_config(test::joined({more, Keys{"run.precision=fp64"}}), 1);
  auto const& o = c.optimizer;
  auto const workers = c.comm.workers;
  auto const batch = fmt::format("batch.global={}", c.batch.global / workers);
  engine::Trainer<device::Fp64> trainer(
      make_config(test::joined({more, Keys{"comm.compress=none", "comm.workers=0", "comm.topk=0.01",
                                           "comm.powersgd_rank=4", batch, "run.precision=fp64", "optimizer.type=sgd",
                                           "optimizer.lr=0", "optimizer.min_lr=0", "run.steps=1000"}}),
                  1),
      comm::Communicator::self());
  trainer.inspection().keep_gradients(true);
  auto const& specs = trainer.plan().table.specs();
  ByName weights, first, second, applied;
  std::vector<ByName> shares(static_cast<std::size_t>(workers));
  for (auto const& spec : specs) {
    weights[spec.name] = trainer.inspection().gather_value(spec.name);
    Numbers const zeros(static_cast<std::size_t>(spec.size()), 0.0);
    first[spec.name] = second[spec.name] = applied[spec.name] = zeros;
    for (auto& share : shares) share[spec.name] = zeros;
  }
  bool const topk = c.comm.compress == config::Compress::topk;
  auto const rank = static_cast<std::size_t>(c.comm.powersgd_rank);
  auto const factored = [&](layout::ParamSpec const& spec) {
    return c.comm.compress == config::Compress::powersgd && spec.rows > 1 &&
           2 * (spec.rows + spec.cols) * c.comm.powersgd_rank < spec.size();
  };
  ByName factors;
  for (auto const& spec : specs) factors[spec.name] = first_factor(spec, c.run.seed, rank);
  Numbers losses;
  for (int t = 0; t < updates; ++t) {
    double loss = 0, squares = 0;
    ByName gradients;
    for (auto const& part : trainer.checkpoint_parts({})) {
      auto const& numbers = weights.at(part.array.substr(part.array.find('/') + 1));
      part.copy_in(0, std::ssize(numbers), numbers.data());
    }
    for (int v = 0; v < workers; ++v) {
      loss += trainer.step().loss / workers;
      for (auto const& spec : specs) {
        auto g = trainer.inspection().gather_gradient(spec.name);
        for (auto& x : g) x /= workers;
        auto& share = shares[static_cast<std::size_t>(v)][spec.name];
        if (spec.rows > 1 && topk) {
          for (std::size_t i = 0; i < g.size(); ++i) g[i] -= share[i];
          g = largest(spec, g, c.comm.topk);
          for (std::size_t i = 0; i < g.size(); ++i) share[i] += g[i];
        } else if (factored(spec)) {
          for (std::size_t i = 0; i < g.size(); ++i) share[i] += g[i];
          continue;
        } else if (spec.rows > 1 && c.comm.compress == config::Compress::int8) {
          g = rounded(spec, g, c.run.seed, t + 1, v);
        }
        auto& sum = spec.rows > 1 && topk ? applied[spec.name] : gradients[spec.name];
        sum.resize(g.size());
        for (std::size_t i = 0; i < g.size(); ++i) sum[i] += g[i];
      }
    }
    losses.push_back(loss);
    for (auto const& spec : specs) {
      auto& g = gradients[spec.name];
      if (factored(spec)) {
        std::vector<Numbers*> all;
        for (auto& share : shares) all.push_back(&share[spec.name]);
        g = low_rank(spec, all, factors[spec.name], rank);
      } else if (spec.rows > 1 && c.comm.compress != config::Compress::powersgd) {
        g = topk ? applied[spec.name] : rounded(spec, g, c.run.seed, t + 1, workers);
      }
      for (double x : g) squares += x * x;
    }
    double const norm = std::sqrt(squares), scale = o.grad_clip > 0 && norm > o.grad_clip ? o.grad_clip / norm : 1.0;
    double const lr = optim::learning_rate(o, t, c.run.steps);
    for (auto const& spec : specs) {
      auto &w = weights[spec.name], &m = first[spec.name], &s = second[spec.name];
      for (std::size_t i = 0; i < w.size(); ++i) {
        double const g = scale * gradients[spec.name][i];
        m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
        s[i] = o.beta2 * s[i] + (1 - o.beta2) * g * g;
        double const mean = m[i] / (1 - std::pow(o.beta1, t + 1)), square = s[i] / (1 - std::pow(o.beta2, t + 1));
        w[i] -= lr * (mean / (std::sqrt(square) + o.eps) + (spec.decay ? o.weight_decay : 0.0) * w[i]);
      }
    }
  }
  return losses;
}

template <class P>
Numbers losses(Keys const& more, comm::Communicator const& world, int steps = updates) {
  engine::Trainer<P> trainer(make_config(more, world.size()), world);
  Numbers out;
  for (int s = 0; s < steps; ++s) out.push_back(trainer.step().loss);
  return out;
}

std::vector<Keys> const kinds{{"comm.compress=int8"},
                              {"comm.compress=topk", "comm.topk=0.06"},
                              {"comm.compress=powersgd", "comm.powersgd_rank=2"}};
bool is_powersgd(Keys const& kind) { return kind[0] == "comm.compress=powersgd"; }

/// Layouts for so many ranks, with 4 workers or fewer of them on a replica.
std::vector<Keys> layouts(int ranks) {
  static std::map<int, std::vector<std::string>> const by_ranks{
      {1,
       {"parallel.dp=1", "pipeline.schedule=looped_bfs pipeline.virtual_stages=2",
        "pipeline.schedule=zb_h1 memory.recompute=full", "memory.offload_activations=disk"}},
      {2,
       {"parallel.dp=2", "parallel.dp=2 memory.shard=optimizer", "parallel.tp=2",
        "parallel.tp=2 parallel.sequence=true", "parallel.cp=2", "parallel.pp=2",
        "parallel.pp=2 pipeline.schedule=zb_h1", "parallel.pp=2 pipeline.vocab_parallel=true",
        "parallel.pp=2 pipeline.schedule=interleaved_1f1b pipeline.virtual_stages=2",
        "parallel.dp=2 optimizer.post_validation=true", "parallel.tp=2 parallel.embedding=replicated"}},
      {3, {"parallel.cp=3", "parallel.pp=3"}},
      {4,
       {"parallel.dp=4", "parallel.dp=4 memory.shard=optimizer memory.shard_over=2",
        "parallel.dp=2 parallel.tp=2 parallel.sequence=true", "parallel.dp=2 parallel.pp=2",
        "parallel.dp=2 parallel.cp=2 memory.shard=optimizer",
        "parallel.pp=2 parallel.tp=2 pipeline.vocab_parallel=true", "parallel.dp=4 memory.offload_optimizer=disk"}}};
  std::vector<Keys> out;
  for (auto const& text : by_ranks.at(ranks)) out.push_back(words_of(text));
  return out;
}

class Compression : public testing::Test {
protected:
  comm::Communicator world = comm::Communicator::world();
};

TEST_F(Compression, LossesAreThoseOfWorkersOnEveryLayout) {
  for (auto const& kind : kinds) {
    auto const expected = oracle(kind);
    auto const plain =
        losses<device::Fp64>({"run.precision=fp64", "comm.workers=0", "parallel.dp=1"}, comm::Communicator::self());
    EXPECT_GT(std::fabs(expected.back() - plain.back()), 1e-6) << "compression changes the losses";
    for (auto layout : layouts(world.size())) {
      if (world.size() == 3) layout.insert(layout.end(), {"model.seq_len=12"});
      SCOPED_TRACE(fmt::format("{} {}", kind[0], fmt::join(layout, " ")));
      auto const here = world.size() == 3 ? oracle(test::joined({kind, Keys{"model.seq_len=12"}})) : expected;
      auto const found = losses<device::Fp64>(test::joined({kind, Keys{"run.precision=fp64"}, layout}), world);
      for (std::size_t t = 0; t < found.size(); ++t) EXPECT_NEAR(found[t], here[t], 1e-12 * here[t]) << "update " << t;
    }
  }
}

/// The state of a training, as a checkpoint holds it: array, place in it and numbers.
struct Array {
  std::string name;
  std::int64_t row, col, rows, cols;
  std::vector<char> bytes;
};
template <class P>
std::vector<Array> state(engine::Trainer<P>& trainer) {
  std::vector<Array> out;
  for (auto const& part : trainer.checkpoint_parts(config::checkpoint_state(trainer.config()))) {
    auto const count = part.rows * part.cols;
    std::vector<char> bytes(static_cast<std::size_t>(count) * sizeof(typename P::Master));
    part.copy_out(0, count, bytes.data());
    out.push_back({part.array, part.row_begin, part.col_begin, part.rows, part.cols, std::move(bytes)});
  }
  return out;
}

/// All weights of a training, on every rank.
template <class P>
ByName weights(engine::Trainer<P>& trainer) {
  ByName out;
  for (auto const& spec : trainer.plan().table.specs()) out[spec.name] = trainer.inspection().gather_value(spec.name);
  return out;
}

// Where nothing is clipped, the number of replicas changes no bit: the norm is the only sum over them.
TEST_F(Compression, ReplicasChangeNoBit) {
  if (world.size() < 2 || world.size() == 3) GTEST_SKIP() << "2 or 4 ranks";
  auto const same = [&]<class P>(P, std::string const& types) {
    for (auto const& kind : kinds) {
      if (is_powersgd(kind)) continue;  // its sums over workers are all-reduces
      SCOPED_TRACE(fmt::format("{} {}", kind[0], types));
      ByName first;
      for (int dp = 1; dp <= world.size(); dp *= 2) {
        auto const group = world.split(world.rank() / dp, world.rank(), "replicas");
        engine::Trainer<P> trainer(
            make_config(test::joined({kind, words_of(types), Keys{"optimizer.grad_clip=0"}}), dp), group);
        for (int s = 0; s < 5; ++s) trainer.step();
        auto found = weights(trainer);
        if (dp == 1)
          first = std::move(found);
        else
          EXPECT_EQ(found, first) << "dp " << dp;
      }
    }
  };
  same(device::Fp32(), "run.precision=fp32");
  same(device::Fp64(), "run.precision=fp64 optimizer.delay=1");
  same(device::Fp32(), "run.precision=fp32 data.pack=true data.eod_token=10");
#if P3D_16BIT
  same(device::Bf16Gradients(), "run.precision=bf16 precision.stochastic_rounding=true precision.gradients=bf16");
#endif
}

/// The numbers of whole arrays of a group ("applied_gradient"), on every rank, from parts of all ranks.
ByName gathered(std::vector<Array> const& parts, std::string const& group, layout::ParamTable const& table,
                comm::Communicator& world) {
  ByName out, counts;
  for (auto const& spec : table.specs()) {
    auto& numbers = out[spec.name] = Numbers(static_cast<std::size_t>(spec.size()), 0.0);
    Numbers count(numbers.size(), 0.0);
    for (auto const& a : parts) {
      if (a.name != group + "/" + spec.name) continue;
      auto const* const from = reinterpret_cast<double const*>(a.bytes.data());
      for (std::int64_t r = 0; r < a.rows; ++r)
        for (std::int64_t c = 0; c < a.cols; ++c) {
          auto const at = static_cast<std::size_t>((a.row + r) * spec.cols + a.col + c);
          numbers[at] += from[r * a.cols + c];
          count[at] += 1;
        }
    }
    world.all_reduce(numbers.data(), std::ssize(numbers), comm::Type::float64, comm::Reduction::sum).wait();
    world.all_reduce(count.data(), std::ssize(count), comm::Type::float64, comm::Reduction::sum).wait();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_GT(count[i], 0) << group << "/" << spec.name;
      numbers[i] /= count[i];
    }
  }
  return out;
}

void expect_sum(ByName const& total, std::vector<ByName> const& shares) {
  for (auto const& [name, numbers] : total) {
    double largest = 0, wrong = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      double sum = 0;
      for (auto const& share : shares) sum += share.at(name)[i];
      largest = std::max(largest, std::fabs(numbers[i]));
      wrong = std::max(wrong, std::fabs(numbers[i] - sum));
    }
    EXPECT_LE(wrong, 1e-12 * largest) << name;
  }
}

// What is applied is the sum of all shares, also when other workers go on, on another number of replicas.
TEST_F(Compression, SharesAddUpToWhatIsApplied) {
  Keys const topk{"comm.compress=topk", "run.precision=fp64"};
  auto const read = [&](engine::Trainer<device::Fp64>& trainer) {
    auto const parts = state(trainer);
    std::vector<ByName> shares;
    for (int v = 0; v < trainer.config().comm.workers; ++v)
      shares.push_back(gathered(parts, fmt::format("worker_share.{}", v), trainer.plan().table, world));
    return std::pair(gathered(parts, "applied_gradient", trainer.plan().table, world), std::move(shares));
  };
  for (auto const& layout : layouts(world.size())) {
    if (world.size() == 3) return;
    if (layout.back() == "pipeline.vocab_parallel=true") continue;  // its order is not that of 8 workers
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    engine::Trainer<device::Fp64> first(make_config(test::joined({topk, layout}), world.size()), world);
    for (int s = 0; s < 4; ++s) first.step();
    auto const [applied, shares] = read(first);
    expect_sum(applied, shares);
    // 8 workers, each with an eighth of what was applied.
    engine::Trainer<device::Fp64> second(
        make_config(test::joined({topk, layout, Keys{"comm.workers=8"}}), world.size()), world);
    auto const arrays = config::checkpoint_state(first.config());
    for (auto const& part : second.checkpoint_parts(arrays)) {
      auto const name = part.array.substr(part.array.find('/') + 1);
      auto const worker = part.array.find("worker_share.");
      if (worker != 0 && !part.array.starts_with("applied_gradient/")) continue;
      auto const& numbers =
          worker == 0 ? shares.at(static_cast<std::size_t>(part.array[part.array.find('.') + 1] - '0')).at(name)
                      : applied.at(name);
      for (std::int64_t r = 0; r < part.rows; ++r)
        part.copy_in(r * part.cols, part.cols,
                     numbers.data() + (part.row_begin + r) * part.global_cols + part.col_begin);
    }
    auto const [applied_now, shares_now] = read(second);
    EXPECT_EQ(applied_now, applied);
    expect_sum(applied_now, shares_now);
    second.step();
    auto const [applied_then, shares_then] = read(second);
    expect_sum(applied_then, shares_then);
  }
}

// What is applied, and what workers keep, adds up to all gradients, also when other workers go on (PowerSGD).
TEST_F(Compression, WhatIsKeptAndAppliedIsAllThereWas) {
  if (world.size() == 3) return;
  Keys const still{"run.precision=fp64", "optimizer.type=sgd", "optimizer.lr=0", "optimizer.min_lr=0",
                   "optimizer.grad_clip=0"};
  auto const run = [&](engine::Trainer<device::Fp64>& trainer, ByName& sum) {
    trainer.inspection().keep_gradients(true);
    for (int s = 0; s < 3; ++s) {
      trainer.step();
      for (auto const& spec : trainer.plan().table.specs()) {
        auto const g = trainer.inspection().gather_gradient(spec.name);
        auto& total = sum[spec.name];
        total.resize(g.size());
        for (std::size_t i = 0; i < g.size(); ++i) total[i] += g[i];
      }
    }
  };
  for (auto const& layout : layouts(world.size())) {
    if (layout.back() == "optimizer.post_validation=true" || layout.back() == "pipeline.vocab_parallel=true" ||
        layout.back() == "memory.offload_optimizer=disk")
      continue;
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    engine::Trainer<device::Fp64> plain(
        make_config(test::joined({still, layout, Keys{"comm.workers=0"}}), world.size()), world);
    engine::Trainer<device::Fp64> first(make_config(test::joined({still, kinds[2], layout}), world.size()), world);
    auto more = test::joined({still, kinds[2], layout});
    more.emplace_back("comm.workers=8");
    engine::Trainer<device::Fp64> second(make_config(more, world.size()), world);
    ByName all, applied;
    run(plain, all);
    run(first, applied);
    auto const kept = [&](engine::Trainer<device::Fp64>& trainer) {
      auto const parts = state(trainer);
      std::vector<ByName> out;
      for (int v = 0; v < trainer.config().comm.workers; ++v)
        out.push_back(gathered(parts, fmt::format("worker_residual.{}", v), trainer.plan().table, world));
      return out;
    };
    auto const expect_all = [&](std::vector<ByName> residuals) {
      residuals.push_back(applied);
      expect_sum(all, residuals);
    };
    auto const residuals = kept(first);
    expect_all(residuals);
    for (auto const& part : second.checkpoint_parts(config::checkpoint_state(first.config()))) {
      if (!part.array.starts_with("worker_residual.")) continue;
      auto const& numbers = residuals.at(static_cast<std::size_t>(part.array[part.array.find('.') + 1] - '0'))
                                .at(part.array.substr(part.array.find('/') + 1));
      for (std::int64_t r = 0; r < part.rows; ++r)
        part.copy_in(r * part.cols, part.cols,
                     numbers.data() + (part.row_begin + r) * part.global_cols + part.col_begin);
    }
    second.set_steps_done(3);
    run(plain, all);
    run(second, applied);
    expect_all(kept(second));
  }
}

// What is remembered is state: a training that is given the arrays of another one goes on with its bits.
TEST_F(Compression, GoesOnFromItsState) {
  for (auto const& kind : kinds)
    for (auto const& layout : layouts(world.size())) {
      if (world.size() == 3) return;
      SCOPED_TRACE(fmt::format("{} {}", kind[0], fmt::join(layout, " ")));
      auto const config = make_config(test::joined({kind, Keys{"run.precision=fp32"}, layout}), world.size());
      engine::Trainer<device::Fp32> first(config, world), second(config, world);
      for (int s = 0; s < 3; ++s) first.step();
      auto const saved = state(first);
      second.step();  // leaves something to forget
      second.forget_compression();
      for (auto const& array : state(second)) {
        if (array.name.find("worker_") == std::string::npos && !array.name.starts_with("applied_")) continue;
        EXPECT_TRUE(std::ranges::all_of(array.bytes, [](char byte) { return byte == 0; })) << array.name;
      }
      auto const parts = second.checkpoint_parts(config::checkpoint_state(config));
      ASSERT_EQ(parts.size(), saved.size());
      for (std::size_t i = 0; i < parts.size(); ++i)
        parts[i].copy_in(0, parts[i].rows * parts[i].cols, saved[i].bytes.data());
      second.set_steps_done(3);
      for (int s = 0; s < 3; ++s) {
        auto const a = first.step(), b = second.step();
        EXPECT_NEAR(a.loss, b.loss, 1e-6) << "the first training of a process has its node's memory";
      }
    }
}

// Memory and messages are those that were predicted: to the byte.
TEST_F(Compression, BytesAreThosePredicted) {
  for (auto const& kind : kinds)
    for (auto const& layout : layouts(world.size())) {
      if (world.size() == 3) return;
      SCOPED_TRACE(fmt::format("{} {}", kind[0], fmt::join(layout, " ")));
      engine::Trainer<device::Fp32> trainer(
          make_config(test::joined({kind, Keys{"run.precision=fp32"}, layout}), world.size()), world);
      trainer.step();
      int const here = trainer.mesh().coordinate("pp");
      EXPECT_EQ(trainer.memory_in_use().grads, trainer.plan().memory_of(here).grads);
      auto const& c = trainer.config();
      if (c.parallel.dp != world.size() || c.memory.divides()) continue;  // others send along dp, too
      auto& replicas = trainer.mesh().along("dp");
      std::int64_t predicted = 0;
      for (int s : trainer.plan().stages.stages_of(here)) {
        layout::StageParams const params(trainer.plan().table, trainer.plan().stages, s, trainer.plan().grid.sizes(),
                                         layout::PerAxis::all(0));
        predicted += plan::stage_compression(c, params).traffic();
      }
      replicas.reset_accounting();
      trainer.step();
      auto const sent = replicas.accounting().sent;
      std::int64_t total = sent.messages + sent.all_gather + sent.all_reduce;
      EXPECT_EQ(sent.reduce_scatter + sent.broadcast, 0);
      EXPECT_EQ(sent.all_reduce > 0, is_powersgd(kind) && c.parallel.dp > 1);
      world.all_reduce(&total, 1, comm::Type::int64, comm::Reduction::sum).wait();
      EXPECT_EQ(total, predicted);
    }
}

#if P3D_16BIT
// A number that is not finite is skipped with its step, and nobody remembers it. (PowerSGD refuses scaled losses.)
TEST_F(Compression, WhatIsNotFiniteIsNotRemembered) {
  for (auto const& kind : {kinds[0], kinds[1]})
    for (auto const& layout : layouts(world.size())) {
      if (world.size() == 3) return;
      if (layout.back() == "optimizer.post_validation=true") continue;
      SCOPED_TRACE(fmt::format("{} {}", kind[0], fmt::join(layout, " ")));
      auto const config = make_config(
          test::joined({kind, Keys{"run.precision=fp16", "precision.loss_scale_initial=1e9"}, layout}), world.size());
      engine::Trainer<device::Fp16> trainer(config, world);
      int skipped = 0;
      for (int s = 0; s < 40; ++s) skipped += trainer.step().skipped() ? 1 : 0;
      EXPECT_GT(skipped, 3);
      EXPECT_LT(skipped, 35);
      auto const result = trainer.step();
      EXPECT_TRUE(std::isfinite(result.loss) && std::isfinite(result.grad_norm));
    }
}
#endif

// An embedding that two stages read has two gradients, neither of which is whole where it would be compressed.
TEST_F(Compression, TwoGradientsOfAnEmbeddingAreRefused) {
  for (Keys const& more :
       {Keys{"model.tied_embeddings=true"}, Keys{"model.mtp.depth=1", "model.tied_embeddings=false"}}) {
    auto keys = test::joined({kinds[0], more});
    EXPECT_NO_THROW(engine::make_run_plan(make_config(keys, 1)));
    keys.insert(keys.end(), {"pipeline.schedule=looped_bfs", "pipeline.virtual_stages=2"});
    test::expect_error([&] { engine::make_run_plan(make_config(keys, 1)); }, "the first and the last of 2 stages read");
  }
  auto keys = kinds[2];
  keys.emplace_back("comm.powersgd_rank=100");
  test::expect_error([&] { engine::make_run_plan(make_config(keys, 1)); }, "comm.powersgd_rank");
}

TEST_F(Compression, HooksThatSumAreRefused) {
  engine::Trainer<device::Fp32> trainer(make_config({"comm.compress=int8", "run.precision=fp32"}, 1),
                                        comm::Communicator::self());
  engine::TrainerHooks<device::Fp32> hooks;
  hooks.grad_sync = [](auto const&) { return comm::Request(); };
  try {
    trainer.set_hooks(std::move(hooks));
    FAIL() << "refused";
  } catch (base::Error const& e) {
    EXPECT_NE(std::string(e.what()).find("comm.compress"), std::string::npos) << e.what();
  }
}

}  // namespace
