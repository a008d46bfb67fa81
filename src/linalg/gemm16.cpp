// SPDX-License-Identifier: Apache-2.0
// GEMMs of 16-bit matrices: the choice of the method, and the workspaces. On the host Kokkos' threads each compute a
// slice of C, by oneDNN or by widened panels; on GPUs the vendor's library or a plain kernel computes it. oneDNN is
// asked first, on one thread, whether it can do every slice.
#include "gemm16.hpp"

#include <p3d/base/error.hpp>
#include <p3d/linalg/gemm.hpp>

#include <algorithm>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "slices.hpp"
#if defined(P3D_VENDOR_GEMM)
#include "vendor_stream.hpp"
#endif

namespace p3d::linalg {

namespace detail {
namespace {
HostMethod host_method = HostMethod::automatic;
}  // namespace
void set_host_method(HostMethod method) { host_method = method; }
}  // namespace detail

namespace {

using detail::Gemm16;
using detail::HostMethod;
using detail::Type16;

template <class S>
constexpr Type16 type16 = std::is_same_v<S, device::bfloat16> ? Type16::bfloat16 : Type16::float16;

/// The memory that threads work in. It is taken at the first GEMM, for all threads, and kept.
class Workspaces {
public:
  static constexpr std::size_t bytes_each = static_cast<std::size_t>(detail::panel_floats) * sizeof(float);
  static constexpr std::align_val_t alignment{4096};

