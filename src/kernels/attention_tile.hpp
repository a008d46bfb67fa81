// SPDX-License-Identifier: Apache-2.0
#pragma once
// Work on one tile of attention scores by one team. On the host a team is one thread and vector instructions run along
// the columns of the tile; elsewhere threads take rows and vector lanes take columns.

#include "keep.hpp"
#include "launch.hpp"

namespace p3d::kernels {

/// Vector lanes of a thread and, on devices, threads of a team: 32 x 32 scores are as many blocks (product_block) as
/// there are lanes in all.
inline constexpr int tile_lanes = 16, tile_threads = 8;

/// Late query tiles cost more than early ones: teams take the next tile when they are done with one. What a team
/// computes does not depend on who takes it.
using TilePolicy = Kokkos::TeamPolicy<ExecSpace, Kokkos::Schedule<Kokkos::Dynamic>>;
using TileTeam = TilePolicy::member_type;

/// A policy for `teams` tiles with `bytes` of scratch memory each; the level of that memory is returned.
inline TilePolicy tile_policy(ExecSpace const& exec, std::int64_t teams, std::size_t bytes, int& level) {
  P3D_REQUIRE(bytes <= std::size_t{std::numeric_limits<int>::max()}, "scratch memory of a team fits 31 bits");
  TilePolicy policy = on_host    ? TilePolicy(exec, team_count(teams), 1, 1)
                      : on_cores ? team_policy<TilePolicy>(exec, teams, tile_lanes)
                                 : TilePolicy(exec, team_count(teams), tile_threads, tile_lanes);
  level = static_cast<int>(bytes) <= TilePolicy::scratch_size_max(0) ? 0 : 1;
  policy.set_scratch_size(level, Kokkos::PerTeam(static_cast<int>(bytes)));
  return policy;
}

/// Runs the functor, which says how many `bytes` of scratch memory a tile needs and takes their `level`.
template <class Functor>
void launch_tiles(std::string const& label, ExecSpace const& exec, std::int64_t teams, Functor functor) {
  if (teams == 0) return;
  auto const policy = tile_policy(exec, teams, functor.bytes, functor.level);
  Kokkos::parallel_for(label, policy, functor);
}

/// f(i) for the rows of a tile.
template <class F>
KOKKOS_INLINE_FUNCTION void tile_rows(TileTeam const& team, int n, F const& f) {
  if constexpr (on_host)
    for (int i = 0; i < n; ++i) f(i);
  else
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, n), f);
}
/// f(j) for the columns of a row.
template <class F>
KOKKOS_INLINE_FUNCTION void tile_cols(TileTeam const& team, int n, F const f) {
  if constexpr (on_host) {
    P3D_SIMD
    for (int j = 0; j < n; ++j) f(j);
  } else {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, n), f);
  }
}
/// f(begin, end) for the columns of a row: all at once on the host, `size` of them to a lane elsewhere.
template <class F>
KOKKOS_INLINE_FUNCTION void tile_groups(TileTeam const& team, int n, int size, F const& f) {
  if constexpr (on_host)
    f(0, n);
  else
    tile_cols(team, (n + size - 1) / size, [=](int group) {
      int const begin = group * size;
      f(begin, n - begin < size ? n : begin + size);
    });
}
template <class S, class F>
KOKKOS_INLINE_FUNCTION S tile_col_sum(TileTeam const& team, int n, F const f) {
  S s = 0;
  if constexpr (on_host) {
    P3D_SIMD_SUM(s)
    for (int j = 0; j < n; ++j) s += f(j);
  } else {
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team, n), [&](int j, S& part) { part += f(j); }, s);
  }
  return s;
}
template <class S, class F>
KOKKOS_INLINE_FUNCTION S tile_col_max(TileTeam const& team, int n, S least, F const f) {
  S m = least;
  if constexpr (on_host) {
    P3D_SIMD_MAX(m)
    for (int j = 0; j < n; ++j) {
      S const x = f(j);
      m = x > m ? x : m;
    }
    return m;
  } else {
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team, n),
        [&](int j, S& part) {
          S const x = f(j);
          part = x > part ? x : part;
        },
        Kokkos::Max<S>(m));
    return m > least ? m : least;
  }
}
/// f() once for the row that this thread has: every vector lane of the thread gets here.
template <class F>
KOKKOS_INLINE_FUNCTION void tile_once(TileTeam const& team, F const& f) {
  if constexpr (on_host)
    f();
  else
    Kokkos::single(Kokkos::PerThread(team), f);
}
KOKKOS_INLINE_FUNCTION void tile_barrier(TileTeam const& team) {
  if constexpr (!on_host) team.team_barrier();
}

