// SPDX-License-Identifier: Apache-2.0
// GEMMs in float and double. On the host a GEMM is cut into slices of whole rows or whole columns of C, one for each of
// Kokkos' threads, and each thread calls the BLAS or oneDNN for its slice. On GPUs it is a batch of one for the
// vendor's library, or a call of Kokkos-Kernels.
//
// Example: [4096, 768] times [768, 3072] on 4 threads is 4 slices of 1024 rows of C.
#include <p3d/linalg/gemm.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/poll.hpp>
#include <p3d/linalg/batched_gemm.hpp>
#include <p3d/linalg/host_blas.hpp>

#include <KokkosBlas3_gemm.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "slices.hpp"

namespace p3d::linalg {

namespace {

/// C = beta C, for k = 0: versions of BLAS and Kokkos-Kernels differ in what they do then.
template <class T>
void scale(ExecSpace const& exec, T beta, View2<T> c) {
  if (beta == T(1)) return;
  auto const rows = static_cast<std::int64_t>(c.extent(0)), cols = static_cast<std::int64_t>(c.extent(1));
  Kokkos::parallel_for(
      "p3d::linalg::scale", Kokkos::RangePolicy<ExecSpace, Kokkos::IndexType<std::int64_t>>(exec, 0, rows * cols),
      KOKKOS_LAMBDA(std::int64_t i) {
        T& x = c(i / cols, i % cols);
        x = beta == T(0) ? T(0) : beta * x;
      });
}

/// C = alpha A B + beta C where B and C are one column of wider matrices. Kokkos-Kernels from 3.5 on treats that as a
/// matrix times a vector and takes both columns for contiguous (4.7 still does): it would write beside C.
template <class T>
void one_column(ExecSpace const& exec, T alpha, View2<T const> a, View2<T const> b, T beta, View2<T> c) {
  auto const rows = static_cast<std::int64_t>(c.extent(0)), k = static_cast<std::int64_t>(a.extent(1));
  Kokkos::parallel_for(
      "p3d::linalg::one_column", Kokkos::RangePolicy<ExecSpace, Kokkos::IndexType<std::int64_t>>(exec, 0, rows),
      KOKKOS_LAMBDA(std::int64_t i) {
        T sum = 0;
        for (std::int64_t l = 0; l < k; ++l) sum += a(i, l) * b(l, 0);
        T& x = c(i, 0);
        x = (beta == T(0) ? T(0) : beta * x) + alpha * sum;
      });
}

/// One thread's slice of a GEMM on the host: whole rows or whole columns of C, so that no sum is cut.
template <class T>
struct Slice {
  Op op_a, op_b;
  std::int64_t m, n, k;
  T alpha;
  T const* a;
  std::int64_t lda;
  T const* b;
  std::int64_t ldb;
  T beta;
  T* c;
  std::int64_t ldc;
  std::int64_t width = 0;  ///< rows or columns of a slice
  HostLibrary library = HostLibrary::blas;
  bool by_rows = false;

