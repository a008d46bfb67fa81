// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the rows of a part are shared among replicas, and cut into pieces that fit a buffer.

#include <p3d/io/checkpoint.hpp>
#include <p3d/layout/params.hpp>

#include <algorithm>
#include <cstdint>

namespace p3d::io {

/// The rows of `part` that replica `r` of `replicas` handles.
inline layout::Range share(CheckpointPart const& part, std::size_t element_bytes, int r, int replicas) {
  return layout::replica_share(part.rows, part.cols, static_cast<std::int64_t>(element_bytes), r, replicas);
}

/// The number of rows of a part that fit into a buffer; at least one.
inline std::int64_t rows_in(CheckpointPart const& part, std::size_t element_bytes, std::int64_t buffer_bytes) {
  return std::max<std::int64_t>(
      1, buffer_bytes / std::max<std::int64_t>(1, part.cols * static_cast<std::int64_t>(element_bytes)));
}

/// Calls visit(index, count, place) for each contiguous run of the part's rows [begin, end): `index` is the run's first
/// element in the global array, `count` its elements, and `place` its first element in the packed rows. A part with all
/// columns of the array is one run; otherwise each row is one.
template <class Visit>
void for_runs(CheckpointPart const& part, layout::Range rows, Visit&& visit) {
  if (part.cols == part.global_cols) {
    auto const first = part.row_begin + rows.begin;
    if (rows.end > rows.begin) visit(first * part.global_cols, (rows.end - rows.begin) * part.cols, std::int64_t{0});
    return;
  }
  for (auto i = rows.begin; i < rows.end; ++i) {
    visit((part.row_begin + i) * part.global_cols + part.col_begin, part.cols, (i - rows.begin) * part.cols);
  }
}

}  // namespace p3d::io
