// SPDX-License-Identifier: Apache-2.0
#pragma once
// The BLAS library of this process: its threads and its version. No Kokkos.

#include <string>

namespace p3d::linalg {

/// Sets the number of threads that the BLAS may use on this rank (one in flat MPI, the OpenMP team in the OpenMP
/// build). Returns the number in force, or 0 when the BLAS at hand has no function for it.
int set_blas_threads(int threads);

/// The version text of the BLAS that is loaded, on one line; "" when it cannot be asked (OpenBLAS, MKL and BLIS can).
std::string blas_version();

/// Makes the BLAS use one thread, whichever thread calls it, as long as an object of this class lives; then as many as
/// before. One thread makes it, outside parallel regions. It costs nothing when the BLAS has one thread anyway, or
/// cannot be told.
class SingleThreadedBlas {
public:
  SingleThreadedBlas();
  ~SingleThreadedBlas();
  SingleThreadedBlas(SingleThreadedBlas const&) = delete;
  SingleThreadedBlas& operator=(SingleThreadedBlas const&) = delete;

private:
  int before_;  ///< the number of threads to restore
};

}  // namespace p3d::linalg
