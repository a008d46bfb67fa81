// SPDX-License-Identifier: Apache-2.0
#pragma once
// main() of a test program that uses Kokkos but not MPI. Include it in exactly one source file of the program.

#include <p3d/device/guard.hpp>

#include <Kokkos_Core.hpp>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  Kokkos::ScopeGuard const kokkos(argc, argv);
  p3d::device::guard_memory();
  return RUN_ALL_TESTS();
}
