// SPDX-License-Identifier: Apache-2.0
// What MPI says of GPUs and of itself. This program has the functions that an MPI library may have, under their names,
// and answers in its place.
#include <support/mpi_main.hpp>

#include <p3d/comm/gpu.hpp>

#include <optional>

namespace {
int cuda = 0, hip = 0, number_asked = -1, code = MPI_SUCCESS;
bool by_number[3] = {};
}  // namespace

extern "C" {
[[gnu::visibility("default")]] int MPIX_Query_cuda_support() { return cuda; }
[[gnu::visibility("default")]] int MPIX_Query_hip_support() { return hip; }
[[gnu::visibility("default")]] int MPIX_GPU_query_support(int number, int* is_supported) {
  number_asked = number;
  *is_supported = by_number[number] ? 1 : 0;
  return code;
}
}

namespace {

class Gpu : public ::testing::Test {
protected:
  void SetUp() override {
    cuda = hip = 0;
    code = MPI_SUCCESS;
    for (bool& answer : by_number) answer = false;
  }
};

TEST_F(Gpu, EveryMpiReachesHostMemory) {
  EXPECT_EQ(p3d::comm::reaches_memory_of("Serial"), true);
  EXPECT_EQ(p3d::comm::reaches_memory_of("OpenMP"), true);
}

TEST_F(Gpu, TheVendorsOwnFunctionIsAsked) {
  EXPECT_EQ(p3d::comm::reaches_memory_of("Cuda"), false);
  EXPECT_EQ(p3d::comm::reaches_memory_of("HIP"), false);
  cuda = 1;
  EXPECT_EQ(p3d::comm::reaches_memory_of("Cuda"), true);
  EXPECT_EQ(p3d::comm::reaches_memory_of("HIP"), false);
  cuda = 0, hip = 1;
  EXPECT_EQ(p3d::comm::reaches_memory_of("Cuda"), false);
  EXPECT_EQ(p3d::comm::reaches_memory_of("HIP"), true);
}

TEST_F(Gpu, TheFunctionForAllVendorsIsAskedByNumber) {
  struct Number {
    char const* backend;
    int number;
  };
  for (auto const [backend, number] : {Number{"Cuda", 0}, Number{"SYCL", 1}, Number{"HIP", 2}}) {
    SetUp();
    EXPECT_EQ(p3d::comm::reaches_memory_of(backend), false) << backend;
    EXPECT_EQ(number_asked, number) << backend;
    by_number[number] = true;
    EXPECT_EQ(p3d::comm::reaches_memory_of(backend), true) << backend;
  }
}

TEST_F(Gpu, AnErrorIsNoAnswer) {
  by_number[0] = true;
  code = MPI_ERR_ARG;
  EXPECT_EQ(p3d::comm::reaches_memory_of("Cuda"), false);  // what its own function says
}

TEST_F(Gpu, LibraryVersionIsOneLine) {
  auto const text = p3d::comm::library_version();
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(text.find_first_of("\n\t"), std::string::npos) << text;
}

}  // namespace
