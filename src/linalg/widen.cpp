// SPDX-License-Identifier: Apache-2.0
#include "widen.hpp"

#include <p3d/base/float16.hpp>

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
#define P3D_X86_UNITS
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace p3d::linalg::detail {

namespace {

void bfloat16_row(std::uint16_t const* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = base::bfloat16_value(from[i]);
}
void float16_row(std::uint16_t const* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = base::float16_value(from[i]);
}

#if defined(P3D_X86_UNITS)
// This function is compiled for these units in every build, and called where the processor has them.
__attribute__((target("avx,f16c"))) void float16_row_f16c(std::uint16_t const* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(from + i))));
  float16_row(from + i, count - i, to + i);
}
// The plain loop, compiled for AVX2 so that the compiler vectorises it.
__attribute__((target("avx2"))) void bfloat16_row_avx2(std::uint16_t const* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = base::bfloat16_value(from[i]);
}
// True where the processor converts float16. Clang's __builtin_cpu_supports knows no f16c before version 15.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

WidenRow widen_row(Type16 type) {
  bool const bfloat16 = type == Type16::bfloat16;
#if defined(P3D_X86_UNITS)
  if (bfloat16 && __builtin_cpu_supports("avx2")) return bfloat16_row_avx2;
  if (!bfloat16 && has_f16c()) return float16_row_f16c;
#endif
  return bfloat16 ? bfloat16_row : float16_row;
}

}  // namespace p3d::linalg::detail
