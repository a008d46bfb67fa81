// SPDX-License-Identifier: Apache-2.0
#pragma once
// The identity of this binary: version, git hash, and what it was built with.

#include <string>

namespace p3d::base {

/// The version number, such as "0.1.0".
std::string version();
/// The version number and git hash, such as "0.1.0 (git 1a2b3c)".
std::string version_with_hash();
/// Several lines about the build: version and hash, build type, compiler, Kokkos and its backends, Kokkos-Kernels, the
/// BLAS that p3d was linked with. Libraries that are loaded at run time have functions of their own for their versions:
/// comm::library_version, io::hdf5_version, linalg::blas_version.
std::string build_description();

}  // namespace p3d::base
