// SPDX-License-Identifier: Apache-2.0
// The placement of the ranks: each rank looks at its own affinity, threads and GPU, and all ranks gather the records.
#include <p3d/report/placement.hpp>

#include <p3d/base/log.hpp>
#include <p3d/base/process.hpp>
#include <p3d/base/text.hpp>
#include <p3d/device/environment.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#if defined(__linux__)
#include <sched.h>
#endif
#include <unistd.h>

namespace p3d::report {

namespace {

/// A RankPlacement in a message: no pointers, one size on every rank. Longer names are cut.
struct Record {
  std::array<char, 64> host{};
  std::array<std::uint64_t, 16> cores{};  ///< bit i is core i
  std::int32_t host_cores = 0, threads = 0, blas_threads = 0, gpu = -1;
  std::array<char, 64> gpu_name{};
  std::array<char, 16> gpu_bus{};
};

/// Copies a text, cut to the size of the array; the rest of the array is zero.
template <std::size_t N>
void put(std::array<char, N>& to, std::string const& from) {
  std::memcpy(to.data(), from.data(), std::min(from.size(), N - 1));
}

/// The record of a placement; cores beyond 1,024 are left out.
Record pack(RankPlacement const& p) {
  Record r;
  put(r.host, p.host);
  for (int const core : p.cores) {
    auto const word = static_cast<std::size_t>(core) / 64;
    if (word < r.cores.size()) r.cores[word] |= std::uint64_t{1} << (core % 64);
  }
  r.host_cores = p.host_cores;
  r.threads = p.threads;
  r.blas_threads = p.blas_threads;
  r.gpu = p.gpu;
  put(r.gpu_name, p.gpu_name);
  put(r.gpu_bus, p.gpu_bus);
  return r;
}

/// The placement from a record.
RankPlacement unpack(Record const& r) {
  RankPlacement p{.host = r.host.data(),
                  .cores = {},
                  .host_cores = r.host_cores,
                  .threads = r.threads,
                  .blas_threads = r.blas_threads,
                  .gpu = r.gpu,
                  .gpu_name = r.gpu_name.data(),
                  .gpu_bus = r.gpu_bus.data()};
  for (std::size_t core = 0; core < 64 * r.cores.size(); ++core) {
    if (r.cores[core / 64] >> (core % 64) & 1U) p.cores.push_back(static_cast<int>(core));
  }
  return p;
}

/// The part of a line that follows "ranks ... ".
std::string text(RankPlacement const& p) {
  auto t = fmt::format(
      "on {}: {}, {} thread{}", p.host,
      p.cores.empty() ? "cores unknown" : (p.cores.size() == 1 ? "core " : "cores ") + base::number_ranges(p.cores),
      p.threads, p.threads == 1 ? "" : "s");
  if (p.blas_threads > 0 && p.blas_threads != p.threads) t += fmt::format(", BLAS {}", p.blas_threads);
  if (p.gpu >= 0) {
    t += fmt::format(", GPU {}", p.gpu);
    if (!p.gpu_name.empty()) t += fmt::format(" ({} at {})", p.gpu_name, p.gpu_bus);
  }
  return t;
}

}  // namespace

RankPlacement this_placement(int blas_threads) {
  RankPlacement p;
  p.host = base::host_name();
#if defined(__linux__)
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &cores)) p.cores.push_back(i);
    }
  }
#endif
  p.host_cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  p.threads = device::host_threads();
  p.blas_threads = blas_threads;
  auto const gpu = device::gpu();
  p.gpu = gpu.number;
  p.gpu_name = gpu.name;
  p.gpu_bus = gpu.bus;
  return p;
}

std::vector<RankPlacement> gather_placements(RankPlacement const& mine, comm::Communicator& world) {
  Record const record = pack(mine);
  std::vector<Record> records(static_cast<std::size_t>(world.size()));
  world.all_gather(&record, records.data(), sizeof(Record), comm::Type::byte).wait();
  std::vector<RankPlacement> places;
  places.reserve(records.size());
  for (auto const& r : records) places.push_back(unpack(r));
  return places;
}

std::string describe(std::vector<RankPlacement> const& places, int max_lines) {
  std::string lines;
  int count = 0;
  for (std::size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    // Consecutive ranks with the same text share a line.
    auto const what = text(places[begin]);
    while (end < places.size() && text(places[end]) == what) ++end;
    if (++count > max_lines) {
      lines += fmt::format("  ... and ranks {}-{}\n", begin, places.size() - 1);
      break;
    }
    lines += end - begin == 1 ? fmt::format("  rank {} {}\n", begin, what)
                              : fmt::format("  ranks {}-{} {}\n", begin, end - 1, what);
  }
  return lines;
}

void report_placement(int blas_threads, comm::Communicator& world) {
  auto const places = gather_placements(this_placement(blas_threads), world);
  if (world.rank() != 0) return;
  auto const lines = describe(places, 64) + placement_note(places);
  base::log_root("Placement:\n" + lines.substr(0, lines.size() - 1));
  for (auto const& warning : placement_warnings(places)) base::warn_root(warning);
}

}  // namespace p3d::report
