// SPDX-License-Identifier: Apache-2.0
#include <p3d/parallel/rows.hpp>

#include <p3d/collectives/collectives.hpp>

#include <vector>

namespace p3d::parallel {

namespace {

/// The elements at which the ranks' shares of [rows, columns] begin, and the end.
std::vector<std::int64_t> share_bounds(TensorParallel const& tp, std::int64_t rows, std::int64_t columns) {
  std::vector<std::int64_t> bounds;
  for (int r = 0; r < tp.size(); ++r) bounds.push_back(layout::even_share(rows, tp.size(), r).begin * columns);
  bounds.push_back(rows * columns);
  return bounds;
}

template <class View>
std::vector<std::int64_t> share_bounds(TensorParallel const& tp, View const& whole) {
  return share_bounds(tp, static_cast<std::int64_t>(whole.extent(0)), static_cast<std::int64_t>(whole.extent(1)));
}

/// The request, which is done already where no GEMM is to hide it.
comm::Request at_once_or_later(TensorParallel const& tp, comm::Request request) {
  if (!tp.overlap.bulk) request.wait();
  return request;
}

}  // namespace

kernels::TokenRows own_rows(TensorParallel const& tp, kernels::TokenRows rows) {
  rows.first_row += own_range(tp, rows.rows()).begin;
  return rows;
}

template <class S>
WholeRows<S> start_gather_rows(TensorParallel& tp, View2<S const> own, View2<S> whole) {
  if (!tp.sequence) return {own, {}};
  auto const place = own_rows(tp, whole);
  if (place.data() != own.data()) Kokkos::deep_copy(tp.exec, place, own);
  return {whole, at_once_or_later(tp, collectives::start_all_gather<S>(tp.exec, *tp.comm, device::flat(whole),
                                                                       share_bounds(tp, whole)))};
}

template <class S>
comm::Request start_sum_rows(TensorParallel& tp, View2<S> parts) {
  if (!tp.sequence)
    return at_once_or_later(tp, collectives::start_all_reduce<S>(tp.exec, *tp.comm, device::flat(parts)));
  return at_once_or_later(
      tp, collectives::start_reduce_scatter<S>(tp.exec, *tp.comm, device::flat(parts), share_bounds(tp, parts)));
}

#define P3D_INSTANTIATE(S)                                                               \
  template WholeRows<S> start_gather_rows<S>(TensorParallel&, View2<S const>, View2<S>); \
  template comm::Request start_sum_rows<S>(TensorParallel&, View2<S>);
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
