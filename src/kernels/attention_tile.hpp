// SPDX-License-Identifier: Apache-2.0
#pragma once
// Work on one tile of attention scores, or of rows, by one team. On the host a team is one thread and vector
// instructions run along the columns of the tile; elsewhere threads take rows and vector lanes take columns.

#include "launch.hpp"

namespace p3d::kernels {

/// The vector lanes of a thread and, on devices, the threads of a team.
inline constexpr int tile_lanes = 16, tile_threads = 8;

/// Teams take the next tile when they are done with one, because late query tiles cost more than early ones. The result
/// of a tile does not depend on the team that takes it.
using TilePolicy = Kokkos::TeamPolicy<ExecSpace, Kokkos::Schedule<Kokkos::Dynamic>>;
using TileTeam = TilePolicy::member_type;

/// A policy for `teams` tiles with `bytes` of scratch memory each. `level` becomes the level of that memory.
inline TilePolicy tile_policy(ExecSpace const& exec, std::int64_t teams, std::size_t bytes, int& level) {
  P3D_REQUIRE(bytes <= std::size_t{std::numeric_limits<int>::max()}, "scratch memory of a team fits 31 bits");
  TilePolicy policy = on_host    ? TilePolicy(exec, team_count(teams), 1, 1)
                      : on_cores ? team_policy<TilePolicy>(exec, teams, tile_lanes)
                                 : TilePolicy(exec, team_count(teams), tile_threads, tile_lanes);
  level = static_cast<int>(bytes) <= TilePolicy::scratch_size_max(0) ? 0 : 1;
  policy.set_scratch_size(level, Kokkos::PerTeam(static_cast<int>(bytes)));
  return policy;
}

/// Runs a functor on tiles. Its `bytes` say how much scratch memory a tile needs; its `level` is set here.
template <class Functor>
void launch_tiles(std::string const& label, ExecSpace const& exec, std::int64_t teams, Functor functor) {
  if (teams == 0) return;
  auto const policy = tile_policy(exec, teams, functor.bytes, functor.level);
  launch_kernel(label, policy, functor);
}

/// Calls f(i) for the rows of a tile.
template <class F>
KOKKOS_INLINE_FUNCTION void tile_rows(TileTeam const& team, int n, F const& f) {
  if constexpr (on_host)
    for (int i = 0; i < n; ++i) f(i);
  else
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, n), f);
}
/// Calls f(j) for the columns of a row.
template <class F>
KOKKOS_INLINE_FUNCTION void tile_cols(TileTeam const& team, int n, F const f) {
  if constexpr (on_host) {
    P3D_SIMD
    for (int j = 0; j < n; ++j) f(j);
  } else {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, n), f);
  }
}
/// The sum of f(j) over the columns of a row, known to all lanes of the thread.
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
/// The maximum of f(j) over the columns of a row, and of `least`, known to all lanes of the thread.
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
/// Calls f() once for the row that this thread has. Every vector lane of the thread must get here.
template <class F>
KOKKOS_INLINE_FUNCTION void tile_once(TileTeam const& team, F const& f) {
  if constexpr (on_host)
    f();
  else
    Kokkos::single(Kokkos::PerThread(team), f);
}
/// Waits until all threads of the team have reached this point.
KOKKOS_INLINE_FUNCTION void tile_barrier(TileTeam const& team) {
  if constexpr (!on_host) team.team_barrier();
}

/// A matrix in memory: its first element, and the distance between rows in elements.
template <class T>
struct StridedMatrix {
  T* data;
  std::int64_t stride;
  KOKKOS_INLINE_FUNCTION T* row(std::int64_t i) const { return data + i * stride; }
  KOKKOS_INLINE_FUNCTION StridedMatrix from(std::int64_t i, std::int64_t j) const { return {row(i) + j, stride}; }
};

/// Scratch memory that is given out in pieces which start on multiples of 64 bytes (for T of 4 bytes; 128 for 8).
template <class T>
struct Scratch {
  T* next;
  KOKKOS_INLINE_FUNCTION static constexpr std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }
  KOKKOS_INLINE_FUNCTION T* take(std::int64_t n) {
    T* const piece = next;
    next += padded(n);
    return piece;
  }
};
/// The scratch memory of a team. `bytes` is what launch_tiles reserved: 64 more than the pieces need, for the
/// alignment.
template <class T>
KOKKOS_INLINE_FUNCTION Scratch<T> scratch_of(TileTeam const& team, int level, std::size_t bytes) {
  return {static_cast<T*>(team.team_scratch(level).get_shmem_aligned(static_cast<int>(bytes - 64), 64))};
}

/// Copies `from` to `to`, both [rows, cols], and converts the elements.
template <class From, class To>
KOKKOS_INLINE_FUNCTION void convert_tile(TileTeam const& team, int rows, int cols, StridedMatrix<From> from,
                                         StridedMatrix<To> to) {
  tile_rows(team, rows, [&](int i) {
    From const* const in = from.row(i);
    To* const out = to.row(i);
    tile_cols(team, cols, [=](int j) { put(out[j], in[j]); });
  });
}

}  // namespace p3d::kernels
