// SPDX-License-Identifier: Apache-2.0
// A vendor's library for tests on the host: loops, of which the vendors' files say the same with their own calls. With
// it the tests of GEMMs go the way that they go on GPUs.

#include <p3d/device/float16.hpp>
#include <p3d/device/view.hpp>

#include <linalg/gemm16.hpp>
#include <linalg/vendor_gemm.hpp>

namespace p3d::linalg::detail {

namespace {

double read(Element type, void const* data, std::int64_t i) {
  switch (type) {
    case Element::float64: return static_cast<double const*>(data)[i];
    case Element::float32: return static_cast<double>(static_cast<float const*>(data)[i]);
    case Element::bfloat16:
      return static_cast<double>(static_cast<float>(static_cast<device::bfloat16 const*>(data)[i]));
    case Element::float16: return static_cast<double>(static_cast<float>(static_cast<device::float16 const*>(data)[i]));
  }
  return 0.0;
}
void write(Element type, void* data, std::int64_t i, double x) {
  switch (type) {
    case Element::float64: static_cast<double*>(data)[i] = x; return;
    case Element::float32: static_cast<float*>(data)[i] = static_cast<float>(x); return;
    case Element::bfloat16: static_cast<device::bfloat16*>(data)[i] = device::bfloat16(static_cast<float>(x)); return;
    case Element::float16: static_cast<device::float16*>(data)[i] = device::float16(static_cast<float>(x)); return;
  }
}

}  // namespace

/// One thread, inside a kernel: where the host's memory is guarded, only kernels may touch that of Views.
void vendor_batched_gemm(void*, BatchedGemm const& gemms) {
  Kokkos::parallel_for("p3d::test::stand_in_vendor", Kokkos::RangePolicy<device::ExecSpace>(0, 1), [g = gemms](int) {
    for (std::int64_t item = 0; item < g.batch; ++item)
      for (std::int64_t i = 0; i < g.m; ++i)
        for (std::int64_t j = 0; j < g.n; ++j) {
          double sum = 0;
          for (std::int64_t l = 0; l < g.k; ++l)
            sum += read(g.type, g.a, item * g.stride_a + (g.op_a == Op::none ? i * g.lda + l : l * g.lda + i)) *
                   read(g.type, g.b, item * g.stride_b + (g.op_b == Op::none ? l * g.ldb + j : j * g.ldb + l));
          auto const at = item * g.stride_c + i * g.ldc + j;
          write(g.type_c, g.c, at, g.alpha * sum + (g.beta == 0.0 ? 0.0 : g.beta * read(g.type_c, g.c, at)));
        }
  });
}

void vendor_gemm(void* stream, Gemm16 const& g) { vendor_batched_gemm(stream, batch_of_one(g)); }

char const* vendor_method() { return "loops"; }
void release_vendor() {}

}  // namespace p3d::linalg::detail
