#pragma once
// main() of a test program that uses Kokkos but not MPI. Include it in exactly one source file of the program.

#include <Kokkos_Core.hpp>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  Kokkos::ScopeGuard const guard(argc, argv);
  return RUN_ALL_TESTS();
}
