// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who reads or writes which rows of a part, and in which pieces.

#include <p3d/io/checkpoint.hpp>
#include <p3d/layout/params.hpp>

#include <algorithm>
#include <cstdint>

namespace p3d::io {

/// The rows of `part` that replica `r` of `replicas` handles.
inline layout::Range share(CheckpointPart const& part, std::size_t element_bytes, int r, int replicas) {
  return layout::replica_share(part.rows, part.cols, static_cast<std::int64_t>(element_bytes), r, replicas);
}

/// Rows that fit into a buffer, at least one.
inline std::int64_t rows_in(CheckpointPart const& part, std::size_t element_bytes, std::int64_t buffer_bytes) {
  return std::max<std::int64_t>(
      1, buffer_bytes / std::max<std::int64_t>(1, part.cols * static_cast<std::int64_t>(element_bytes)));
}

/// Calls visit(element index in the global array, elements, place in the slice) for the contiguous runs of rows [begin,
/// end).
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
