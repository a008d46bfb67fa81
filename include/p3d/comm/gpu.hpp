// SPDX-License-Identifier: Apache-2.0
#pragma once
// What MPI knows of GPUs. The only part of room comm that names vendors is its source file.

#include <optional>
#include <string>
#include <string_view>

namespace p3d::comm {

/// Can MPI read and write memory of this Kokkos backend ("Cuda", "HIP", "SYCL")? Host backends: yes. Nothing where MPI
/// does not say: then copies through host memory are the safe way. With MPI running.
std::optional<bool> reaches_memory_of(std::string_view backend);

/// Name and version of the MPI library that is loaded, on one line. May be called before MPI starts.
std::string library_version();

}  // namespace p3d::comm
