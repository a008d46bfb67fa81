// SPDX-License-Identifier: Apache-2.0
// Attention over a sequence that cp divides, forward and backward, against independent ranks that do as many FLOPs:
//
//   mpiexec -n N bench_context [tokens] [heads]      (16384 tokens, 4 heads of 64, fp32)
//
// The ideal: every rank attends to a sequence of its own with tokens / sqrt(N) tokens, 1/N of the causal scores, at the
// same time as the others. The share of the ideal is its time over that of the divided sequence.

#include "bench.hpp"

#include <p3d/comm/communicator.hpp>
#include <p3d/device/arena.hpp>
#include <p3d/parallel/context.hpp>

#include <fmt/format.h>

#include <cmath>
#include <memory>

namespace {

using namespace p3d;
using device::View1;
using device::View2;
using Attention = parallel::ContextAttention<float>;

/// One sequence of this rank's, whole or divided.
struct Sequence {
  layout::ContextDivision division;
  parallel::ContextHeads heads;
  std::int64_t rows;
  parallel::ContextParallel cp;
  std::unique_ptr<device::Arena> arena;
  Attention attention;
  View1<float> qkv, lse;
  View2<float> local, out, dout, dqkv;

  Sequence(layout::ContextDivision const& d, std::int64_t n, comm::Communicator* world) : division(d) {
    heads = {.heads = n, .kv_heads = n, .head_dim = 64, .scale = 0.125};
    if (world) cp = parallel::ContextParallel(*world, d);
    rows = d.share_of_place(cp.rank()).size();
    layout::AttentionSizes const sizes(d, heads, 1);
    auto const take = [&](auto& source) {
      attention = Attention::take(source, sizes, heads);
      qkv = source.template take<float>(sizes.qkv_elements());
      lse = source.template take<float>(sizes.lse_elements());
      out = source.template take<float>(rows, heads.out_columns());
      dout = source.template take<float>(rows, heads.out_columns());
      local = source.template take<float>(rows, heads.columns());
      dqkv = source.template take<float>(rows, heads.columns());
    };
    device::ArenaSize size;
    take(size);
    arena = std::make_unique<device::Arena>(size.bytes, "p3d::bench::context");
    take(*arena);
    if (world) attention.attach(device::ExecSpace(), cp);
    for (auto const& m : {local, dout}) {
      std::uint32_t x = 1;
      for (std::size_t i = 0; i < m.size(); ++i) {
        x = x * 1664525u + 1013904223u;
        m.data()[i] = static_cast<float>(x >> 8) / static_cast<float>(1 << 23) - 1.0f;
      }
    }
  }
  void run() {
    Kokkos::deep_copy(View1<float>(qkv.data(), local.size()), View1<float const>(local.data(), local.size()));
    Attention::Call call;
    call.division = division;
    call.samples = 1;
    attention.exchange(call, qkv);
    attention.forward(call, qkv, out, lse);
    attention.backward(call, qkv, out, lse, dout, dqkv);
    device::fence(device::ExecSpace(), "p3d::bench::context");
  }
};

}  // namespace

int main(int argc, char** argv) {
  bench::Setup setup(argc, argv);
  auto& world = setup.world;
  std::int64_t const tokens = argc > 1 ? std::stoll(argv[1]) : 16384, heads = argc > 2 ? std::stoll(argv[2]) : 4;
  int const ranks = world.size();
  bench::print_stamp(world, "p3d context");
  auto const ideal_tokens =
      static_cast<std::int64_t>(std::lround(static_cast<double>(tokens) / std::sqrt(static_cast<double>(ranks))));
  Sequence ideal({.seq_len = ideal_tokens}, heads, nullptr);
  std::vector<std::pair<std::string, layout::ContextDivision>> kinds;
  auto const add = [&](char const* name, config::ContextOrder order, int all_to_all, bool gather) {
    kinds.push_back(
        {name, {.seq_len = tokens, .cp = ranks, .all_to_all = all_to_all, .gather = gather, .order = order}});
  };
  add("ring zigzag", config::ContextOrder::zigzag, 1, false);
  add("ring striped", config::ContextOrder::striped, 1, false);
  add("ring contiguous", config::ContextOrder::contiguous, 1, false);
  add("gather zigzag", config::ContextOrder::zigzag, 1, true);
  if (heads % ranks == 0) add("all_to_all", config::ContextOrder::zigzag, ranks, false);
  if (world.rank() == 0) fmt::print("exchange,ideal_ms,ms,share_of_ideal\n");
  for (auto const& [name, division] : kinds) {
    Sequence divided(division, heads, &world);
    bench::Case together{[&] {
      world.barrier().wait();
      ideal.run();
      world.barrier().wait();
    }};
    bench::Case shared{[&] {
      world.barrier().wait();
      divided.run();
      world.barrier().wait();
    }};
    bench::time_in_turn({&together, &shared}, 5);
    if (world.rank() == 0)
      fmt::print("{},{:.1f},{:.1f},{:.3f}\n", name, together.best() * 1e3, shared.best() * 1e3,
                 together.best() / shared.best());
  }
}