  float* data(int threads) {
    if (threads > threads_) {
      memory_.reset(static_cast<float*>(::operator new(bytes_each* static_cast<std::size_t>(threads), alignment)));
      threads_ = threads;
    }
    return memory_.get();
  }

private:
  struct Free {
    void operator()(float* memory) const { ::operator delete(memory, alignment); }
  };
  std::unique_ptr<float, Free> memory_;
  int threads_ = 0;
};
/// The workspaces of so many threads, one behind the other.
[[maybe_unused]] float* workspaces(int threads) {
  static Workspaces all;
  return all.data(threads);
}

/// The slice of a GEMM that thread i computes.
[[maybe_unused]] Gemm16 slice_of(Gemm16 const& g, detail::Slices const& slices, int i) {
  Gemm16 part = g;
  std::int64_t const begin = i * slices.width,
                     count = std::clamp<std::int64_t>((slices.by_rows ? g.m : g.n) - begin, 0, slices.width);
  auto* const c = static_cast<std::byte*>(g.c);
  if (slices.by_rows) {
    part.m = count;
    part.a += begin * (g.op_a == Op::none ? g.lda : 1);
    part.c = c + begin * g.ldc * g.bytes_of_c();
  } else {
    part.n = count;
    part.b += begin * (g.op_b == Op::none ? 1 : g.ldb);
    part.c = c + begin * g.bytes_of_c();
  }
  return part;
}

/// Computes a GEMM on the host. It is a template so that builds for GPUs, which have no use for it, do not compile it.
template <class Product>
void host_gemm16(ExecSpace const& exec, Product const& g) {
  auto const slices = detail::slices(exec.concurrency(), g.m, g.n, g.k);
  float* const workspace = workspaces(exec.concurrency());
  bool onednn = detail::host_method != HostMethod::widened;
  for (int i = 0; i < slices.threads && onednn; ++i) {  // the last slices may be narrower
    auto const part = slice_of(g, slices, i);
    if (part.m > 0 && part.n > 0) onednn = detail::prepare_onednn(part, exec.concurrency());
  }
  P3D_REQUIRE(onednn || detail::host_method != HostMethod::onednn, "oneDNN has no such GEMM");
  SingleThreadedBlas const alone;
  // One thread takes this way too: in some builds the memory of Views is accessible only inside kernels.
  Kokkos::parallel_for("p3d::linalg::gemm16", Kokkos::RangePolicy<ExecSpace, int>(exec, 0, slices.threads), [=](int i) {
    auto const part = slice_of(g, slices, i);
    if (part.m <= 0 || part.n <= 0) return;
    auto* const own = workspace + i * detail::panel_floats;
    onednn ? detail::onednn_gemm(part, i, own) : detail::widened_gemm(part, own);
  });
}

/// Computes a GEMM with one thread for each element of C, in builds without a library that has such GEMMs.
template <class S, class C>
void plain(ExecSpace const& exec, Op op_a, Op op_b, float alpha, View2<S const> a, View2<S const> b, float beta,
           View2<C> c) {
  bool const a_is = op_a == Op::none, b_is = op_b == Op::none;
  auto const rows = static_cast<std::int64_t>(c.extent(0)), cols = static_cast<std::int64_t>(c.extent(1));
  auto const k = static_cast<std::int64_t>(a.extent(a_is ? 1 : 0));
  Kokkos::parallel_for(
      "p3d::linalg::plain_gemm16",
      Kokkos::RangePolicy<ExecSpace, Kokkos::IndexType<std::int64_t>>(exec, 0, rows * cols),
      KOKKOS_LAMBDA(std::int64_t at) {
        std::int64_t const i = at / cols, j = at % cols;
        float sum = 0.0F;
        for (std::int64_t l = 0; l < k; ++l)
          sum += static_cast<float>(a_is ? a(i, l) : a(l, i)) * static_cast<float>(b_is ? b(l, j) : b(j, l));
        C& x = c(i, j);
        x = static_cast<C>(alpha * sum + (beta == 0.0F ? 0.0F : beta * static_cast<float>(x)));
      });
}

#if defined(P3D_VENDOR_GEMM)
void vendor_gemm16(ExecSpace const& exec, Gemm16 const& g) { detail::vendor_gemm(detail::vendor_stream(exec), g); }
#endif

}  // namespace

template <Float16 S, class C>
void gemm(ExecSpace const& exec, Op op_a, Op op_b, float alpha, View2<S const> a, View2<S const> b, float beta,
          View2<C> c) {
  auto const m = op_a == Op::none ? a.extent(0) : a.extent(1);
  auto const k = op_a == Op::none ? a.extent(1) : a.extent(0);
  auto const k_of_b = op_b == Op::none ? b.extent(0) : b.extent(1);
  auto const n = op_b == Op::none ? b.extent(1) : b.extent(0);
  P3D_REQUIRE(k == k_of_b && m == c.extent(0) && n == c.extent(1), "shapes of a GEMM do not fit");
  if (m == 0 || n == 0) return;
  if (k == 0 && beta == 1.0F) return;  // experts without tokens have such gradients
  if (k == 0) return plain<S, C>(exec, op_a, op_b, 0.0F, a, b, beta, c);
  auto const size = [](std::size_t x) { return static_cast<std::int64_t>(x); };
  auto const stride = [](auto const& x) { return std::max<std::int64_t>(1, static_cast<std::int64_t>(x.stride(0))); };
  [[maybe_unused]] Gemm16 const product{.type = type16<S>,
                                        .wide_c = std::is_same_v<C, float>,
                                        .op_a = op_a,
                                        .op_b = op_b,
                                        .m = size(m),
                                        .n = size(n),
                                        .k = size(k),
                                        .alpha = alpha,
                                        .a = reinterpret_cast<std::uint16_t const*>(a.data()),
                                        .lda = stride(a),
                                        .b = reinterpret_cast<std::uint16_t const*>(b.data()),
                                        .ldb = stride(b),
                                        .beta = beta,
                                        .c = c.data(),
                                        .ldc = stride(c)};
  Kokkos::Profiling::pushRegion("p3d::linalg::gemm16");
  if constexpr (detail::on_host) {
    host_gemm16(exec, product);
  } else {
#if defined(P3D_VENDOR_GEMM)
    vendor_gemm16(exec, product);
#else
    plain<S, C>(exec, op_a, op_b, alpha, a, b, beta, c);
#endif
  }
  Kokkos::Profiling::popRegion();
}

template <Float16 S>
std::string gemm_method() {
  if constexpr (detail::on_host) {
    auto const units = detail::onednn_method(type16<S>);
    return units.empty() ? "panels widened to float for the BLAS" : units;
  } else {
#if defined(P3D_VENDOR_GEMM)
    return detail::vendor_method();
#else
    return "a plain kernel";
#endif
  }
}

#define P3D_INSTANTIATE(S)                                                                                            \
  template void gemm<S, S>(ExecSpace const&, Op, Op, float, View2<S const>, View2<S const>, float, View2<S>);         \
  template void gemm<S, float>(ExecSpace const&, Op, Op, float, View2<S const>, View2<S const>, float, View2<float>); \
  template std::string gemm_method<S>();
P3D_INSTANTIATE(device::bfloat16)
P3D_INSTANTIATE(device::float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::linalg
