// SPDX-License-Identifier: Apache-2.0
// How fast a swap file writes and reads, with one for each rank at once: a CSV row for each rank, below a stamp.
//
//   mpiexec -n 2 bench_swap FOLDER [MIB of each rank [MIB of a range]] > swap.csv
//
// All ranges are written, then read, a few of them under way at once; given are MB/s of the disk's thread while it
// worked, and of the whole with its waits.

#include "bench.hpp"

#include <p3d/device/swap_file.hpp>

#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

using namespace p3d;

namespace {
constexpr std::size_t at_once = 3;
constexpr std::int64_t mib = std::int64_t{1} << 20;

/// Seconds for start(range) of all ranges.
template <class Start>
double seconds_for(comm::Communicator& world, std::int64_t ranges, Start&& start) {
  world.barrier().wait();
  base::Stopwatch watch;
  std::deque<device::SwapFile::Request> under_way;
  for (std::int64_t i = 0; i < ranges; ++i) {
    if (under_way.size() == at_once) {
      under_way.front().wait();
      under_way.pop_front();
    }
    under_way.push_back(start(i));
  }
  for (auto& request : under_way) request.wait();
  return watch.seconds();
}
}  // namespace

int main(int argc, char** argv) {
  bench::Setup setup(argc, argv);
  auto& world = setup.world;
  if (argc < 2) {
    if (world.rank() == 0) fmt::print(stderr, "usage: bench_swap FOLDER [MIB of each rank [MIB of a range]]\n");
    return 2;
  }
  std::int64_t const range = (argc > 3 ? std::atoll(argv[3]) : 32) * mib;
  std::int64_t const ranges = std::max<std::int64_t>(1, (argc > 2 ? std::atoll(argv[2]) : 1024) * mib / range);
  device::SwapFile file({argv[1], ranges * range, 600, {}});
  std::vector<std::vector<char>> buffers;
  for (std::size_t i = 0; i < at_once; ++i) {
    buffers.emplace_back(static_cast<std::size_t>(range));
    for (std::size_t k = 0; k < buffers[i].size(); ++k) buffers[i][k] = static_cast<char>(k * 31 + i);
  }
  auto const data = [&](std::int64_t i) { return buffers[static_cast<std::size_t>(i) % at_once].data(); };
  double const write = seconds_for(world, ranges, [&](auto i) { return file.write(i * range, data(i), range); });
  double const read = seconds_for(world, ranges, [&](auto i) { return file.read(i * range, data(i), range); });
  auto const seen = file.accounting();
  double const megabytes = static_cast<double>(ranges * range) * 1e-6;
  bench::print_stamp(world, fmt::format("swap files in {}", argv[1]));
  if (world.rank() == 0)
    fmt::print("rank,direct,megabytes,range_megabytes,write,read,write_with_waits,read_with_waits\n");
  for (int rank = 0; rank < world.size(); ++rank) {
    std::fflush(stdout);
    world.barrier().wait();
    if (rank != world.rank()) continue;
    fmt::print("{},{},{:.0f},{:.0f},{:.0f},{:.0f},{:.0f},{:.0f}\n", rank, file.direct(), megabytes,
               static_cast<double>(range) * 1e-6, megabytes / seen.write_seconds, megabytes / seen.read_seconds,
               megabytes / write, megabytes / read);
  }
  std::fflush(stdout);
  return 0;
}
