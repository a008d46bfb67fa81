// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ways in which kernels are spread over cores or device threads. Every result element is computed by one thread, in
// an order that depends on the sizes alone: results do not depend on the number of threads.
//
// A kernel names a unit of work and gets the rest from here: for_chunks (some columns of one row), for_vector (some
// elements), for_rows (one row by a core or by a team; inside, each(), sum_of() and max_of() run along the row).
// Example:
//
//   for_rows("p3d::kernels::f", exec, rows, KOKKOS_LAMBDA(RowTeam const& team, std::int64_t r) {
//     double const sum = sum_of<double>(team, cols, [=](std::int64_t c) { return x(r, c); });
//     once(team, [&] { y(r) = sum; });
//   });

#include "numeric.hpp"

#include <p3d/base/error.hpp>
#include <p3d/device/launch.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace p3d::kernels {

using device::launch_kernel;

/// Widths of the column chunks that one call of a body gets; wide.hpp has the widths for elements of 16 bytes.
inline constexpr int element_width = on_host ? 128 : 4;  ///< elementwise on a matrix
inline constexpr int column_width = on_host ? 32 : 1;    ///< sums down the columns
inline constexpr int flat_width = on_host ? 1024 : 1;    ///< elementwise on a vector

/// Threads that keep a GPU of today busy.
inline constexpr std::int64_t device_threads = std::int64_t(1) << 17;

using FlatRange = Kokkos::RangePolicy<ExecSpace, Kokkos::IndexType<std::int64_t>>;

/// The quotient of numbers below 2^31 by one divisor, as a multiplication. GPUs have no instruction for divisions, and
/// for those of 64 bits they call a function of about 70 instructions. With l = ceil(log2 d) and m = ceil(2^(31+l) /
/// d), which fits 32 bits, x m / 2^(31+l) exceeds x / d by less than x / 2^(31+l) < 1 / d, which is not enough to reach
/// the next integer.
class Divisor {
public:
  static constexpr std::int64_t limit = std::int64_t(1) << 31;
  Divisor() = default;
  /// The divisor d, with 0 < d < limit.
  explicit Divisor(std::int64_t d) {
    while ((std::int64_t(1) << (shift_ - 31)) < d) ++shift_;
    auto const one = std::uint64_t(1) << shift_, by = static_cast<std::uint64_t>(d);
    multiplier_ = static_cast<std::uint32_t>((one + by - 1) / by);
  }
  /// x / d, for x < limit.
  KOKKOS_FORCEINLINE_FUNCTION std::uint32_t of(std::uint32_t x) const {
    return static_cast<std::uint32_t>((std::uint64_t(x) * multiplier_) >> shift_);
  }

private:
  std::uint32_t multiplier_ = 0;
  int shift_ = 31;
};

/// for_chunks on the host: chunk i is some columns of row i / chunks.
template <int Width, class Body>
struct ChunkBody {
  std::int64_t cols;
  std::int64_t chunks;
  Body body;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    std::int64_t const row = i / chunks;
    std::int64_t const begin = (i - row * chunks) * Width;
    body(row, begin, static_cast<int>(cols - begin < Width ? cols - begin : Width));
  }
};
/// for_chunks on devices, without a division of 64 bits: fewer than 2^31 chunks, of rows from `first_row` on.
template <int Width, class Body>
struct DeviceChunkBody {
  std::int64_t cols;
  std::int64_t first_row;
  std::uint32_t chunks;
  Divisor by_chunks;
  Body body;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    auto const at = static_cast<std::uint32_t>(i), row = by_chunks.of(at);
    std::int64_t const begin = static_cast<std::int64_t>(at - row * chunks) * Width;
    body(first_row + row, begin, static_cast<int>(cols - begin < Width ? cols - begin : Width));
  }
};
/// for_vector: chunk i is elements [i * Width, (i + 1) * Width).
template <int Width, class Body>
struct VectorBody {
  std::int64_t size;
  Body body;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    std::int64_t const begin = i * Width;
    body(begin, static_cast<int>(size - begin < Width ? size - begin : Width));
  }
};

