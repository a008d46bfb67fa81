// SPDX-License-Identifier: Apache-2.0
// One thread has one unit: it reads at most 128 numbers, or one line, and nothing of other units. So bits do not depend
// on who computes which units. Neighbouring threads have neighbouring lines: where lines are columns, they read
// neighbouring numbers.
#include <p3d/kernels/compression.hpp>

#include "launch.hpp"
#include "random_words.hpp"

namespace p3d::kernels {

namespace {

using base::Code;
using base::CodedLines;
constexpr int block_numbers = static_cast<int>(base::compression_block);
template <class T>
constexpr T not_a_number = std::numeric_limits<T>::quiet_NaN();

template <class T>
KOKKOS_FORCEINLINE_FUNCTION bool is_finite_number(T x) {
  return x - x == T(0);
}

/// The first byte of a unit.
template <class Byte>
KOKKOS_FORCEINLINE_FUNCTION Byte* bytes_at(CodedBytes<Byte> const& at, CodedLines const& lines, std::int64_t unit) {
  return at.bytes + (lines.bytes_before(unit) - lines.bytes_before(at.first));
}

/// Element 0 of a unit in a flat buffer.
KOKKOS_FORCEINLINE_FUNCTION std::int64_t first_element(CodedLines const& lines, std::int64_t unit) {
  auto const begin = lines.code == Code::topk ? 0 : lines.begin_of(unit);
  return lines.offset + lines.line_of(unit) * lines.line_stride + begin * lines.stride;
}

/// Rounds a block to a scale and n bytes.
template <class A>
KOKKOS_INLINE_FUNCTION void write_int8(CodedLines const& lines, std::int64_t unit, base::RandomKey key,
                                       std::uint64_t stream, A const* x, std::byte* out) {
  int const n = static_cast<int>(lines.size_of(unit));
  A largest = 0, finite = 0;
  for (int i = 0; i < n; ++i) {
    A const size = x[i] < A(0) ? -x[i] : x[i];
    largest = size > largest ? size : largest;
    finite += x[i] - x[i];
  }
  auto scale = static_cast<float>(largest / A(127));
  if (!(finite == A(0)) || !is_finite_number(scale)) scale = not_a_number<float>;
  constexpr float least = 1.17549435e-38F;  // below it the last digits of the scale are lost
  bool const rounds = scale >= least;
  if (scale < least) scale = 0;
  *reinterpret_cast<float*>(out) = scale;
  auto* const q = reinterpret_cast<std::int8_t*>(out + sizeof(float));
  if (!rounds) {
    for (int i = 0; i < n; ++i) q[i] = 0;
    return;
  }
  std::uint32_t words[block_numbers];
  auto const first = (lines.first_line + lines.line_of(unit)) * lines.length + lines.begin_of(unit);
  random_words(key, stream, static_cast<std::uint64_t>(first), n, words);
  A const by = static_cast<A>(scale);
  P3D_SIMD
  for (int i = 0; i < n; ++i) {
    A const y = x[i] / by, low = std::floor(y);
    A const uniform = static_cast<A>(words[i] >> 8) * A(0x1p-24);  // [0, 1)
    A const rounded = low + (uniform < y - low ? A(1) : A(0));
    q[i] = static_cast<std::int8_t>(rounded > A(127) ? A(127) : rounded < A(-127) ? A(-127) : rounded);
  }
}

/// Writes a unit of kind plain or int8 from its numbers.
template <class A>
KOKKOS_INLINE_FUNCTION void write_unit(CodedLines const& lines, std::int64_t unit, base::RandomKey key,
                                       std::uint64_t stream, A const* x, std::byte* out) {
  if (lines.code == Code::int8) return write_int8(lines, unit, key, stream, x, out);
  auto const n = lines.size_of(unit);
  auto* const numbers = reinterpret_cast<A*>(out);
  for (std::int64_t i = 0; i < n; ++i) numbers[i] = x[i];
}

/// Number i of a unit of kind plain or int8.
template <class A>
KOKKOS_FORCEINLINE_FUNCTION A number_of(CodedLines const& lines, std::byte const* unit, int i) {
  if (lines.code == Code::plain) return reinterpret_cast<A const*>(unit)[i];
  auto const scale = static_cast<A>(*reinterpret_cast<float const*>(unit));
  return scale * static_cast<A>(reinterpret_cast<std::int8_t const*>(unit + sizeof(float))[i]);
}

template <class Work>
void for_units(char const* label, ExecSpace const& exec, std::int64_t first, std::int64_t last, Work const& work) {
  if (first < last) launch_kernel(label, FlatRange(exec, first, last), work);
}

/// True when number i is chosen after number j, of sizes a and b: it is smaller, or as large and comes later.
template <class A>
KOKKOS_FORCEINLINE_FUNCTION bool is_behind(A a, std::int32_t i, A b, std::int32_t j) {
  A const x = a < A(0) ? -a : a, y = b < A(0) ? -b : b;
  return x < y || (x == y && i > j);
}

/// Moves entry `at` of a heap of k entries, whose first one is behind all others, to its place below.
template <class A>
KOKKOS_INLINE_FUNCTION void sift_down(A* value, std::int32_t* index, std::int64_t k, std::int64_t at) {
  A const v = value[at];
  std::int32_t const i = index[at];
  for (;;) {
    auto below = 2 * at + 1;
    if (below >= k) break;
    if (below + 1 < k && is_behind(value[below + 1], index[below + 1], value[below], index[below])) ++below;
    if (!is_behind(value[below], index[below], v, i)) break;
    value[at] = value[below];
    index[at] = index[below];
    at = below;
  }
  value[at] = v;
  index[at] = i;
}

}  // namespace

template <class G>
void encode(ExecSpace const& exec, CodedLines const& lines, base::RandomKey key, std::uint64_t stream,
            View1<G const> gradients, CodedBytes<std::byte> const& out) {
  using A = Acc<G>;
  for_units(
      "p3d::kernels::encode", exec, out.first, out.last, KOKKOS_LAMBDA(std::int64_t unit) {
        A x[block_numbers];
        int const n = static_cast<int>(lines.size_of(unit));
        auto const begin = first_element(lines, unit);
        for (int i = 0; i < n; ++i) x[i] = static_cast<A>(gradients(begin + i * lines.stride));
        write_unit<A>(lines, unit, key, stream, x, bytes_at(out, lines, unit));
      });
}

template <class G>
void add_coded(ExecSpace const& exec, CodedLines const& lines, base::RandomKey key, std::uint64_t stream, int workers,
               CodedBytes<std::byte const> const& in, CodedBytes<std::byte> const& out) {
  using A = Acc<G>;
  for_units(
      "p3d::kernels::add_coded", exec, out.first, out.last, KOKKOS_LAMBDA(std::int64_t unit) {
        A x[block_numbers];
        int const n = static_cast<int>(lines.size_of(unit));
        auto const* from = bytes_at(in, lines, unit);
        for (int i = 0; i < n; ++i) x[i] = number_of<A>(lines, from, i);
        for (int v = 1; v < workers; ++v) {
          from += in.each;
          for (int i = 0; i < n; ++i) x[i] += number_of<A>(lines, from, i);
        }
        write_unit<A>(lines, unit, key, stream, x, bytes_at(out, lines, unit));
      });
}

template <class G>
void decode(ExecSpace const& exec, CodedLines const& lines, CodedBytes<std::byte const> const& in, View1<G> gradients) {
  using A = Acc<G>;
  for_units(
      "p3d::kernels::decode", exec, in.first, in.last, KOKKOS_LAMBDA(std::int64_t unit) {
        int const n = static_cast<int>(lines.size_of(unit));
        auto const begin = first_element(lines, unit);
        auto const* const from = bytes_at(in, lines, unit);
        for (int i = 0; i < n; ++i) put(gradients(begin + i * lines.stride), number_of<A>(lines, from, i));
      });
}

template <class G>
void encode_topk(ExecSpace const& exec, CodedLines const& lines, Acc<G> factor, View1<G const> gradients,
                 View1<Acc<G>> share, CodedBytes<std::byte> const& out) {
  using A = Acc<G>;
  if (lines.code == Code::plain) return encode<G>(exec, lines, {}, 0, gradients, out);
  for_units(
      "p3d::kernels::encode_topk", exec, out.first, out.last, KOKKOS_LAMBDA(std::int64_t unit) {
        auto const begin = first_element(lines, unit);
        auto const k = lines.chosen;
        auto* const value = reinterpret_cast<A*>(bytes_at(out, lines, unit));
        auto* const index = reinterpret_cast<std::int32_t*>(value + k);
        A finite = 0;
        for (std::int64_t e = 0; e < lines.length; ++e) {
          auto const at = begin + e * lines.stride;
          A const change = factor * static_cast<A>(gradients(at)) - share(at);
          finite += change - change;
          auto const i = static_cast<std::int32_t>(e);
          if (e < k) {
            value[e] = change;
            index[e] = i;
            if (e + 1 == k)
              for (auto top = k / 2; top-- > 0;) sift_down(value, index, k, top);
          } else if (is_behind(value[0], index[0], change, i)) {
            value[0] = change;
            index[0] = i;
            sift_down(value, index, k, std::int64_t{0});
          }
        }
        bool const good = finite == A(0);
        for (std::int64_t e = 0; e < k; ++e) {
          if (good)
            share(begin + index[e] * lines.stride) += value[e];
          else
            value[e] = not_a_number<A>;
        }
      });
}

template <class G>
void add_topk(ExecSpace const& exec, CodedLines const& lines, Acc<G> factor, int workers,
              CodedBytes<std::byte const> const& in, View1<Acc<G>> applied, View1<G> gradients) {
  using A = Acc<G>;
  for_units(
      "p3d::kernels::add_topk", exec, in.first, in.last, KOKKOS_LAMBDA(std::int64_t unit) {
        auto const begin = first_element(lines, unit);
        auto const* from = bytes_at(in, lines, unit);
        if (lines.code == Code::plain) {
          int const n = static_cast<int>(lines.size_of(unit));
          for (int i = 0; i < n; ++i) {
            A sum = number_of<A>(lines, from, i);
            for (int v = 1; v < workers; ++v) sum += number_of<A>(lines, from + v * in.each, i);
            put(gradients(begin + i * lines.stride), sum);
          }
          return;
        }
        auto const k = lines.chosen;
        bool good = true;
        for (int v = 0; v < workers; ++v, from += in.each) {
          auto const* const value = reinterpret_cast<A const*>(from);
          auto const* const index = reinterpret_cast<std::int32_t const*>(value + k);
          if (!is_finite_number(value[0])) {
            good = false;
            continue;
          }
          for (std::int64_t e = 0; e < k; ++e) applied(begin + index[e] * lines.stride) += value[e];
        }
        for (std::int64_t e = 0; e < lines.length; ++e) {
          auto const at = begin + e * lines.stride;
          put(gradients(at), good ? factor * applied(at) : not_a_number<A>);
        }
      });
}

#define P3D_INSTANTIATE(G)                                                                                        \
  template void encode<G>(ExecSpace const&, CodedLines const&, base::RandomKey, std::uint64_t, View1<G const>,    \
                          CodedBytes<std::byte> const&);                                                          \
  template void add_coded<G>(ExecSpace const&, CodedLines const&, base::RandomKey, std::uint64_t, int,            \
                             CodedBytes<std::byte const> const&, CodedBytes<std::byte> const&);                   \
  template void decode<G>(ExecSpace const&, CodedLines const&, CodedBytes<std::byte const> const&, View1<G>);     \
  template void encode_topk<G>(ExecSpace const&, CodedLines const&, Acc<G>, View1<G const>, View1<Acc<G>>,        \
                               CodedBytes<std::byte> const&);                                                     \
  template void add_topk<G>(ExecSpace const&, CodedLines const&, Acc<G>, int, CodedBytes<std::byte const> const&, \
                            View1<Acc<G>>, View1<G>);
P3D_GRADIENT_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
