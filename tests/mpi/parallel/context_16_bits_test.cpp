// SPDX-License-Identifier: Apache-2.0
// Context-parallel attention in 16 bits: what several blocks of keys add up stays in float until it is whole.

#include <p3d/base/random.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/device/arena.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/parallel/context.hpp>

#include <support/mpi_kokkos_main.hpp>

#include "made_keys.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace p3d;
using device::View1;
using device::View2;

struct Result {
  std::vector<double> out, dqkv;
  std::vector<double> dlatents, dup;  ///< gradients of latents that travel, and of the matrix behind them
};

/// The rank's part of some attention, with made-up numbers that follow from the global token.
template <class S>
Result attend(comm::Communicator& world, layout::ContextDivision const& division, parallel::ContextHeads const& heads,
              std::int64_t samples) {
  using Attention = parallel::ContextAttention<S>;
  parallel::ContextParallel cp(world, division);
  Attention attention;
  View1<S> qkv;
  View1<typename Attention::A> lse;
  View2<S> out, dout, dqkv;
  auto const tokens = division.tokens(cp.rank());
  auto const rows = samples * tokens.size();
  layout::AttentionSizes const sizes(division, heads, samples);
  auto const take = [&](auto& source) {
    attention = Attention::take(source, sizes, heads);
    qkv = source.template take<S>(sizes.qkv_elements());
    lse = source.template take<typename Attention::A>(sizes.lse_elements());
    out = source.template take<S>(rows, heads.out_columns());
    dout = source.template take<S>(rows, heads.out_columns());
    dqkv = source.template take<S>(rows, heads.columns());
  };
  device::ArenaSize size;
  take(size);
  device::Arena arena(size.bytes, "p3d::test::context");
  take(arena);
  attention.attach(device::ExecSpace(), cp);
  auto const fill = [&](View2<S> m, char const* what) {
    auto const host = device::host_mirror(m);
    auto const key = base::random_key(1, what);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::size_t j = 0; j < m.extent(1); ++j)
        host(r, j) = static_cast<S>(
            base::random_normal(key, static_cast<std::uint64_t>(r / tokens.size()),
                                static_cast<std::uint64_t>(tokens.at(r % tokens.size())) * m.extent(1) + j));
    Kokkos::deep_copy(m, host);
  };
  fill(View2<S>(qkv.data(), rows, heads.columns()), "qkv");
  fill(dout, "dout");
  auto const width = static_cast<std::size_t>(heads.latent);
  device::Owned2<S> const own("latents", static_cast<std::size_t>(rows), width),
      up("up", static_cast<std::size_t>(heads.key_columns() + heads.value_columns()), width);
  fill(own, "latents");
  auto const host = device::host_mirror(up);
  for (std::size_t i = 0; i < up.extent(0); ++i)
    for (std::size_t j = 0; j < width; ++j)
      host(i, j) = static_cast<S>(0.5 * base::random_normal(base::random_key(1, "up"), i, j));
  Kokkos::deep_copy(up, host);
  test::MadeKeys<S> const latents(heads, own, up);
  typename Attention::Call call;
  call.latents = &latents;
  call.division = division;
  call.samples = samples;
  Result result;
  attention.exchange(call, qkv);
  attention.forward(call, qkv, out, lse);
  attention.bring_latents(call);
  attention.backward(call, qkv, out, lse, dout, dqkv);
  // The first `columns` columns of a matrix. Whole matrices are copied: from a GPU a part cannot be.
  auto const on_host = [](auto const& m, std::int64_t columns) {
    auto const host = device::host_copy(m);
    std::vector<double> all;
    for (std::size_t i = 0; i < host.extent(0); ++i)
      for (std::int64_t j = 0; j < columns; ++j) all.push_back(static_cast<double>(host(i, j)));
    return all;
  };
  result.out = on_host(out, heads.out_columns());
  result.dqkv = on_host(dqkv, division.latents ? heads.query_columns() : heads.columns());
  result.dlatents = on_host(latents.gradient(), heads.latent);
  result.dup = on_host(latents.matrix_gradient(), heads.latent);
  return result;
}

std::vector<layout::ContextDivision> divisions(int ranks, std::int64_t tokens, std::int64_t kv_heads) {
  std::vector<layout::ContextDivision> out;
  for (int a = 1; a <= ranks; ++a) {
    if (ranks % a != 0 || kv_heads % a != 0) continue;
    for (bool const gather : {false, true})
      if (!gather || a == 1) out.push_back({.seq_len = tokens, .cp = ranks, .all_to_all = a, .gather = gather});
  }
  return out;
}

TEST(ContextExchange, SumsOf16BitsAreRoundedOnce) {
  auto world = comm::Communicator::world();
  for (std::int64_t const value_dim : {8, 5, 11}) {
    parallel::ContextHeads const heads{.heads = 4, .kv_heads = 4, .head_dim = 8, .value_dim = value_dim, .scale = 0.35};
    for (auto const& d : divisions(world.size(), 8 * world.size(), heads.kv_heads)) {
      auto const exact = attend<double>(world, d, heads, 1);
      auto const narrow = attend<device::bfloat16>(world, d, heads, 1);
      ASSERT_EQ(exact.out.size(), narrow.out.size());
      for (std::size_t i = 0; i < exact.out.size(); ++i)  // inputs are rounded too
        EXPECT_NEAR(narrow.out[i], exact.out[i], 0.05) << i;
      double difference = 0, largest = 0;
      for (std::size_t i = 0; i < exact.dqkv.size(); ++i) {
        difference = std::max(difference, std::abs(exact.dqkv[i] - narrow.dqkv[i]));
        largest = std::max(largest, std::abs(exact.dqkv[i]));
      }
      EXPECT_LE(difference, 0.03 * largest);
    }
  }
}

/// The largest difference, relative to the largest number.
double difference(std::vector<double> const& found, std::vector<double> const& exact) {
  EXPECT_EQ(found.size(), exact.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < std::min(found.size(), exact.size()); ++i) {
    worst = std::max(worst, std::abs(found[i] - exact[i]));
    largest = std::max(largest, std::abs(exact[i]));
  }
  return worst / largest;
}

// Gradients of latents go round in float; they have the error of their inputs, as those of keys and values have.
TEST(ContextExchange, LatentsIn16BitsAreThoseOfDouble) {
  auto world = comm::Communicator::world();
  parallel::ContextHeads const heads{
      .heads = 4, .kv_heads = 4, .head_dim = 8, .value_dim = 6, .scale = 0.35, .latent = 10};
  for (auto d : divisions(world.size(), 8 * world.size(), heads.kv_heads)) {
    d.latents = true;
    auto const exact = attend<double>(world, d, heads, 2);
    auto const narrow = attend<device::bfloat16>(world, d, heads, 2);
    EXPECT_LE(difference(narrow.out, exact.out), 0.05);
    EXPECT_LE(difference(narrow.dqkv, exact.dqkv), 0.05);
    EXPECT_LE(difference(narrow.dlatents, exact.dlatents), 0.05);
    EXPECT_LE(difference(narrow.dup, exact.dup), 0.05);
  }
}

}  // namespace
