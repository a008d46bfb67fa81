// SPDX-License-Identifier: Apache-2.0
#include <p3d/parallel/share.hpp>

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/layout/axes.hpp>

#include <vector>

namespace p3d::parallel {

namespace {

/// The elements of a rank's part. The last part is one of the largest.
template <class View>
layout::Range part_of(TensorParallel const& tp, View const& whole, int rank) {
  return layout::even_share(static_cast<std::int64_t>(whole.extent(0)), tp.size(), rank);
}
/// The first elements of a share, which has room for the largest part.
template <class View>
View first(View const& share, std::int64_t count) {
  P3D_REQUIRE(count <= static_cast<std::int64_t>(share.extent(0)), "a share has room for its part");
  return View(share.data(), count);
}

}  // namespace

template <class S>
void keep_share(TensorParallel& tp, View1<S const> whole, View1<S> share) {
  auto const part = part_of(tp, whole, tp.rank());
  Kokkos::deep_copy(tp.exec, first(share, part.size()), View1<S const>(whole.data() + part.begin, part.size()));
}

template <class S>
void gather_shares(TensorParallel& tp, View1<S const> share, View1<S> whole) {
  auto const part = part_of(tp, whole, tp.rank());
  Kokkos::deep_copy(tp.exec, View1<S>(whole.data() + part.begin, part.size()), first(share, part.size()));
  std::vector<std::int64_t> bounds{0};
  for (int r = 0; r < tp.size(); ++r) bounds.push_back(part_of(tp, whole, r).end);
  collectives::start_all_gather<S>(tp.exec, *tp.comm, whole, bounds).wait();
}

#define P3D_INSTANTIATE(S)                                                \
  template void keep_share<S>(TensorParallel&, View1<S const>, View1<S>); \
  template void gather_shares<S>(TensorParallel&, View1<S const>, View1<S>);
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