/// Calls body(row, first column, number of columns <= Width) for all chunks of a [rows, cols] matrix.
template <int Width, class Body>
void for_chunks(std::string const& label, ExecSpace const& exec, std::int64_t rows, std::int64_t cols,
                Body const& body) {
  std::int64_t const chunks = (cols + Width - 1) / Width;
  if (rows * chunks == 0) return;
  if constexpr (on_host) {
    launch_kernel(label, FlatRange(exec, 0, rows * chunks), ChunkBody<Width, Body>{cols, chunks, body});
  } else {
    P3D_REQUIRE(chunks < Divisor::limit, "a row of a matrix has fewer than 2^31 chunks of columns");
    std::int64_t const most = (Divisor::limit - 1) / chunks;  // rows of one launch
    for (std::int64_t row = 0; row < rows; row += most)
      launch_kernel(label, FlatRange(exec, 0, std::min(most, rows - row) * chunks),
                    DeviceChunkBody<Width, Body>{cols, row, static_cast<std::uint32_t>(chunks), Divisor(chunks), body});
  }
}

/// Calls body(first element, number of elements <= Width) for all chunks of a vector.
template <int Width, class Body>
void for_vector(std::string const& label, ExecSpace const& exec, std::int64_t size, Body const& body) {
  if (size > 0)
    launch_kernel(label, FlatRange(exec, 0, (size + Width - 1) / Width), VectorBody<Width, Body>{size, body});
}

/// The "team" of the host's form: one thread has a row to itself.
struct Alone {};
using DeviceTeam = Kokkos::TeamPolicy<ExecSpace>::member_type;
/// The threads that share the work on one row.
using RowTeam = std::conditional_t<on_host, Alone, DeviceTeam>;

/// The number of teams in the type that Kokkos wants. Throws base::Error beyond 2^31 - 1, which a cast would wrap.
inline int team_count(std::int64_t teams) {
  P3D_REQUIRE(teams >= 0 && teams <= std::numeric_limits<int>::max(),
              "a kernel takes at most 2^31 - 1 teams (rows, or tiles of attention): a smaller microbatch has fewer");
  return static_cast<int>(teams);
}

/// for_rows on the host.
template <class Body>
struct AloneBody {
  Body body;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row) const { body(Alone{}, row); }
};
/// for_rows on devices: the team with rank r in the league works on row r.
template <class Body>
struct TeamBody {
  Body body;
  KOKKOS_INLINE_FUNCTION void operator()(DeviceTeam const& team) const {
    body(team, static_cast<std::int64_t>(team.league_rank()));
  }
};

/// Threads of a team in the portable form, set by tests; 0 lets Kokkos choose, and on the host it would choose one.
inline int team_threads = 0;

/// A policy for `teams` teams of threads with `lanes` vector lanes each.
template <class Policy>
Policy team_policy(ExecSpace const& exec, std::int64_t teams, int lanes = 1) {
  int const league = team_count(teams);
  return team_threads > 0 ? Policy(exec, league, team_threads, lanes) : Policy(exec, league, Kokkos::AUTO, lanes);
}

/// Calls body(team, row) for every row. `chunks`: pieces of a row that threads of a GPU's team take, by which the size
/// of the team is chosen; 0 leaves it to Kokkos, which does not know how long rows are.
template <class Body>
void for_rows(std::string const& label, ExecSpace const& exec, std::int64_t rows, Body const& body,
              [[maybe_unused]] std::int64_t chunks = 0) {
  using Policy = Kokkos::TeamPolicy<ExecSpace>;
  if (rows == 0) return;
  if constexpr (on_host) {
    launch_kernel(label, FlatRange(exec, 0, rows), AloneBody<Body>{body});
  } else if (on_cores || chunks == 0) {
    launch_kernel(label, team_policy<Policy>(exec, rows), TeamBody<Body>{body});
  } else {
    int threads = 32;  // four pieces to a thread: their reads are in flight together, and more rows at a time
    while (4 * threads < chunks && threads < 256) threads *= 2;
    launch_kernel(label, Policy(exec, team_count(rows), threads), TeamBody<Body>{body});
  }
}

