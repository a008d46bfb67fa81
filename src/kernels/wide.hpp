// SPDX-License-Identifier: Apache-2.0
#pragma once
// Neighbouring elements that are read and written at once. On devices these are 128 bits where all elements are there
// and aligned: a quarter of the instructions, and of the requests in flight, of elements one by one. On the host it is
// a window on memory, whose loops the compiler vectorises.
//
//   auto const in = read<wide<S>>(&x(r, c), n);
//   auto out = write<wide<S>>(&y(r, c), n);
//   for (int i = 0; i < lanes<wide<S>>(n); ++i) put(out[i], f(in[i]));
//   out.store();
//
// On devices the loops run over all lanes, so that the elements stay in registers; lanes beyond n hold zeros and are
// not stored.

#include "launch.hpp"

#include <p3d/base/host_device.hpp>

#include <cstdint>
#include <cstring>

namespace p3d::kernels {

/// The elements of type S of a matrix row that a body of for_chunks gets at a time.
template <class S>
inline constexpr int wide = on_host ? 128 : static_cast<int>(16 / sizeof(S));
/// The pieces of a row of elements of type S that threads of a team take (for_rows).
template <class S>
std::int64_t chunks_of(std::int64_t columns) {
  return (columns + wide<S> - 1) / wide<S>;
}
/// The elements of type S that a body of for_vector gets at a time. The host walks vectors in longer runs than rows.
template <class S>
inline constexpr int wide_flat = on_host ? 1024 : static_cast<int>(16 / sizeof(S));

/// The bound of a loop over n <= W elements: n on the host, W on devices.
template <int W>
KOKKOS_FORCEINLINE_FUNCTION constexpr int lanes(int n) {
  return on_host ? n : W;
}

namespace detail {

/// The bytes that one instruction moves.
template <int Bytes>
struct alignas(Bytes) Block {
  std::uint32_t word[Bytes / 4];
};

/// Moves W elements of type T in blocks of at most 16 bytes.
template <class T, int W>
struct Blocks {
  static constexpr int bytes = W * static_cast<int>(sizeof(T)), size = bytes < 16 ? bytes : 16, count = bytes / size;
  using Type = Block<size>;
  static_assert(bytes % size == 0);
  /// True when all W elements are there and the address suits the blocks.
  KOKKOS_FORCEINLINE_FUNCTION static bool fit(void const* p, int n) {
    return n == W && (reinterpret_cast<std::uintptr_t>(p) & (size - 1)) == 0;
  }
  // Compilers for GPUs take the alignment from the type and do not use the rules of aliasing here; other compilers get
  // memcpy.
  KOKKOS_FORCEINLINE_FUNCTION static void load(T const* from, T* to) {
    for (int k = 0; k < count; ++k) {
      Type block;
#if defined(P3D_ON_NVIDIA) || defined(P3D_ON_AMD)
      block = reinterpret_cast<Type const*>(from)[k];
#else
      std::memcpy(&block, from + k * (W / count), size);
#endif
      std::memcpy(to + k * (W / count), &block, size);
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION static void store(T const* from, T* to) {
    for (int k = 0; k < count; ++k) {
      Type block;
      std::memcpy(&block, from + k * (W / count), size);
#if defined(P3D_ON_NVIDIA) || defined(P3D_ON_AMD)
      reinterpret_cast<Type*>(to)[k] = block;
#else
      std::memcpy(to + k * (W / count), &block, size);
#endif
    }
  }
};

/// The elements in memory themselves: reads and writes go there at once.
template <class T>
struct Window {
  T* place;
  KOKKOS_FORCEINLINE_FUNCTION T& operator[](int i) const { return place[i]; }
  KOKKOS_FORCEINLINE_FUNCTION void store() const {}
};

/// Elements that were read, in registers.
template <class T, int W>
struct Lanes {
  T value[W];
  KOKKOS_FORCEINLINE_FUNCTION T const& operator[](int i) const { return value[i]; }
};
/// Elements in registers that store() writes to `place`, the first n of them.
template <class T, int W>
struct StoredLanes {
  T* place;
  int n;
  T value[W];
  KOKKOS_FORCEINLINE_FUNCTION T& operator[](int i) { return value[i]; }
  KOKKOS_FORCEINLINE_FUNCTION void store() const {
    if (Blocks<T, W>::fit(place, n)) {
      Blocks<T, W>::store(value, place);
    } else {
      for (int i = 0; i < W; ++i)
        if (i < n) place[i] = value[i];
    }
  }
};

}  // namespace detail

/// Reads elements [0, n) at p, n <= W.
template <int W, class T>
KOKKOS_FORCEINLINE_FUNCTION auto read(T const* p, [[maybe_unused]] int n) {
  if constexpr (on_host) {
    return detail::Window<T const>{p};
  } else {
    detail::Lanes<T, W> out;
    if (detail::Blocks<T, W>::fit(p, n)) {
      detail::Blocks<T, W>::load(p, out.value);
    } else {
      for (int i = 0; i < W; ++i) {
        if (i < n)
          out.value[i] = p[i];
        else
          out.value[i] = T{};
      }
    }
    return out;
  }
}

/// A place for elements [0, n) at p, n <= W. On devices memory changes only with store().
template <int W, class T>
KOKKOS_FORCEINLINE_FUNCTION auto write(T* p, [[maybe_unused]] int n) {
  if constexpr (on_host)
    return detail::Window<T>{p};
  else
    return detail::StoredLanes<T, W>{p, n, {}};
}

// Functions on one row, for one core or for a team. f takes one element of each row at `in` and returns a number.

/// The sum of f(in[i]...) over a row of n elements, known to the whole team.
template <class A, class F, class First, class... In>
KOKKOS_INLINE_FUNCTION A sum_row(Alone const& team, std::int64_t n, F const f, First const* first, In const*... in) {
  return sum_of<A>(team, n, [=](std::int64_t i) { return f(first[i], in[i]...); });
}
template <class A, class Team, class F, class First, class... In>
KOKKOS_INLINE_FUNCTION A sum_row(Team const& team, std::int64_t n, F const& f, First const* first, In const*... in) {
  constexpr int W = wide<First>;
  A s = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamThreadRange(team, (n + W - 1) / W),
      [&](std::int64_t chunk, A& part) {
        std::int64_t const c = chunk * W;
        int const here = static_cast<int>(n - c < W ? n - c : W);
        auto const sum = [&](auto const& one, auto const&... others) {
          A value = 0;
          for (int i = 0; i < W; ++i) value += i < here ? static_cast<A>(f(one[i], others[i]...)) : A(0);
          return value;
        };
        part += sum(read<W>(first + c, here), read<W>(in + c, here)...);
      },
      s);
  return s;
}

/// The maximum of f(in[i]) over a row of n elements, and of `least`.
template <class A, class F, class In>
KOKKOS_INLINE_FUNCTION A max_row(Alone const& team, std::int64_t n, A least, F const f, In const* in) {
  return max_of<A>(team, n, least, [=](std::int64_t i) { return f(in[i]); });
}
template <class A, class Team, class F, class In>
KOKKOS_INLINE_FUNCTION A max_row(Team const& team, std::int64_t n, A least, F const& f, In const* in) {
  constexpr int W = wide<In>;
  return max_of<A>(team, (n + W - 1) / W, least, [&](std::int64_t chunk) {
    std::int64_t const c = chunk * W;
    int const here = static_cast<int>(n - c < W ? n - c : W);
    auto const x = read<W>(in + c, here);
    A m = least;
    for (int i = 0; i < W; ++i) {
      A const v = static_cast<A>(f(x[i]));
      m = i < here && v > m ? v : m;
    }
    return m;
  });
}

/// out[i] = f(in[i]...) for a row of n elements, rounded to Out.
template <class Out, class F, class... In>
KOKKOS_INLINE_FUNCTION void map_row(Alone const& team, std::int64_t n, Out* out, F const f, In const*... in) {
  each(team, n, [=](std::int64_t i) { put(out[i], f(in[i]...)); });
}
template <class Team, class Out, class F, class... In>
KOKKOS_INLINE_FUNCTION void map_row(Team const& team, std::int64_t n, Out* out, F const& f, In const*... in) {
  constexpr int W = wide<Out>;
  each_chunk<W>(team, n, [&](std::int64_t c, int here) {
    auto const map = [&](auto const&... row) {
      auto to = write<W>(out + c, here);
      for (int i = 0; i < W; ++i) put(to[i], f(row[i]...));
      to.store();
    };
    map(read<W>(in + c, here)...);
  });
}

}  // namespace p3d::kernels
