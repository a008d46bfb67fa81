// SPDX-License-Identifier: Apache-2.0
// Batches of GEMMs: by the vendor's library on GPUs, by the BLAS on hosts, and by a plain kernel elsewhere.
#include <p3d/linalg/batched_gemm.hpp>

#include <p3d/base/error.hpp>
#include <p3d/linalg/host_blas.hpp>

#include <algorithm>
#include <type_traits>

#include "slices.hpp"
#include "rounded_gemm.hpp"
#include "vendor_gemm.hpp"
#if defined(P3D_VENDOR_GEMM)
#include "vendor_stream.hpp"
#endif

namespace p3d::linalg {

namespace {

using Flat = Kokkos::RangePolicy<ExecSpace, Kokkos::IndexType<std::int64_t>>;

template <class S>
constexpr detail::Element element = std::is_same_v<S, double>             ? detail::Element::float64
                                    : std::is_same_v<S, float>            ? detail::Element::float32
                                    : std::is_same_v<S, device::bfloat16> ? detail::Element::bfloat16
                                                                          : detail::Element::float16;

/// One element of C to a thread: the kernel for builds without a library that has such GEMMs, and for k = 0.
template <class S, class C>
struct PlainElement {
  using T = device::accumulate_t<S>;
  bool a_is, b_is;  ///< A and B are not transposed
  BatchedShape shape;
  T alpha;
  BatchedMatrix<S const> a, b;
  T beta;
  BatchedMatrix<C> c;

  KOKKOS_FUNCTION void operator()(std::int64_t at) const {
    std::int64_t const j = at % shape.n, i = at / shape.n % shape.m, g = at / shape.n / shape.m;
    S const* const x = a.data + g * a.stride + i * (a_is ? a.ld : 1);
    S const* const y = b.data + g * b.stride + j * (b_is ? 1 : b.ld);
    std::int64_t const step_a = a_is ? 1 : a.ld, step_b = b_is ? b.ld : 1;
    T sum = 0;
    for (std::int64_t l = 0; l < shape.k; ++l) sum += static_cast<T>(x[l * step_a]) * static_cast<T>(y[l * step_b]);
    C& z = c.data[g * c.stride + i * c.ld + j];
    z = static_cast<C>(alpha * sum + (beta == T(0) ? T(0) : beta * static_cast<T>(z)));
  }
};

#if defined(P3D_VENDOR_GEMM)
template <class S, class C>
void by_vendor(ExecSpace const& exec, Op op_a, Op op_b, BatchedShape const& shape, double alpha,
               BatchedMatrix<S const> a, BatchedMatrix<S const> b, double beta, BatchedMatrix<C> c) {
  detail::vendor_batched_gemm(detail::vendor_stream(exec), {.type = element<S>,
                                                            .type_c = element<C>,
                                                            .op_a = op_a,
                                                            .op_b = op_b,
                                                            .batch = shape.batch,
                                                            .m = shape.m,
                                                            .n = shape.n,
                                                            .k = shape.k,
                                                            .alpha = alpha,
                                                            .a = a.data,
                                                            .lda = a.ld,
                                                            .stride_a = a.stride,
                                                            .b = b.data,
                                                            .ldb = b.ld,
                                                            .stride_b = b.stride,
                                                            .beta = beta,
                                                            .c = c.data,
                                                            .ldc = c.ld,
                                                            .stride_c = c.stride,
                                                            .operands = detail::operands()});
}
#endif

/// Computes each GEMM in one thread. The BLAS is called inside a kernel, because in some builds the memory of Views is
/// accessible only there.
template <class T>
void by_blas(ExecSpace const& exec, Op op_a, Op op_b, BatchedShape const& shape, T alpha, BatchedMatrix<T const> a,
             BatchedMatrix<T const> b, T beta, BatchedMatrix<T> c) {
  SingleThreadedBlas const alone;
  Kokkos::parallel_for("p3d::linalg::batched_gemm", Flat(exec, 0, shape.batch), [=](std::int64_t g) {
    host_gemm<T>(op_a, op_b, shape.m, shape.n, shape.k, alpha, a.data + g * a.stride, a.ld, b.data + g * b.stride, b.ld,
                 beta, c.data + g * c.stride, c.ld);
  });
}

}  // namespace

template <class S, class C>
void batched_gemm(ExecSpace const& exec, Op op_a, Op op_b, BatchedShape const& shape, device::accumulate_t<S> alpha,
                  BatchedMatrix<S const> a, BatchedMatrix<S const> b, device::accumulate_t<S> beta,
                  BatchedMatrix<C> c) {
  auto const& s = shape;
  if (s.batch == 0 || s.m == 0 || s.n == 0) return;
  for (auto* ld : {&a.ld, &b.ld, &c.ld}) *ld = std::max<std::int64_t>(1, *ld);
  P3D_REQUIRE(
      c.ld >= s.n && (s.k == 0 || (a.ld >= (op_a == Op::none ? s.k : s.m) && b.ld >= (op_b == Op::none ? s.n : s.k))),
      "the rows of matrices of a batch do not overlap");
  Kokkos::Profiling::pushRegion("p3d::linalg::batched_gemm");
  auto const plain = [&] {
    Kokkos::parallel_for("p3d::linalg::plain_batched_gemm", Flat(exec, 0, s.batch * s.m * s.n),
                         PlainElement<S, C>{op_a == Op::none, op_b == Op::none, s, alpha, a, b, beta, c});
  };
  if (s.k == 0) {
    plain();
  } else {
#if defined(P3D_VENDOR_GEMM)
    by_vendor<S, C>(exec, op_a, op_b, s, alpha, a, b, beta, c);
#else
    if constexpr (detail::on_host && std::is_floating_point_v<S>)
      by_blas<S>(exec, op_a, op_b, s, alpha, a, b, beta, c);
    else
      plain();
#endif
  }
  Kokkos::Profiling::popRegion();
}

#define P3D_INSTANTIATE(S, C)                                                                               \
  template void batched_gemm<S, C>(ExecSpace const&, Op, Op, BatchedShape const&, device::accumulate_t<S>,  \
                                   BatchedMatrix<S const>, BatchedMatrix<S const>, device::accumulate_t<S>, \
                                   BatchedMatrix<C>);
P3D_INSTANTIATE(double, double)
P3D_INSTANTIATE(float, float)
P3D_INSTANTIATE(device::bfloat16, device::bfloat16)
P3D_INSTANTIATE(device::bfloat16, float)
P3D_INSTANTIATE(device::float16, device::float16)
P3D_INSTANTIATE(device::float16, float)
#undef P3D_INSTANTIATE

}  // namespace p3d::linalg
