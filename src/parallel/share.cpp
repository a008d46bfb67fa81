// SPDX-License-Identifier: Apache-2.0
#include <p3d/parallel/share.hpp>

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>

#include <vector>

namespace p3d::parallel {

namespace {

/// The part of this rank; all parts must be equal.
template <class View>
View own_part(TensorParallel const& tp, View const& whole) {
  auto const each = static_cast<std::int64_t>(whole.extent(0)) / tp.size();
  P3D_REQUIRE(each * tp.size() == static_cast<std::int64_t>(whole.extent(0)), "the parts are equal");
  return View(whole.data() + each * tp.rank(), each);
}

}  // namespace

template <class S>
void keep_share(TensorParallel& tp, View1<S const> whole, View1<S> share) {
  Kokkos::deep_copy(tp.exec, share, own_part(tp, whole));
}

template <class S>
void gather_shares(TensorParallel& tp, View1<S const> share, View1<S> whole) {
  Kokkos::deep_copy(tp.exec, own_part(tp, whole), share);
  auto const each = static_cast<std::int64_t>(share.extent(0));
  std::vector<std::int64_t> bounds;
  for (int r = 0; r <= tp.size(); ++r) bounds.push_back(each * r);
  collectives::start_all_gather<S>(tp.exec, *tp.comm, whole, bounds).wait();
}

#define P3D_INSTANTIATE(S)                                                \
  template void keep_share<S>(TensorParallel&, View1<S const>, View1<S>); \
  template void gather_shares<S>(TensorParallel&, View1<S const>, View1<S>);
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
