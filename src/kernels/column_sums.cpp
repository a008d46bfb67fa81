// SPDX-License-Identifier: Apache-2.0
// Sums over rows, many matrices in one launch. The columns of all registered matrices are cut into pieces, numbered
// through; a thread finds its matrix by the number of its piece. On devices a column of a tall matrix would keep one
// thread busy and leave the others idle, so blocks of its rows are summed first, into the workspace, and the blocks are
// added in order.
//
// Example: matrices of 64 and 96 columns are 2 and 3 pieces of 32 columns on the host; piece 3 is columns [32, 64) of
// the second.
#include <p3d/kernels/column_sums.hpp>

#include <type_traits>

#include "column_sum.hpp"

namespace p3d::kernels {

namespace {

/// The sources of one launch, passed by value: no table has to be copied to the device.
template <class S, class G>
struct ColumnSources {
  using Source = typename ColumnSums<S, G>::Source;
  Source list[ColumnSums<S, G>::most];
  int count = 0;
  std::int64_t pieces = 0;  ///< chunks of columns, or in the first launch on devices columns of blocks of rows

  /// Appends a matrix that has `its_pieces` pieces.
  void add(Source const& s, std::int64_t its_pieces) {
    list[count] = s;
    list[count++].first = pieces;
    pieces += its_pieces;
  }
  /// The source that a piece belongs to.
  KOKKOS_INLINE_FUNCTION int of_piece(std::int64_t piece) const {
    int at = count - 1;
    while (list[at].first > piece) --at;
    return at;
  }
};

/// sum[i] += the sum over rows [begin, end) of column c + i of m.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void sum_values(T const* m, std::int64_t stride, std::int64_t begin, std::int64_t end,
                                            std::int64_t c, int n, Long* sum) {
  for (std::int64_t r = begin; r < end; ++r) {
    T const* const x = m + r * stride + c;
    P3D_SIMD
    for (int i = 0; i < n; ++i) sum[i] += x[i];
  }
}

/// Adds rows [begin, end) of columns [c, c + n) of a source to sum; for a norm, also their products with xhat to
/// weight.
template <class Source>
KOKKOS_FORCEINLINE_FUNCTION void sum_rows(Source const& s, std::int64_t begin, std::int64_t end, std::int64_t c, int n,
                                          Long* sum, Long* weight) {
  if (s.parts) {
    sum_values(s.parts, s.stride, begin, end, c, n, sum);
  } else if (s.x) {
    for (std::int64_t r = begin; r < end; ++r) {
      auto const* const g = s.values + r * s.stride + c;
      auto const* const v = s.x + r * s.x_stride + c;
      using A = std::remove_cvref_t<decltype(*s.rstd)>;
      A const m = s.mean ? s.mean[r] : A(0), scale = s.rstd[r];
      P3D_SIMD
      for (int i = 0; i < n; ++i) {
        weight[i] += g[i] * ((v[i] - m) * scale);
        sum[i] += g[i];
      }
    }
  } else {
    sum_values(s.values, s.stride, begin, end, c, n, sum);
  }
}

template <class S, class G>
void add_column_sums(ExecSpace const& exec, ColumnSources<S, G> const& sources) {
  launch_kernel(
      "p3d::kernels::add_column_sums", FlatRange(exec, 0, sources.pieces), KOKKOS_LAMBDA(std::int64_t piece) {
        auto const& s = sources.list[sources.of_piece(piece)];
        std::int64_t const c = (piece - s.first) * column_width;
        int const n = static_cast<int>(s.cols - c < column_width ? s.cols - c : column_width);
        Long sum[column_width] = {}, weight[column_width] = {};
        sum_rows(s, 0, s.rows, c, n, sum, weight);
        if (s.weight)
          for (int i = 0; i < n; ++i) s.weight[c + i] = static_cast<G>(s.weight[c + i] + weight[i]);
        if (s.sum)
          for (int i = 0; i < n; ++i) s.sum[c + i] = static_cast<G>(s.sum[c + i] + sum[i]);
      });
}

/// The last sums on devices, by teams: a piece is `columns` columns, whose rows are cut into `groups` parts. The parts
/// are added in order, so that the size of a team changes nothing.
template <class S, class G>
struct TeamSums {
  static constexpr int columns = 32, groups = 8;
  using Scratch = Kokkos::View<Long*, ExecSpace::scratch_memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  ColumnSources<S, G> sources;

