// SPDX-License-Identifier: Apache-2.0
#include "not_finite.hpp"

#include <p3d/base/float16.hpp>
#include <p3d/kernels/elementwise.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <type_traits>

namespace p3d::engine {

namespace {

/// The smallest size of a number that rounding to S makes infinite.
template <class S>
constexpr double rounds_to_infinity() {
  if (std::is_same_v<S, device::float16>) return base::float16_rounds_to_infinity;
  if (std::is_same_v<S, device::bfloat16>) return base::bfloat16_rounds_to_infinity;
  return std::numeric_limits<double>::infinity();
}

}  // namespace

template <class P>
NotFinite find_not_finite(RankContext& rank, RankMemory<P>& memory, SearchedGradients gradients) {
  // Key of a bad tensor: its place in the table, values before gradients. The smallest over all ranks is the first.
  auto const& specs = rank.plan.table.specs();
  auto& world = rank.mesh.world();
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::int64_t first = none;
  std::int64_t elements = 0;
  auto const scan = [&](std::int64_t only) {
    for (auto& [number, owner] : memory.units()) {
      auto* const unit = owner.get();  // Clang before 16 captures no structured binding
      auto const count_bad = [&]<class T>(layout::OwnedRun const& run, device::View1<T> all, std::int64_t first_key,
                                          double limit) {
        layout::for_parameters(
            unit->params.layout(), run.begin, run.count,
            [&](layout::LocalParam const& item, std::int64_t begin, std::int64_t count) {
              auto const key = first_key + static_cast<std::int64_t>(item.spec - specs.data());
              if (only >= 0 && key != only) return;
              auto const at = item.offset + begin - run.begin;
              auto const part = Kokkos::subview(all, Kokkos::pair<std::int64_t, std::int64_t>(at, at + count));
              auto const bad = kernels::count_not_finite<T>(rank.exec, device::View1<T const>(part), limit);
              if (bad > 0) first = std::min(first, key);
              elements += bad;
            });
      };
      memory.for_master(*unit, [&](layout::OwnedRun const& run, auto const& master) {
        count_bad(run, device::View1<typename P::Master>(master), 0, rounds_to_infinity<typename P::Storage>());
      });
      if (gradients == SearchedGradients::none) continue;
      for (auto const& run : unit->params.shard().owned)
        count_bad(run, gradients == SearchedGradients::held ? unit->held(run) : unit->params.reduced(run),
                  static_cast<std::int64_t>(specs.size()), std::numeric_limits<double>::infinity());
    }
  };
  scan(-1);
  world.all_reduce(&first, 1, comm::Type::int64, comm::Reduction::min).wait();
  elements = 0;
  if (first != none) scan(first);
  world.all_reduce(&elements, 1, comm::Type::int64, comm::Reduction::max).wait();
  if (first == none)
    return {.found = false,
            .in_weights = false,
            .text = "no parameter or gradient holds a bad element: the loss or the norm itself overflowed"};
  auto const n = static_cast<std::int64_t>(specs.size());
  return {
      .found = true,
      .in_weights = first < n,
      .text = fmt::format("first bad tensor in model order: the {} of {} ({} bad elements on the rank that has most)",
                          first < n ? "value" : "gradient", specs[static_cast<std::size_t>(first % n)].name, elements)};
}

#define P3D_INSTANTIATE(P) template NotFinite find_not_finite<P>(RankContext&, RankMemory<P>&, SearchedGradients);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
