// SPDX-License-Identifier: Apache-2.0
#pragma once
// What this binary is: version, git hash, and what it was built with.

#include <string>

namespace p3d::base {

/// "0.1.0".
std::string version();
/// "0.1.0 (git 1a2b3c)".
std::string version_with_hash();
/// Several lines: version and hash, build type, compiler, Kokkos and its backends, Kokkos-Kernels, the BLAS that p3d
/// was linked with. What is loaded at run time says itself what it is: comm::library_version, io::hdf5_version,
/// linalg::blas_version.
std::string build_description();

}  // namespace p3d::base
