// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/ordered_sum.hpp>

#include <p3d/base/error.hpp>

#include "wide.hpp"

namespace p3d::kernels {

namespace {

/// Combines two numbers as comm's own reductions on the host do: of two that are neither more nor less (equal or NaN),
/// the first.
template <class A>
KOKKOS_INLINE_FUNCTION A combined(Combine op, A a, A b) {
  switch (op) {
    case Combine::max: return a < b ? b : a;
    case Combine::min: return b < a ? b : a;
    case Combine::sum: break;
  }
  return a + b;
}

}  // namespace

template <class S>
void combine_in_order(ExecSpace const& exec, Combine op, int rank, View2<S const> others, View1<S> inout) {
  auto const ranks = static_cast<std::int64_t>(others.extent(0)) + 1;
  P3D_REQUIRE(0 <= rank && rank < ranks && others.extent(1) >= inout.extent(0), "every rank has as many numbers");
  auto const n = static_cast<std::int64_t>(inout.extent(0));
  S const* const rows = others.data();
  auto const stride = static_cast<std::int64_t>(others.stride(0));
  S* const own = inout.data();
  for_vector<wide_flat<S>>(
      "p3d::kernels::combine_in_order", exec, n, KOKKOS_LAMBDA(std::int64_t begin, int count) {
        constexpr int W = wide_flat<S>;
        Acc<S> value[W] = {};  // g++ does not see that every element that is read is written
        auto const first = read<W>((rank == 0 ? own : rows) + begin, count);
        P3D_SIMD
        for (int i = 0; i < lanes<W>(count); ++i) value[i] = Acc<S>(first[i]);
        for (std::int64_t r = 1; r < ranks; ++r) {
          auto const next = read<W>((r == rank ? own : rows + (r < rank ? r : r - 1) * stride) + begin, count);
          P3D_SIMD
          for (int i = 0; i < lanes<W>(count); ++i) value[i] = combined(op, value[i], Acc<S>(next[i]));
        }
        auto out = write<W>(own + begin, count);
        P3D_SIMD
        for (int i = 0; i < lanes<W>(count); ++i) put(out[i], value[i]);
        out.store();
      });
}

#define P3D_INSTANTIATE(S) template void combine_in_order<S>(ExecSpace const&, Combine, int, View2<S const>, View1<S>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(device::bfloat16)
P3D_INSTANTIATE(device::float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
