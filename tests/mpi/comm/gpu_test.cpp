// What MPI says of GPUs and of itself.
#include <support/mpi_main.hpp>

#include <p3d/comm/gpu.hpp>

TEST(Gpu, EveryMpiReachesHostMemory) {
  EXPECT_EQ(p3d::comm::reaches_memory_of("Serial"), true);
  EXPECT_EQ(p3d::comm::reaches_memory_of("OpenMP"), true);
}

TEST(Gpu, TheAnswerForAVendorIsTheSameEachTime) {
  for (char const* backend : {"Cuda", "HIP", "SYCL"}) {
    EXPECT_EQ(p3d::comm::reaches_memory_of(backend), p3d::comm::reaches_memory_of(backend)) << backend;
  }
}

TEST(Gpu, LibraryVersionIsOneLine) {
  auto const text = p3d::comm::library_version();
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(text.find_first_of("\n\t"), std::string::npos) << text;
}
