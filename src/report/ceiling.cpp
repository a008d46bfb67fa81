// SPDX-License-Identifier: Apache-2.0
// The ceiling of the MFU: the model's GEMMs, each timed alone, on all ranks at once. The time of a step that consists
// of nothing else gives the FLOP/s that this machine could reach with this model. Example: a step of 2 s whose GEMMs
// alone take 1.6 s has an MFU of 0.8.
#include <p3d/report/ceiling.hpp>

#include <p3d/base/timer.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/layout/axes.hpp>
#include <p3d/layout/block_sizes.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/plan/model_cost.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

namespace p3d::report {

namespace {

constexpr std::int64_t least_tokens = 128;  ///< with fewer tokens the speed would change, not only the time
constexpr std::int64_t least_columns = 1024;

/// One kind of linear layer.
struct Linear {
  std::string name;
  std::int64_t out, in;
  double times;  ///< number of such layers per microbatch and rank
  bool is_head = false;
};

/// The size that brings `flops` down to `most`, but not below `least`.
std::int64_t fit(std::int64_t size, double flops, double most, std::int64_t least) {
  if (most <= 0.0 || flops <= most) return size;
  return std::min(size, std::max(least, static_cast<std::int64_t>(static_cast<double>(size) * most / flops)));
}

}  // namespace

std::vector<Product> model_products(config::Config const& c, double most_flops) {
  auto const s = layout::block_sizes(c);
  double const layers = static_cast<double>(c.model.layers) / c.parallel.pp;
  // The head is on the last stage or, with a divided vocabulary, a part of it on every pipeline rank.
  int const parts = c.vocabulary_parts();
  double const heads = static_cast<double>(parts) / (c.parallel.tp * c.parallel.pp);
  std::vector<Linear> linears{
      {"attention out", s.hidden, s.heads * s.value_dim, layers},
      {"mlp up", s.up(), s.hidden, layers},
      {"mlp down", s.hidden, s.ffn, layers},
      {"head", layout::padded_shard(c.model.vocab_size, parts, 0).size(), s.hidden, heads, true}};
  if (c.model.mla.on()) {
    linears.insert(linears.begin(),
                   {{"latents", s.mla.latent(), s.hidden, layers},
                    {"queries", s.heads * s.head_dim, s.mla.q_rank > 0 ? s.mla.q_rank : s.hidden, layers},
                    {"keys and values", s.mla.both, s.mla.kv_rank, layers}});
  } else {
    linears.insert(linears.begin(), {"qkv", s.qkv(), s.hidden, layers});
  }
  std::vector<Product> list;
  // Each linear layer has three GEMMs. A smaller trial takes fewer tokens and, for the head, fewer columns; the other
  // dimensions of the weights are kept.
  for (auto const& l : linears) {
    auto const flops = [&](std::int64_t tokens, std::int64_t out) {
      return 2.0 * static_cast<double>(tokens) * static_cast<double>(out) * static_cast<double>(l.in);
    };
    auto const n = fit(s.tokens, flops(s.tokens, l.out), most_flops, least_tokens);
    auto const out = l.is_head ? fit(l.out, flops(n, l.out), most_flops, least_columns) : l.out;
    double const work = l.times * flops(s.tokens, l.out);
    list.push_back({l.name + " forward", linalg::Op::none, linalg::Op::transpose, n, out, l.in, false, work});
    list.push_back({l.name + " input gradient", linalg::Op::none, linalg::Op::none, n, l.in, out, false, work});
    list.push_back({l.name + " weight gradient", linalg::Op::transpose, linalg::Op::none, out, l.in, n, true, work});
  }
  return list;
}

template <class P>
CeilingMeter<P>::CeilingMeter(std::vector<Product> products, comm::Communicator& world)
    : products_(std::move(products)), world_(&world) {
  std::int64_t a = 0, b = 0, c = 0;
  for (auto const& p : products_) {
    a = std::max(a, p.m * p.k);
    b = std::max(b, p.k * p.n);
    // run() writes sums in the type of gradients, else the type of activations.
    auto const bytes = p.m * p.n * static_cast<std::int64_t>(p.adds ? sizeof(Wide) : sizeof(Storage));
    c = std::max(c, (bytes + static_cast<std::int64_t>(sizeof(Wide)) - 1) / static_cast<std::int64_t>(sizeof(Wide)));
  }
  comm::agree(world, "take the memory to measure the ceiling", [&] {
    a_ = device::large_array<Storage>("p3d::report::ceiling_a", a);
    b_ = device::large_array<Storage>("p3d::report::ceiling_b", b);
    c_ = device::large_array<Wide>("p3d::report::ceiling_c", c);
  });
  kernels::fill<Storage>({}, a_, Storage(0.5));
  kernels::fill<Storage>({}, b_, Storage(0.25));
}

template <class P>
void CeilingMeter<P>::run(Product const& p) const {
  device::View2<Storage const> const a(a_.data(), p.op_a == linalg::Op::none ? p.m : p.k,
                                       p.op_a == linalg::Op::none ? p.k : p.m);
  device::View2<Storage const> const b(b_.data(), p.op_b == linalg::Op::none ? p.k : p.n,
                                       p.op_b == linalg::Op::none ? p.n : p.k);
  device::ExecSpace const exec;
  device::View2<Wide> const sum(c_.data(), p.m, p.n);
  // In 16 bits, activations are rounded to the storage type while weight gradients are added up in the type of
  // gradients: both forms are timed as the model uses them.
  if constexpr (std::is_same_v<Storage, Wide>) {
    linalg::gemm<Wide>(exec, p.op_a, p.op_b, Wide(1), a, b, p.adds ? Wide(1) : Wide(0), sum);
  } else if (p.adds) {
    linalg::gemm<Storage, Wide>(exec, p.op_a, p.op_b, Wide(1), a, b, Wide(1), sum);
  } else {
    device::View2<Storage> const rounded(reinterpret_cast<Storage*>(c_.data()), p.m, p.n);
    linalg::gemm<Storage, Storage>(exec, p.op_a, p.op_b, Wide(1), a, b, Wide(0), rounded);
  }
  device::fence(exec, "p3d::report::ceiling");
}

template <class P>
std::vector<double> CeilingMeter<P>::measure() {
  std::vector<double> seconds;
  for (auto const& p : products_) {
    // All ranks begin a GEMM at the same time, as in a step: they share the memory's bandwidth.
    world_->barrier().wait();
    base::Stopwatch const watch;
    run(p);
    seconds.push_back(watch.seconds());
  }
  world_
      ->all_reduce(seconds.data(), static_cast<std::int64_t>(seconds.size()), comm::Type::float64, comm::Reduction::sum)
      .wait();
  for (auto& s : seconds) s /= world_->size();
  return seconds;
}

template <class P>
double CeilingMeter<P>::speed(std::vector<double> const& seconds) const {
  double work = 0.0, time = 0.0;
  for (std::size_t i = 0; i < products_.size(); ++i) {
    work += products_[i].work;
    // A kind takes its number of calls at full size, each scaled from the trial's size to the full one.
    time += products_[i].work / products_[i].flops() * seconds[i];
  }
  return work / time;
}

std::string describe_mfu(config::Config const& c, int ranks, double step_seconds, double ceiling, double recomputed) {
  double const model = plan::model_flops_per_step(c), speed = model / step_seconds / ranks;
  double const unit = ceiling < 1e13 ? 1e9 : 1e12;
  auto const hfu = recomputed > 0 ? fmt::format(" (HFU {:.2f}, recomputation counted)",
                                                (model + recomputed) / step_seconds / ranks / ceiling)
                                  : "";
  return fmt::format(
      "MFU {:.2f}{}: a rank does {:.1f} {}FLOP/s in the median step; the model's GEMMs alone reach {:.1f}",
      speed / ceiling, hfu, speed / unit, ceiling < 1e13 ? "G" : "T", ceiling / unit);
}

#define P3D_INSTANTIATE(P) template class CeilingMeter<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::report
