// SPDX-License-Identifier: Apache-2.0
#pragma once
// The version of the HDF5 library that writes checkpoints.

#include <string>

namespace p3d::io {

/// Version of the HDF5 library that is loaded, for example "1.10.8". May be called before MPI starts.
std::string hdf5_version();

}  // namespace p3d::io
