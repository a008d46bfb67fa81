// SPDX-License-Identifier: Apache-2.0
// Reductions of arrays on the host. Two or four inputs, which are the most frequent numbers, are combined in one pass
// over memory; other numbers in blocks that fit the first cache. Both ways apply the operation in the order of the
// inputs, so they give the same bits. 16-bit numbers are widened to float, kept wide until all inputs have been added,
// and rounded once. Example: the sum of four inputs is ((a + b) + c) + d for every element.
#include "combine.hpp"

#include <p3d/base/float16.hpp>

#include <algorithm>
#include <type_traits>

namespace p3d::comm::detail {

namespace {

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {  // wraps round on overflow
      using Bits = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Bits>(a) + static_cast<Bits>(b));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

/// Conversion of an element for the arithmetic and back. Only 16-bit numbers change; all others are added as they are.
template <class T>
struct As {
  using Wide = T;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};
struct BFloat16Bits {
  std::uint16_t bits;
};
template <>
struct As<BFloat16Bits> {
  using Wide = float;
  static float load(BFloat16Bits x) { return base::bfloat16_value(x.bits); }
  static BFloat16Bits store(float x) { return {base::bfloat16_bits(x)}; }
};
struct Float16Bits {
  std::uint16_t bits;
};
template <>
struct As<Float16Bits> {
  using Wide = float;
  static float load(Float16Bits x) { return base::float16_value(x.bits); }
  static Float16Bits store(float x) { return {base::float16_bits(x)}; }
};

#if defined(__GNUC__) || defined(__clang__)
#define P3D_COMM_SIMD _Pragma("omp simd")
#else
#define P3D_COMM_SIMD
#endif

using Out = std::byte* const*;
using In = std::byte const* const*;

template <class T>
T* as(std::byte* array) {
  return reinterpret_cast<T*>(array);
}
template <class T>
T const* as(std::byte const* array) {
  return reinterpret_cast<T const*>(array);
}

// Each function makes one pass over all arrays. It reads and writes element i alone, so an input may also be an output.

template <class T, class Op, int outputs>
void combine_2(Out out, In in, std::int64_t count) {
  Op const op;
  auto const *const a = as<T>(in[0]), *const b = as<T>(in[1]);
  auto *const x = as<T>(out[0]), *const y = as<T>(out[outputs - 1]);
  P3D_COMM_SIMD for (std::int64_t i = 0; i < count; ++i) {
    T const value = As<T>::store(op(As<T>::load(a[i]), As<T>::load(b[i])));
    x[i] = value;
    if constexpr (outputs > 1) y[i] = value;
  }
}

template <class T, class Op, int outputs>
void combine_4(Out out, In in, std::int64_t count) {
  static_assert(outputs == 1 || outputs == 2 || outputs == 4);
  Op const op;
  auto const *const a = as<T>(in[0]), *const b = as<T>(in[1]), *const c = as<T>(in[2]), *const d = as<T>(in[3]);
  auto *const w = as<T>(out[0]), *const x = as<T>(out[outputs - 1]);
  auto *const y = as<T>(out[outputs > 2 ? 1 : 0]), *const z = as<T>(out[outputs > 2 ? 2 : 0]);
  P3D_COMM_SIMD for (std::int64_t i = 0; i < count; ++i) {
    auto const first = op(As<T>::load(a[i]), As<T>::load(b[i]));
    T const value = As<T>::store(op(op(first, As<T>::load(c[i])), As<T>::load(d[i])));
    w[i] = value;
    if constexpr (outputs > 1) x[i] = value;
    if constexpr (outputs > 2) {
      y[i] = value;
      z[i] = value;
    }
  }
}

/// Combines any number of arrays, in blocks that fit the first cache.
template <class T, class Op>
void combine_blocks(std::span<std::byte* const> out, std::span<std::byte const* const> in, std::int64_t count) {
  constexpr std::int64_t block = 4096 / sizeof(T);
  T sum[block];
  std::byte* const to[] = {reinterpret_cast<std::byte*>(sum)};
  for (std::int64_t begin = 0; begin < count; begin += block) {
    std::int64_t const n = std::min(block, count - begin);
    auto const at = [&](std::size_t k) { return in[k] + static_cast<std::size_t>(begin) * sizeof(T); };
    std::copy_n(as<T>(at(0)), n, sum);
    std::size_t k = 1;
    for (; k + 2 < in.size(); k += 3) {
      std::byte const* const from[] = {to[0], at(k), at(k + 1), at(k + 2)};
      combine_4<T, Op, 1>(to, from, n);
    }
    for (; k < in.size(); ++k) {
      std::byte const* const from[] = {to[0], at(k)};
      combine_2<T, Op, 1>(to, from, n);
    }
    for (auto* const each : out) std::copy_n(sum, n, as<T>(each) + begin);
  }
}

/// Combines any number of arrays whose sum is wider than their elements: it stays wide until all have been added.
template <class T, class Op>
void combine_blocks_wide(std::span<std::byte* const> out, std::span<std::byte const* const> in, std::int64_t count) {
  Op const op;
  constexpr std::int64_t block = 1024;
  typename As<T>::Wide sum[block];
  T result[block];
  for (std::int64_t begin = 0; begin < count; begin += block) {
    std::int64_t const n = std::min(block, count - begin);
    auto const* const first = as<T>(in[0]) + begin;
    P3D_COMM_SIMD for (std::int64_t i = 0; i < n; ++i) sum[i] = As<T>::load(first[i]);
    for (std::size_t k = 1; k < in.size(); ++k) {
      auto const* const next = as<T>(in[k]) + begin;
      P3D_COMM_SIMD for (std::int64_t i = 0; i < n; ++i) sum[i] = op(sum[i], As<T>::load(next[i]));
    }
    P3D_COMM_SIMD for (std::int64_t i = 0; i < n; ++i) result[i] = As<T>::store(sum[i]);
    for (auto* const each : out) std::copy_n(result, n, as<T>(each) + begin);
  }
}

template <class T, class Op>
void combine_as(std::span<std::byte* const> out, std::span<std::byte const* const> in, std::int64_t count) {
  if (in.size() == 2 && out.size() == 1) return combine_2<T, Op, 1>(out.data(), in.data(), count);
  if (in.size() == 2 && out.size() == 2) return combine_2<T, Op, 2>(out.data(), in.data(), count);
  if (in.size() == 4 && out.size() == 1) return combine_4<T, Op, 1>(out.data(), in.data(), count);
  if (in.size() == 4 && out.size() == 2) return combine_4<T, Op, 2>(out.data(), in.data(), count);
  if (in.size() == 4 && out.size() == 4) return combine_4<T, Op, 4>(out.data(), in.data(), count);
  if constexpr (std::is_same_v<T, typename As<T>::Wide>) {
    combine_blocks<T, Op>(out, in, count);
  } else {
    combine_blocks_wide<T, Op>(out, in, count);
  }
}

template <class T>
void combine_type(Reduction op, std::span<std::byte* const> out, std::span<std::byte const* const> in,
                  std::int64_t count) {
  switch (op) {
    case Reduction::sum: return combine_as<T, Sum>(out, in, count);
    case Reduction::max: return combine_as<T, Max>(out, in, count);
    case Reduction::min: return combine_as<T, Min>(out, in, count);
  }
}

}  // namespace

void combine(ElementType type, Reduction op, std::span<std::byte* const> out, std::span<std::byte const* const> in,
             std::int64_t count) {
  if (auto const narrow = type.float16()) {
    switch (*narrow) {
      case Float16Type::bfloat16: return combine_type<BFloat16Bits>(op, out, in, count);
      case Float16Type::float16: return combine_type<Float16Bits>(op, out, in, count);
    }
  }
  switch (*type.mpi()) {
    case Type::int32: return combine_type<std::int32_t>(op, out, in, count);
    case Type::int64: return combine_type<std::int64_t>(op, out, in, count);
    case Type::uint64: return combine_type<std::uint64_t>(op, out, in, count);
    case Type::float32: return combine_type<float>(op, out, in, count);
    case Type::float64: return combine_type<double>(op, out, in, count);
    case Type::byte: return;  // refused when the operation starts
  }
}

}  // namespace p3d::comm::detail
