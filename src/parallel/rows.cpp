// SPDX-License-Identifier: Apache-2.0
#include <p3d/parallel/rows.hpp>

#include <p3d/base/strand.hpp>
#include <p3d/collectives/collectives.hpp>

#include <algorithm>
#include <utility>

namespace p3d::parallel {

namespace {

/// The elements of these rows of a matrix, for a collective of shares.
comm::SharePieces pieces_of(std::vector<layout::Range> const& rows, std::int64_t n, std::int64_t columns) {
  comm::SharePieces pieces;
  for (auto const& range : rows) {
    pieces.begins.push_back(range.begin * columns);
    pieces.ends.push_back(range.end * columns);
  }
  pieces.whole = n * columns;
  return pieces;
}

/// The elements of a chunk of a matrix.
template <class View>
comm::SharePieces pieces_of(View const& matrix, RowChunks const& chunks, int k) {
  return pieces_of(chunks.rows(k), static_cast<std::int64_t>(matrix.extent(0)),
                   static_cast<std::int64_t>(matrix.extent(1)));
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

RowChunks RowChunks::usual(TensorParallel const& tp, std::int64_t n, std::int64_t row_bytes) {
  if (tp.size() == 1 || n * row_bytes < tp.overlap.chunked_bytes) return {tp, n, 1};
  auto const fewest = tp.sequence ? n / tp.size() : n;  // rows of the rank that has the fewest
  auto const most = fewest / std::max<std::int64_t>(tp.overlap.chunk_rows, 1);
  return {tp, n, static_cast<int>(std::clamp<std::int64_t>(most, 1, std::max(tp.overlap.chunks, 1)))};
}

std::vector<layout::Range> RowChunks::rows(int k) const {
  if (!tp_->sequence) return {layout::even_share(n_, count_, k)};
  std::vector<layout::Range> out;
  for (int r = 0; r < tp_->size(); ++r) {
    auto const all = layout::even_share(n_, tp_->size(), r);
    auto const slice = layout::even_share(all.size(), count_, k);
    out.push_back({all.begin + slice.begin, all.begin + slice.end});
  }
  return out;
}

void RowMessages::give_turn() {
  if (count() > 0 && std::exchange(gives_turn_, false)) base::rest();
}

bool RowMessages::active() const {
  return std::any_of(requests_.begin(), requests_.end(), [](comm::Request const& r) { return r.active(); });
}

template <class S>
WholeRows<S> start_gather_rows(TensorParallel& tp, View2<S const> own, View2<S> whole, Gather how) {
  if (!tp.sequence) return {own, {}};
  auto const place = own_rows(tp, whole);
  if (place.data() != own.data()) Kokkos::deep_copy(tp.exec, place, own);
  auto const n = static_cast<std::int64_t>(whole.extent(0));
  auto const chunks = how == Gather::whole
                          ? RowChunks(tp, n, 1)
                          : RowChunks::usual(tp, n, static_cast<std::int64_t>(whole.extent(1) * sizeof(S)));
  WholeRows<S> out{whole, RowMessages(tp)};
  for (int k = 0; k < chunks.count(); ++k) {
    out.arrival.add(at_once_or_later(
        tp, collectives::start_all_gather<S>(tp.exec, *tp.comm, device::flat(whole), pieces_of(whole, chunks, k))));
  }
  return out;
}

template <class S>
RowMessages start_sum_rows(TensorParallel& tp, View2<S> parts) {
  RowMessages sum(tp);
  sum.add(start_sum_rows<S>(tp, parts, RowChunks(tp, static_cast<std::int64_t>(parts.extent(0)), 1), 0));
  return sum;
}

template <class S>
comm::Request start_sum_rows(TensorParallel& tp, View2<S> parts, RowChunks const& chunks, int k) {
  if (tp.sequence) {
    return at_once_or_later(
        tp, collectives::start_reduce_scatter<S>(tp.exec, *tp.comm, device::flat(parts), pieces_of(parts, chunks, k)));
  }
  auto const rows = chunks.rows(k).front();
  return at_once_or_later(
      tp, collectives::start_all_reduce<S>(tp.exec, *tp.comm, device::flat(device::rows(parts, rows.begin, rows.end)),
                                           comm::Reduction::sum, static_cast<std::int64_t>(parts.size())));
}

#define P3D_INSTANTIATE(S)                                                                       \
  template WholeRows<S> start_gather_rows<S>(TensorParallel&, View2<S const>, View2<S>, Gather); \
  template RowMessages start_sum_rows<S>(TensorParallel&, View2<S>);                             \
  template comm::Request start_sum_rows<S>(TensorParallel&, View2<S>, RowChunks const&, int);
P3D_STORAGE_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
