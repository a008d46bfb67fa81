// SPDX-License-Identifier: Apache-2.0
#include <p3d/linalg/gemm_choice.hpp>

#include <p3d/base/error.hpp>
#include <p3d/linalg/blas_threads.hpp>

#include <algorithm>

#include "onednn.hpp"

namespace p3d::linalg {

namespace {
GemmChoice& current() {
  static GemmChoice choice;
  return choice;
}
}  // namespace

GemmChoice::Shape GemmChoice::shape(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k) {
  return op_a == Op::none ? Shape{op_a, op_b, n, k} : Shape{op_a, op_b, m, n};
}

void GemmChoice::set(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, HostLibrary library) {
  auto const key = shape(op_a, op_b, m, n, k);
  auto const found = std::find_if(shapes_.begin(), shapes_.end(), [&](auto const& s) { return s.first == key; });
  if (found == shapes_.end())
    shapes_.emplace_back(key, library);
  else
    found->second = library;
}

HostLibrary GemmChoice::of(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k) const {
  auto const key = shape(op_a, op_b, m, n, k);
  for (auto const& [known, library] : shapes_) {
    if (known == key) return library;
  }
  return others_;
}

std::int64_t GemmChoice::shapes(HostLibrary library) const {
  return std::count_if(shapes_.begin(), shapes_.end(), [&](auto const& s) { return s.second == library; });
}

GemmChoice const& gemm_choice() { return current(); }

void set_gemm_choice(GemmChoice choice) {
  bool const uses_onednn = choice.others() == HostLibrary::onednn || choice.shapes(HostLibrary::onednn) > 0;
  P3D_REQUIRE(!uses_onednn || !onednn_version().empty(), "oneDNN is chosen, and this build has none");
  current() = std::move(choice);
}

bool onednn_is_usual() {
  return detail::onednn_has_avx512() && blas_version().find("Math Kernel Library") == std::string::npos;
}

}  // namespace p3d::linalg