/// A matrix in memory: first element and distance between rows.
template <class T>
struct StridedMatrix {
  T* data;
  std::int64_t stride;
  KOKKOS_INLINE_FUNCTION T* row(std::int64_t i) const { return data + i * stride; }
  KOKKOS_INLINE_FUNCTION StridedMatrix from(std::int64_t i, std::int64_t j) const { return {row(i) + j, stride}; }
};

/// Scratch memory handed out in pieces that start on multiples of 64 bytes.
template <class T>
struct Scratch {
  T* next;
  KOKKOS_INLINE_FUNCTION static constexpr std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }
  KOKKOS_INLINE_FUNCTION T* take(std::int64_t n) {
    T* const piece = next;
    next += padded(n);
    return piece;
  }
  /// For [rows, cols], a row's end apart from the next one: neighbouring rows of a column lie in different banks.
  KOKKOS_INLINE_FUNCTION StridedMatrix<T> take(std::int64_t rows, std::int64_t cols) {
    return {take(rows * (cols + 1)), cols + 1};
  }
};
template <class T>
KOKKOS_INLINE_FUNCTION Scratch<T> scratch_of(TileTeam const& team, int level, std::size_t bytes) {
  return {static_cast<T*>(team.team_scratch(level).get_shmem_aligned(static_cast<int>(bytes - 64), 64))};
}

/// to [rows, cols] = from, converted.
template <class From, class To>
KOKKOS_INLINE_FUNCTION void convert_tile(TileTeam const& team, int rows, int cols, StridedMatrix<From> from,
                                         StridedMatrix<To> to) {
  tile_rows(team, rows, [&](int i) {
    From const* const in = from.row(i);
    To* const out = to.row(i);
    tile_cols(team, cols, [=](int j) { put(out[j], in[j]); });
  });
}

/// What a product does with C, and how B lies.
enum class Product { add, overwrite_transposed };

/// R x N sums of C, of `rows` and `cols`, in registers: rows from `row` on, columns `first`, first + apart, ..., so
/// that neighbouring lanes read neighbouring columns. What a lane reads serves R or N of its sums.
template <Product Kind, int R, int N, class Sa, class Sb, class T>
KOKKOS_INLINE_FUNCTION void product_block(int row, int rows, int first, int apart, int cols, int inner,
                                          StridedMatrix<Sa> a, StridedMatrix<Sb> b, StridedMatrix<T> c) {
  constexpr bool transposed = Kind == Product::overwrite_transposed;
  T sum[R][N];
  Sa const* a_row[R];
  int col[N];
  // Beyond the matrix the last row and column are read again: the loop has no branches.
  for (int r = 0; r < R; ++r) a_row[r] = a.row(row + r < rows ? row + r : rows - 1);
  for (int n = 0; n < N; ++n) col[n] = first + n * apart < cols ? first + n * apart : cols - 1;
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sum[r][n] = transposed || row + r >= rows ? T(0) : c.row(row + r)[col[n]];
  for (int k = 0; k < inner; ++k) {
    T x[R], y[N];
    for (int r = 0; r < R; ++r) x[r] = T(a_row[r][k]);
    for (int n = 0; n < N; ++n) y[n] = T(transposed ? b.row(col[n])[k] : b.row(k)[col[n]]);
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) sum[r][n] += x[r] * y[n];
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n)
      if (row + r < rows && first + n * apart < cols) c.row(row + r)[col[n]] = sum[r][n];
}

template <Product Kind, int R, int N, class Sa, class Sb, class T>
KOKKOS_INLINE_FUNCTION void product_blocks(TileTeam const& team, int rows, int cols, int inner, StridedMatrix<Sa> a,
                                           StridedMatrix<Sb> b, StridedMatrix<T> c) {
  int const lanes = (cols + N - 1) / N;
  tile_rows(team, (rows + R - 1) / R, [&](int block) {
    tile_cols(team, lanes,
              [=](int lane) { product_block<Kind, R, N>(block * R, rows, lane, lanes, cols, inner, a, b, c); });
  });
}

/// C [rows, cols] += A [rows, inner] B [inner, cols], or = A B^T with B [cols, inner], in the type of C.
template <Product Kind, class Sa, class Sb, class T>
KOKKOS_INLINE_FUNCTION void product(TileTeam const& team, int rows, int cols, int inner, StridedMatrix<Sa> a,
                                    StridedMatrix<Sb> b, StridedMatrix<T> c) {
  if (cols > 2 * tile_lanes)
    product_blocks<Kind, 4, 4>(team, rows, cols, inner, a, b, c);
  else
    product_blocks<Kind, 4, 2>(team, rows, cols, inner, a, b, c);
}

template <class T>
KOKKOS_INLINE_FUNCTION void set_zero(TileTeam const& team, int rows, int cols, StridedMatrix<T> c) {
  tile_rows(team, rows, [&](int i) {
    T* const x = c.row(i);
    tile_cols(team, cols, [=](int j) { x[j] = T(0); });
  });
}

}  // namespace p3d::kernels
