// SPDX-License-Identifier: Apache-2.0
#pragma once
// main() of a test program with MPI and Kokkos; see mpi_main.hpp. Include this one alone, in one source file.

#define P3D_TEST_NO_MAIN
#include "mpi_main.hpp"

#include <p3d/comm/mesh.hpp>
#include <p3d/device/guard.hpp>

#include <Kokkos_Core.hpp>

#include <memory>

int main(int argc, char** argv) {
  return p3d::test::mpi_main(argc, argv, [](int& count, char** values) {
    auto kokkos = std::make_unique<Kokkos::ScopeGuard>(count, values);
    p3d::device::guard_memory();
    p3d::comm::keep_mesh_groups();
    return kokkos;
  });
}
