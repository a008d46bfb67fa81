// SPDX-License-Identifier: Apache-2.0
#include "version_text.hpp"

#include <p3d/base/version.hpp>
#include <p3d/comm/gpu.hpp>
#include <p3d/io/hdf5_version.hpp>
#include <p3d/linalg/blas_threads.hpp>

#include <fmt/format.h>

namespace p3d::app {

std::string version_text() {
  auto const blas = linalg::blas_version();
  return fmt::format("{}{}\nMPI             {}\nHDF5            {}\n", base::build_description(),
                     blas.empty() ? "" : " (" + blas + ")", comm::library_version(), io::hdf5_version());
}

}  // namespace p3d::app