  /// The slice that has rows or columns [begin, begin + count) of C.
  Slice part(bool rows, std::int64_t begin, std::int64_t count) const {
    Slice out = *this;
    (rows ? out.m : out.n) = count;
    if (rows) {
      out.a += begin * (op_a == Op::none ? lda : 1);
      out.c += begin * ldc;
    } else {
      out.b += begin * (op_b == Op::none ? 1 : ldb);
      out.c += begin;
    }
    return out;
  }
  /// Computes slice number i.
  void operator()(int i) const {
    std::int64_t const begin = i * width, count = std::min(width, (by_rows ? m : n) - begin);
    if (count <= 0) return;
    auto const s = part(by_rows, begin, count);
    host_gemm<T>(library, op_a, op_b, s.m, s.n, k, alpha, s.a, lda, s.b, ldb, beta, s.c, ldc);
  }
};

/// Runs the slices in Kokkos' threads. Threads of the BLAS itself would compete with them, since Kokkos' threads wait
/// by spinning.
template <class T>
void run_sliced(ExecSpace const& exec, Slice<T> slice) {
  auto const [threads, by_rows, width] = detail::slices(exec.concurrency(), slice.m, slice.n, slice.k);
  SingleThreadedBlas const alone;
  slice.by_rows = by_rows;
  slice.width = width;
  if (threads == 1) return slice(0);
  Kokkos::parallel_for("p3d::linalg::gemm", Kokkos::RangePolicy<ExecSpace, int>(exec, 0, threads), slice);
}

/// Computes a GEMM. Where messages are polled, a long GEMM is done in pieces with a poll between them: other ranks may
/// wait for messages that this rank has sent.
template <class T>
void sliced(ExecSpace const& exec, Slice<T> whole) {
  whole.library = gemm_choice().of(whole.op_a, whole.op_b, whole.m, whole.n, whole.k);
  bool const by_rows = whole.m > whole.n;
  auto const size = by_rows ? whole.m : whole.n;
  auto const width = [&](bool often) {
    return detail::polled_width(whole.m, whole.n, whole.k, exec.concurrency(), often);
  };
  if (!base::polls() || width(true) >= size) return run_sliced(exec, whole);
  for (std::int64_t begin = 0; begin < size;) {
    auto const count = std::min(width(base::poll()), size - begin);
    run_sliced(exec, whole.part(by_rows, begin, count));
    begin += count;
  }
}

}  // namespace

template <std::floating_point T>
void gemm(ExecSpace const& exec, Op op_a, Op op_b, T alpha, View2<T const> a, View2<T const> b, T beta, View2<T> c) {
  auto const m = op_a == Op::none ? a.extent(0) : a.extent(1);
  auto const k = op_a == Op::none ? a.extent(1) : a.extent(0);
  auto const k_of_b = op_b == Op::none ? b.extent(0) : b.extent(1);
  auto const n = op_b == Op::none ? b.extent(1) : b.extent(0);
  P3D_REQUIRE(k == k_of_b && m == c.extent(0) && n == c.extent(1), "shapes of a GEMM do not fit");
  if (m == 0 || n == 0) return;
  if (k == 0) return scale(exec, beta, c);
#if defined(P3D_VENDOR_GEMM)
  Kokkos::Profiling::pushRegion("p3d::linalg::gemm");
  auto const stride = [](auto const& x) { return static_cast<std::int64_t>(x.stride(0)); };
  batched_gemm<T, T>(exec, op_a, op_b,
                     {1, static_cast<std::int64_t>(m), static_cast<std::int64_t>(n), static_cast<std::int64_t>(k)},
                     alpha, {a.data(), stride(a), 0}, {b.data(), stride(b), 0}, beta, {c.data(), stride(c), 0});
  Kokkos::Profiling::popRegion();
  base::poll();
#else
  if constexpr (!detail::on_host) {
    if (n == 1 && op_a == Op::none && op_b == Op::none && (b.stride(0) != 1 || c.stride(0) != 1))
      return one_column(exec, alpha, a, b, beta, c);
  }
  char const mode_a[] = {static_cast<char>(op_a), '\0'};
  char const mode_b[] = {static_cast<char>(op_b), '\0'};
  // Host execution spaces run a kernel at once, so the BLAS can be called directly, without a fence. On GPUs without a
  // vendor's library in p3d, Kokkos-Kernels takes an execution instance from 4.x on; before that it runs on the default
  // one, whose earlier and later work must then be ordered with ours by fences.
  Kokkos::Profiling::pushRegion("p3d::linalg::gemm");
  if constexpr (detail::on_host) {
    auto const stride = [](auto const& x) { return static_cast<std::int64_t>(x.stride(0)); };
    sliced<T>(exec,
              {op_a, op_b, static_cast<std::int64_t>(m), static_cast<std::int64_t>(n), static_cast<std::int64_t>(k),
               alpha, a.data(), stride(a), b.data(), stride(b), beta, c.data(), stride(c)});
  } else if constexpr (requires { KokkosBlas::gemm(exec, mode_a, mode_b, alpha, a, b, beta, c); }) {
    KokkosBlas::gemm(exec, mode_a, mode_b, alpha, a, b, beta, c);
  } else {
    device::fence(exec, "p3d::linalg::gemm before");
    KokkosBlas::gemm(mode_a, mode_b, alpha, a, b, beta, c);
    device::fence(ExecSpace(), "p3d::linalg::gemm after");
  }
  Kokkos::Profiling::popRegion();
  base::poll();
#endif
}

template void gemm<float>(ExecSpace const&, Op, Op, float, View2<float const>, View2<float const>, float, View2<float>);
template void gemm<double>(ExecSpace const&, Op, Op, double, View2<double const>, View2<double const>, double,
                           View2<double>);

}  // namespace p3d::linalg
