#include "combine.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace p3d::comm::detail {

namespace {

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {  // wraps round
      using Bits = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Bits>(a) + static_cast<Bits>(b));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const { return a < b ? b : a; }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const { return b < a ? b : a; }
};

/// The loops: each reads and writes element i alone, so an input that is also an output does no harm.
#if defined(__GNUC__) || defined(__clang__)
#define P3D_COMM_SIMD _Pragma("omp simd")
#else
#define P3D_COMM_SIMD
#endif

template <class T, class Op>
void combine_2(T* out, T* copy, T const* a, T const* b, std::int64_t count) {
  Op const op;
  if (copy == nullptr) {
    P3D_COMM_SIMD for (std::int64_t i = 0; i < count; ++i) out[i] = op(a[i], b[i]);
  } else {
    P3D_COMM_SIMD for (std::int64_t i = 0; i < count; ++i) {
      T const value = op(a[i], b[i]);
      out[i] = value;
      copy[i] = value;
    }
  }
}

template <class T, class Op>
void combine_4(T* out, T* copy, T const* a, T const* b, T const* c, T const* d, std::int64_t count) {
  Op const op;
  if (copy == nullptr) {
    P3D_COMM_SIMD for (std::int64_t i = 0; i < count; ++i) out[i] = op(op(op(a[i], b[i]), c[i]), d[i]);
  } else {
    P3D_COMM_SIMD for (std::int64_t i = 0; i < count; ++i) {
      T const value = op(op(op(a[i], b[i]), c[i]), d[i]);
      out[i] = value;
      copy[i] = value;
    }
  }
}

/// Of many inputs, in blocks that stay in the first cache.
template <class T, class Op>
void combine_as(std::byte* out_bytes, std::byte* copy_bytes, std::byte const* const* in, int inputs, std::int64_t count) {
  auto* const out = reinterpret_cast<T*>(out_bytes);
  auto* const copy = reinterpret_cast<T*>(copy_bytes);
  auto const input = [&](int k) { return reinterpret_cast<T const*>(in[k]); };
  if (inputs == 1) {
    if (input(0) != out) std::copy_n(input(0), count, out);
    if (copy != nullptr) std::copy_n(out, count, copy);
    return;
  }
  if (inputs == 2) return combine_2<T, Op>(out, copy, input(0), input(1), count);
  if (inputs == 4) return combine_4<T, Op>(out, copy, input(0), input(1), input(2), input(3), count);
  constexpr std::int64_t block = 4096 / sizeof(T);
  T sum[block];
  for (std::int64_t begin = 0; begin < count; begin += block) {
    std::int64_t const n = std::min(block, count - begin);
    auto const at = [&](int k) { return input(k) + begin; };
    int k = 2;
    if (inputs < 4) {
      combine_2<T, Op>(sum, nullptr, at(0), at(1), n);
    } else {
      combine_4<T, Op>(sum, nullptr, at(0), at(1), at(2), at(3), n);
      k = 4;
    }
    for (; k + 3 < inputs; k += 3) combine_4<T, Op>(sum, nullptr, sum, at(k), at(k + 1), at(k + 2), n);
    for (; k + 1 < inputs; ++k) combine_2<T, Op>(sum, nullptr, sum, at(k), n);
    if (k < inputs) {
      combine_2<T, Op>(out + begin, copy == nullptr ? nullptr : copy + begin, sum, at(k), n);
    } else {
      std::copy_n(sum, n, out + begin);
      if (copy != nullptr) std::copy_n(sum, n, copy + begin);
    }
  }
}

template <class T>
void combine_type(Reduction op, std::byte* out, std::byte* copy, std::byte const* const* in, int inputs, std::int64_t count) {
  switch (op) {
    case Reduction::sum: return combine_as<T, Sum>(out, copy, in, inputs, count);
    case Reduction::max: return combine_as<T, Max>(out, copy, in, inputs, count);
    case Reduction::min: return combine_as<T, Min>(out, copy, in, inputs, count);
  }
}

}  // namespace

void combine(Type type, Reduction op, std::byte* out, std::byte* copy, std::byte const* const* in, int inputs, std::int64_t count) {
  switch (type) {
    case Type::int32: return combine_type<std::int32_t>(op, out, copy, in, inputs, count);
    case Type::int64: return combine_type<std::int64_t>(op, out, copy, in, inputs, count);
    case Type::uint64: return combine_type<std::uint64_t>(op, out, copy, in, inputs, count);
    case Type::float32: return combine_type<float>(op, out, copy, in, inputs, count);
    case Type::float64: return combine_type<double>(op, out, copy, in, inputs, count);
    case Type::byte: return;  // refused where the operation starts
  }
}

}  // namespace p3d::comm::detail
