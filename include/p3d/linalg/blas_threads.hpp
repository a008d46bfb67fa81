// SPDX-License-Identifier: Apache-2.0
#pragma once
// The BLAS library of this process: its threads and its version. No Kokkos.

#include <string>

namespace p3d::linalg {

/// Threads the BLAS may use on this rank (one in flat MPI, the OpenMP team in the OpenMP build). Returns what is in
/// force, or 0 when the BLAS at hand cannot be told.
int set_blas_threads(int threads);

/// What the BLAS that is loaded says of itself, on one line; "" when it cannot be asked (OpenBLAS, MKL and BLIS can).
std::string blas_version();

/// While it lives the BLAS uses one thread, whichever thread calls it; then as many as before. For one thread to make,
/// outside parallel regions. Costs nothing when the BLAS has one thread anyway, or cannot be told.
class SingleThreadedBlas {
public:
  SingleThreadedBlas();
  ~SingleThreadedBlas();
  SingleThreadedBlas(SingleThreadedBlas const&) = delete;
  SingleThreadedBlas& operator=(SingleThreadedBlas const&) = delete;

private:
  int before_;
};

}  // namespace p3d::linalg