  KOKKOS_INLINE_FUNCTION void operator()(DeviceTeam const& team) const {
    auto const& s = sources.list[sources.of_piece(team.league_rank())];
    std::int64_t const c0 = (team.league_rank() - s.first) * columns, size = (s.rows + groups - 1) / groups;
    Scratch const parts(team.team_scratch(0), 2 * columns * groups);
    for (int at = team.team_rank(); at < columns * groups; at += team.team_size()) {
      int const group = at / columns;
      std::int64_t const c = c0 + at % columns, begin = group * size,
                         end = begin + size < s.rows ? begin + size : s.rows;
      Long sum = 0, weight = 0;
      if (c < s.cols) sum_rows(s, begin, end, c, 1, &sum, &weight);
      parts(at) = sum;
      parts(columns * groups + at) = weight;
    }
    team.team_barrier();
    for (int i = team.team_rank(); i < columns; i += team.team_size()) {
      std::int64_t const c = c0 + i;
      if (c >= s.cols) continue;
      Long sum = 0, weight = 0;
      for (int group = 0; group < groups; ++group) {
        sum += parts(group * columns + i);
        weight += parts((groups + group) * columns + i);
      }
      if (s.weight) s.weight[c] = static_cast<G>(s.weight[c] + weight);
      if (s.sum) s.sum[c] = static_cast<G>(s.sum[c] + sum);
    }
  }
};

template <class S, class G>
void add_by_teams(ExecSpace const& exec, ColumnSources<S, G> const& sources) {
  using Sums = TeamSums<S, G>;
  using Policy = Kokkos::TeamPolicy<ExecSpace>;
  constexpr int threads = Sums::columns * Sums::groups;
  auto policy =
      on_cores ? team_policy<Policy>(exec, sources.pieces) : Policy(exec, team_count(sources.pieces), threads);
  policy.set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(Sums::Scratch::shmem_size(2 * threads))));
  launch_kernel("p3d::kernels::add_column_sums", policy, Sums{sources});
}

/// The blocks of `size` rows that a device cuts a matrix into, and the memory where each block leaves a sum for each
/// column.
struct RowCut {
  double* parts;
  std::int64_t size;
};
template <class S, class G>
using RowCuts = Kokkos::Array<RowCut, ColumnSums<S, G>::most>;

template <class S, class G>
void sum_row_blocks(ExecSpace const& exec, ColumnSources<S, G> const& sources, RowCuts<S, G> const& cuts) {
  launch_kernel(
      "p3d::kernels::sum_row_blocks", FlatRange(exec, 0, sources.pieces), KOKKOS_LAMBDA(std::int64_t piece) {
        int const at = sources.of_piece(piece);
        auto const& s = sources.list[at];
        auto const& cut = cuts[at];
        std::int64_t const block = (piece - s.first) / s.cols, c = (piece - s.first) - block * s.cols;
        std::int64_t const end = (block + 1) * cut.size;
        Long sum = 0, none = 0;
        sum_rows(s, block * cut.size, end < s.rows ? end : s.rows, c, 1, &sum, &none);
        cut.parts[block * s.cols + c] = sum;
      });
}

}  // namespace

template <class S, class G>
ColumnSums<S, G>::~ColumnSums() {
  if (used_ > 0) column_sums_wait = false;  // an error is on its way: nobody will call finish()
}

template <class S, class G>
typename ColumnSums<S, G>::Source& ColumnSums<S, G>::next() {
  P3D_REQUIRE(count_ < most, "so many column sums cannot wait at a time: finish() them");
  auto& s = sources_[count_++];
  s = {};
  return s;
}

template <class S, class G>
void ColumnSums<S, G>::add(View2<S const> m, Given<View1<G>> sum) {
  if (sum.extent(0) == 0) return;
  auto& s = next();
  s.values = m.data();
  s.sum = sum.data();
  s.rows = static_cast<std::int64_t>(m.extent(0));
  s.cols = static_cast<std::int64_t>(m.extent(1));
  s.stride = static_cast<std::int64_t>(m.stride(0));
}

