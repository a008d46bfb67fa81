// SPDX-License-Identifier: Apache-2.0
// The functions of oneDNN for builds without it.

#include <p3d/base/error.hpp>
#include <p3d/linalg/gemm_choice.hpp>

#include "gemm16.hpp"
#include "onednn.hpp"

namespace p3d::linalg {

std::string onednn_version() { return ""; }

namespace detail {

bool onednn_has_avx512() { return false; }
void onednn_sgemm(Op, Op, std::int64_t, std::int64_t, std::int64_t, float, float const*, std::int64_t, float const*,
                  std::int64_t, float, float*, std::int64_t) {
  P3D_REQUIRE(false, "this build has oneDNN");
}

std::string onednn_method(Type16) { return ""; }
bool prepare_onednn(Gemm16 const&, int) { return false; }
void onednn_gemm(Gemm16 const&, int, float*) {}

}  // namespace detail

}  // namespace p3d::linalg
