// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/linalg/gemm_choice.hpp>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "onednn.hpp"
#include "onednn_call.hpp"

namespace p3d::linalg {

std::string onednn_version() {
  auto const* const v = dnnl::version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

namespace detail {

bool onednn_has_avx512() {
  auto const wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

void onednn_sgemm(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, float const* a,
                  std::int64_t lda, float const* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  OnednnCall const call;
  auto const status =
      dnnl_sgemm(static_cast<char>(op_a), static_cast<char>(op_b), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  P3D_REQUIRE(status == dnnl_success, "oneDNN carries out an fp32 GEMM");
}

}  // namespace detail

}  // namespace p3d::linalg
