// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/version.hpp>
#include <p3d/base/version_stamp.hpp>

#include <fmt/format.h>

namespace p3d::base {

std::string version() { return P3D_VERSION_STRING; }

std::string version_with_hash() { return fmt::format("{} (git {})", P3D_VERSION_STRING, P3D_GIT_HASH); }

std::string build_description() {
  return fmt::format(
      "p3d {}\nbuild           {}\ncompiler        {}\nKokkos          {}, backends {}\nKokkos-Kernels  {}\nBLAS       "
      "     {}",
      version_with_hash(), P3D_BUILD_TYPE, P3D_COMPILER_STRING, P3D_KOKKOS_VERSION_STRING, P3D_KOKKOS_BACKENDS,
      P3D_KOKKOSKERNELS_VERSION_STRING, P3D_BLAS_STRING);
}

}  // namespace p3d::base
