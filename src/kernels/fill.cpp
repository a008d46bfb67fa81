// SPDX-License-Identifier: Apache-2.0
// Constant and random fills, and conversions between types of numbers.
#include <p3d/kernels/elementwise.hpp>

#include <cstring>
#include <type_traits>

#include "wide.hpp"

namespace p3d::kernels {

namespace {
/// The number of bytes from which the C library writes zeros past the caches: twice as fast for memory that is not read
/// soon.
constexpr std::size_t large = std::size_t{1} << 22;
}  // namespace

template <class T>
void fill(ExecSpace const& exec, View1<T> x, T value) {
#if defined(KOKKOS_ENABLE_SERIAL)
  if constexpr (std::is_same_v<ExecSpace, Kokkos::Serial> && !device::memory_is_guarded) {
    auto const bytes = x.extent(0) * sizeof(T);
    if (bytes >= large && value == T{}) {
      std::memset(static_cast<void*>(x.data()), 0, bytes);
      return;
    }
  }
#endif
  for_vector<wide_flat<T>>(
      "p3d::kernels::fill", exec, x.extent(0), KOKKOS_LAMBDA(std::int64_t c, int n) {
        auto out = write<wide_flat<T>>(&x(c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<wide_flat<T>>(n); ++i) put(out[i], value);
        out.store();
      });
}

template <class T>
void fill_normal(ExecSpace const& exec, base::RandomKey key, double std, std::int64_t row_begin, std::int64_t col_begin,
                 std::int64_t global_cols, std::int64_t valid_rows, View2<T> x) {
  for_chunks<element_width>(
      "p3d::kernels::fill_normal", exec, x.extent(0), x.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        T* const out = &x(r, c);
        T const scale = r < valid_rows ? static_cast<T>(1) : static_cast<T>(0);
        auto const first = static_cast<std::uint64_t>((row_begin + r) * global_cols + col_begin + c);
        P3D_SIMD
        for (int i = 0; i < n; ++i) {
          out[i] = scale * static_cast<T>(std * base::random_normal(key, 0, first + static_cast<std::uint64_t>(i)));
        }
      });
}

template <class From, class To>
void convert(ExecSpace const& exec, View1<From const> from, View1<To> to) {
  P3D_REQUIRE(from.extent(0) == to.extent(0), "a conversion keeps the number of elements");
  constexpr int W = sizeof(From) < sizeof(To) ? wide_flat<From> : wide_flat<To>;  // one whole load of the smaller type
  for_vector<W>(
      "p3d::kernels::convert", exec, to.extent(0), KOKKOS_LAMBDA(std::int64_t c, int n) {
        auto const in = read<W>(&from(c), n);
        auto out = write<W>(&to(c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<W>(n); ++i) put(out[i], in[i]);
        out.store();
      });
}

#define P3D_INSTANTIATE(S) template void fill<S>(ExecSpace const&, View1<S>, S);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

#define P3D_INSTANTIATE(T)                                                                                          \
  template void fill_normal<T>(ExecSpace const&, base::RandomKey, double, std::int64_t, std::int64_t, std::int64_t, \
                               std::int64_t, View2<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

#define P3D_INSTANTIATE(T)                                                         \
  template void convert<float, T>(ExecSpace const&, View1<float const>, View1<T>); \
  template void convert<T, float>(ExecSpace const&, View1<T const>, View1<float>);
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(bfloat16)
P3D_INSTANTIATE(float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
