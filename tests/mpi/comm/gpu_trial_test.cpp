// SPDX-License-Identifier: Apache-2.0
// The trial of GPU memory, with memory that the processor does not reach: pages without any right, whose contents lie
// at another address too, which is the GPU's way to them. The MPI library of this machine knows nothing of it and gets
// SIGSEGV; this program's own calls in its place make of it one that does, or one with a defect.
#include <support/mpi_main.hpp>

#include <p3d/comm/gpu.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <string>

namespace {

enum class Mpi { unaware, aware, aware_of_messages, wrong_data, error, hangs } mpi = Mpi::unaware;
bool is_open = false;  ///< a trial runs: other messages of the test go as they are

constexpr std::size_t bytes = p3d::comm::trial_bytes;

struct Device {
  Device() {
    int const file = memfd_create("p3d-trial", 0);
    EXPECT_EQ(ftruncate(file, bytes), 0);
    own = static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    address = static_cast<std::byte*>(mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0));
    close(file);
  }
  p3d::comm::TrialMemory memory() const {
    return {address, [this](void const* host, std::int64_t n) { std::memcpy(own, host, static_cast<std::size_t>(n)); },
            [this](void* host, std::int64_t n) { std::memcpy(host, own, static_cast<std::size_t>(n)); }};
  }
  std::byte *own, *address;  // stay mapped: MPI may still hold them
};
Device* devices[2] = {};

/// Where an MPI library that knows the device finds what lies at `data`.
void* reached(void const* data) {
  auto* const at = static_cast<std::byte*>(const_cast<void*>(data));
  for (auto const* d : devices)
    if (d != nullptr && at >= d->address && at < d->address + bytes) return d->own + (at - d->address);
  return at;
}
bool aware_of_sums() { return mpi == Mpi::aware; }

}  // namespace

extern "C" {
[[gnu::visibility("default")]] int MPI_Isend(void const* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                                             MPI_Request* request) {
  if (!is_open || mpi == Mpi::unaware) return PMPI_Isend(data, n, type, to, tag, comm, request);
  if (mpi == Mpi::error) return MPI_ERR_OTHER;
  if (mpi == Mpi::hangs) tag += 1;  // nobody receives it
  auto* const from = static_cast<float*>(reached(data));
  if (mpi == Mpi::wrong_data && n > 1000) from[n / 2] = 0.0F;  // as where a cache is not written back
  return PMPI_Isend(from, n, type, to, tag, comm, request);
}
[[gnu::visibility("default")]] int MPI_Irecv(void* data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                                             MPI_Request* request) {
  return PMPI_Irecv(is_open && mpi != Mpi::unaware ? reached(data) : data, n, type, from, tag, comm, request);
}
[[gnu::visibility("default")]] int MPI_Iallreduce(void const* in, void* inout, int n, MPI_Datatype type, MPI_Op op,
                                                  MPI_Comm comm, MPI_Request* request) {
  return PMPI_Iallreduce(in, is_open && aware_of_sums() ? reached(inout) : inout, n, type, op, comm, request);
}
}

namespace {

using namespace p3d::comm;

class Trial : public ::testing::Test {
protected:
  GpuTrial messages(Mpi kind, double seconds = 20.0) { return tried(kind, seconds, true); }
  GpuTrial sums(Mpi kind) { return tried(kind, 20.0, false); }

private:
  GpuTrial tried(Mpi kind, double seconds, bool messages) {
    // Where a trial hangs they are never free again.
    static auto& worlds = *new std::deque<Communicator>;
    static auto& memories = *new std::deque<Device>;
    auto& world = worlds.emplace_back(Communicator::world());
    for (auto& d : devices) d = &memories.emplace_back();
    mpi = kind;
    is_open = true;
    auto const result = messages ? try_messages(world, devices[0]->memory(), devices[1]->memory(), seconds)
                                 : try_sums(world, devices[0]->memory(), seconds);
    is_open = false;
    return result;
  }
};

TEST_F(Trial, FindsALibraryThatReachesTheMemory) {
  EXPECT_EQ(messages(Mpi::aware), GpuTrial::works);
  EXPECT_EQ(sums(Mpi::aware), GpuTrial::works);
}

// MPI's own copies error, for which the process would end; afterwards MPI still works.
TEST_F(Trial, SurvivesALibraryThatTakesItForMemoryOfTheHost) {
  EXPECT_EQ(messages(Mpi::unaware), GpuTrial::host_access);
  EXPECT_EQ(sums(Mpi::unaware), GpuTrial::host_access);
  EXPECT_EQ(sums(Mpi::aware_of_messages), GpuTrial::host_access) << "Open MPI's way";
  auto world = Communicator::world();
  double one = 1.0;
  world.all_reduce(&one, 1, Type::float64, Reduction::sum).wait();
  EXPECT_EQ(one, world.size());
  EXPECT_EQ(messages(Mpi::aware), GpuTrial::works);
}

TEST_F(Trial, LooksAtTheNumbers) { EXPECT_EQ(messages(Mpi::wrong_data), GpuTrial::wrong_data); }

TEST_F(Trial, TakesAnErrorForAnAnswer) {
  EXPECT_EQ(messages(Mpi::error), GpuTrial::error);
  EXPECT_EQ(messages(Mpi::aware), GpuTrial::works);
}

TEST_F(Trial, WaitsNoLongerThanItMay) { EXPECT_EQ(messages(Mpi::hangs, 0.3), GpuTrial::hangs); }

TEST_F(Trial, KnowsOpenMpi) {
  EXPECT_TRUE(is_open_mpi("Open MPI v4.1.4, package: Debian"));
  EXPECT_FALSE(is_open_mpi("MPICH Version: 4.0.2"));
  EXPECT_FALSE(is_open_mpi("MPI VERSION : CRAY MPICH version 8.1.28"));
  for (auto const result : {GpuTrial::wrong_data, GpuTrial::host_access, GpuTrial::error, GpuTrial::hangs})
    EXPECT_NE(std::string(describe(result)).find("trial"), std::string::npos);
}

}  // namespace