// The bodies of the loops below capture by value and are copied. Behind references the compiler would load the same
// address again for every element and lane.

/// Calls f(i) for i in [0, n). The iterations must be independent.
template <class F>
KOKKOS_INLINE_FUNCTION void each(Alone const&, std::int64_t n, F const f) {
  P3D_SIMD
  for (std::int64_t i = 0; i < n; ++i) f(i);
}
template <class Team, class F>
KOKKOS_INLINE_FUNCTION void each(Team const& team, std::int64_t n, F const& f) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, n), f);
}

/// Calls f(first column, number of columns <= Width) for the chunks of a row of n columns.
template <int Width, class F>
KOKKOS_INLINE_FUNCTION void each_chunk(Alone const&, std::int64_t n, F const f) {
  for (std::int64_t c = 0; c < n; c += Width) f(c, static_cast<int>(n - c < Width ? n - c : Width));
}
template <int Width, class Team, class F>
KOKKOS_INLINE_FUNCTION void each_chunk(Team const& team, std::int64_t n, F const& f) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, (n + Width - 1) / Width), [&](std::int64_t chunk) {
    std::int64_t const c = chunk * Width;
    f(c, static_cast<int>(n - c < Width ? n - c : Width));
  });
}

/// Waits until every thread of the team has reached this point and sees what the others have stored.
KOKKOS_INLINE_FUNCTION void wait_for_team(Alone const&) {}
template <class Team>
KOKKOS_INLINE_FUNCTION void wait_for_team(Team const& team) {
  team.team_barrier();
}

/// Partial sums that the host keeps in a row sum, however wide the vectors of the machine are.
inline constexpr int sum_lanes = 32;

/// The sum of f(i), i in [0, n), in type S, known to the whole team.
template <class S, class F>
KOKKOS_INLINE_FUNCTION S sum_of(Alone const&, std::int64_t n, F const f) {
  // A fixed number of partial sums, whatever the width of the machine's vectors.
  S part[sum_lanes] = {};
  std::int64_t i = 0;
  for (; i + sum_lanes <= n; i += sum_lanes)
    for (int lane = 0; lane < sum_lanes; ++lane) part[lane] += f(i + lane);
  for (int lane = 0; i + lane < n; ++lane) part[lane] += f(i + lane);
  for (int half = sum_lanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) part[lane] += part[lane + half];
  return part[0];
}
template <class S, class Team, class F>
KOKKOS_INLINE_FUNCTION S sum_of(Team const& team, std::int64_t n, F const& f) {
  S s = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamThreadRange(team, n), [&](std::int64_t i, S& part) { part += f(i); }, s);
  return s;
}

/// The maximum of f(i), i in [0, n), and of `least`, known to the whole team.
template <class S, class F>
KOKKOS_INLINE_FUNCTION S max_of(Alone const&, std::int64_t n, S least, F const f) {
  S m = least;
  P3D_SIMD_MAX(m)
  for (std::int64_t i = 0; i < n; ++i) {
    S const x = f(i);
    m = x > m ? x : m;
  }
  return m;
}
template <class S, class Team, class F>
KOKKOS_INLINE_FUNCTION S max_of(Team const& team, std::int64_t n, S least, F const& f) {
  S m = least;
  Kokkos::parallel_reduce(
      Kokkos::TeamThreadRange(team, n),
      [&](std::int64_t i, S& part) {
        S const x = f(i);
        part = x > part ? x : part;
      },
      Kokkos::Max<S>(m));
  return m > least ? m : least;
}

/// Calls f() in one thread of the team.
template <class F>
KOKKOS_INLINE_FUNCTION void once(Alone const&, F const& f) {
  f();
}
template <class Team, class F>
KOKKOS_INLINE_FUNCTION void once(Team const& team, F const& f) {
  Kokkos::single(Kokkos::PerTeam(team), f);
}

}  // namespace p3d::kernels
