// SPDX-License-Identifier: Apache-2.0
#pragma once
// Work on one tile of attention scores, or of rows, by one team. On the host a team is one thread and vector
// instructions run along the columns of the tile; elsewhere threads take rows and vector lanes take columns.

#include "launch.hpp"

namespace p3d::kernels {

/// Vector lanes of a thread and, on devices, threads of a team.
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
  launch_kernel(label, policy, functor);
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

}  // namespace p3d::kernels