template <class S, class G>
void ColumnSums<S, G>::add_norm(View2<S const> dy, View2<S const> x, View1<Acc<S> const> mean, View1<Acc<S> const> rstd,
                                Given<View1<G>> weight, Given<View1<G>> bias) {
  auto& s = next();
  s.values = dy.data();
  s.x = x.data();
  s.mean = mean.extent(0) > 0 ? mean.data() : nullptr;
  s.rstd = rstd.data();
  s.weight = weight.data();
  s.sum = bias.extent(0) > 0 ? bias.data() : nullptr;
  s.rows = static_cast<std::int64_t>(dy.extent(0));
  s.cols = static_cast<std::int64_t>(dy.extent(1));
  s.stride = static_cast<std::int64_t>(dy.stride(0));
  s.x_stride = static_cast<std::int64_t>(x.stride(0));
}

template <class S, class G>
double* ColumnSums<S, G>::take(std::int64_t doubles) {
  if (used_ == 0) {
    workspace_ = column_workspace().data();
    column_sums_wait = true;
  }
  P3D_REQUIRE(used_ + doubles <= column_workspace_size, "partial sums fit the workspace: rows_of_part() says how many");
  used_ += doubles;
  return workspace_ + used_ - doubles;
}

template <class S, class G>
View2<double> ColumnSums<S, G>::add_parts(std::int64_t blocks, Given<View1<G>> sum) {
  auto& s = next();
  s.rows = blocks;
  s.cols = s.stride = static_cast<std::int64_t>(sum.extent(0));
  s.sum = sum.data();
  View2<double> const parts(take(s.rows * s.cols), s.rows, s.cols);
  s.parts = parts.data();
  return parts;
}

template <class S, class G>
std::int64_t ColumnSums<S, G>::rows_of_part(std::int64_t rows, std::int64_t columns) {
  return rows_of_block(rows, columns, column_workspace_size / 8, 8);
}

// Replaces tall matrices by partial sums of their blocks of rows.
template <class S, class G>
void ColumnSums<S, G>::cut_rows(ExecSpace const& exec) {
  ColumnSources<S, G> tall;
  RowCuts<S, G> cuts;
  // Each registered sum may use an equal part of the memory that is left.
  std::int64_t const room = (column_workspace_size - used_) / count_;
  for (int i = 0; i < count_; ++i) {
    auto& s = sources_[i];
    if (s.parts || s.x || s.cols == 0) continue;
    std::int64_t const size = rows_of_block(s.rows, s.cols, room), blocks = (s.rows + size - 1) / size;
    if (blocks <= 1) continue;
    auto& cut = cuts[tall.count];
    cut = {take(blocks * s.cols), size};
    tall.add(s, blocks * s.cols);
    s.values = nullptr;
    s.parts = cut.parts;
    s.rows = blocks;
    s.stride = s.cols;
  }
  if (tall.pieces > 0) sum_row_blocks<S, G>(exec, tall, cuts);
}

template <class S, class G>
void ColumnSums<S, G>::finish(ExecSpace const& exec) {
  if (count_ == 0) return;
  if constexpr (!on_host) cut_rows(exec);
  constexpr std::int64_t width = on_host ? column_width : TeamSums<S, G>::columns;
  ColumnSources<S, G> all;
  for (int i = 0; i < count_; ++i) all.add(sources_[i], (sources_[i].cols + width - 1) / width);
  if (all.pieces > 0) {
    if constexpr (on_host)
      add_column_sums<S, G>(exec, all);
    else
      add_by_teams<S, G>(exec, all);
  }
  count_ = 0;
  if (used_ > 0) column_sums_wait = false;
  used_ = 0;
}

#define P3D_INSTANTIATE(S, G) template class ColumnSums<S, G>;
P3D_INSTANTIATE(float, float)
P3D_INSTANTIATE(double, double)
P3D_INSTANTIATE(bfloat16, float)
P3D_INSTANTIATE(float16, float)
P3D_INSTANTIATE(bfloat16, bfloat16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
