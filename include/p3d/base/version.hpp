#pragma once
// What this binary is: version, git hash, and what it was built with.

#include <string>

namespace p3d::base {

/// "0.1.0".
std::string version();
/// "0.1.0 (git 1a2b3c)".
std::string version_with_hash();
/// Several lines: version, hash, build type, compiler, Kokkos and its backends, BLAS.
std::string build_description();

}  // namespace p3d::base
