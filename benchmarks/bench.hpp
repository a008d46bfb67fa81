// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the benchmark programs share: timing by rounds, CSV with a stamp, a memory-bandwidth ceiling.

#include <p3d/base/timer.hpp>
#include <p3d/base/version.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/device/view.hpp>
#include <p3d/linalg/gemm.hpp>
#include <p3d/run/input.hpp>

#include <fmt/format.h>

#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace p3d::bench {

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  std::size_t const n = v.size();
  return n == 0 ? 0.0 : n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}
inline double least(std::vector<double> const& v) { return *std::min_element(v.begin(), v.end()); }

/// One thing to time; `repeat` calls count as one sample.
struct Case {
  std::function<void()> work;
  int repeat = 1;
  std::vector<double> seconds{};  ///< per call

  double best() const { return least(seconds); }
  double mid() const { return median(seconds); }
};

/// Times all cases in turn, `rounds` times: what disturbs the machine disturbs all of them, so their ratios hold.
/// `together` is called before every sample (a barrier, so that ranks load the machine at the same time).
inline void time_in_turn(std::vector<Case*> const& cases, int rounds, std::function<void()> const& together = {}) {
  constexpr double sample = 0.02;  // seconds
  for (auto* c : cases) {
    if (together) together();
    c->work();
    base::Stopwatch watch;
    c->work();
    double const once = watch.seconds();
    c->repeat = std::clamp(static_cast<int>(sample / std::max(once, 1e-7)), 1, 10000);
  }
  for (int round = 0; round < rounds; ++round) {
    for (auto* c : cases) {
      if (together) together();
      base::Stopwatch watch;
      for (int i = 0; i < c->repeat; ++i) c->work();
      c->seconds.push_back(watch.seconds() / c->repeat);
    }
  }
}

inline std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

inline std::string blas_name() {
  if (auto* f = reinterpret_cast<char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_config"))) return f();
  return "unknown (not OpenBLAS)";
}

/// MPI, Kokkos and the BLAS of a benchmark program, with as many threads as p3d itself would take.
struct Setup {
  comm::Environment mpi;
  device::Environment kokkos;
  comm::Communicator world = comm::Communicator::world();
  Setup(int& argc, char** argv) : mpi(argc, argv), kokkos(argc, argv, threads(), comm::node_share().rank) {
    linalg::set_blas_threads(device::host_threads());
  }
  static int threads() { return std::max(1, comm::node_share().cores / comm::node_share().ranks); }
};

/// The input named by the first argument, the others override it; nothing (and a message) where it has errors.
/// Collective.
inline std::optional<config::Config> read_input(comm::Communicator& world, int argc, char** argv) {
  if (argc < 2) {
    if (world.rank() == 0) fmt::print(stderr, "expected the name of an input file; found no argument\n");
    return {};
  }
  return run::read_input_together(world, argv[1], std::vector<std::string>(argv + 2, argv + argc));
}

/// Lines that begin with '#': what was measured, on what.
inline void print_stamp(comm::Communicator& world, std::string const& title) {
  if (world.rank() != 0) return;
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(mpi, &length);
  std::string first_line(mpi, static_cast<std::size_t>(length));
  first_line = first_line.substr(0, first_line.find('\n'));
  std::replace(first_line.begin(), first_line.end(), '\t', ' ');
  auto const node = comm::node_share();
  fmt::print("# {}\n", title);
  std::string text = base::build_description();
  for (std::size_t begin = 0; begin < text.size();) {
    auto const end = std::min(text.find('\n', begin), text.size());
    fmt::print("# {}\n", text.substr(begin, end - begin));
    begin = end + 1;
  }
  fmt::print("# BLAS: {}\n# {}\n# CPU: {}, {} cores, {} ranks of {} thread(s)\n", blas_name(), first_line, cpu_name(),
             node.cores, world.size(), device::host_threads());
}

/// STREAM's triad a = b + s c on arrays far larger than the caches; counts 3 numbers per element, as STREAM does.
class Triad {
  static constexpr bool host = Kokkos::SpaceAccessibility<device::HostSpace, device::MemSpace>::accessible;

public:
  static constexpr std::int64_t elements = host ? 16 << 20 : 256 << 20;
  Triad()
      : a_(device::large_array<float>("p3d::bench::a", elements)),
        b_(device::large_array<float>("p3d::bench::b", elements)),
        c_(device::large_array<float>("p3d::bench::c", elements)) {
    Kokkos::deep_copy(b_, 1.0f);
    Kokkos::deep_copy(c_, 2.0f);
  }
  void operator()() const {
    auto const a = a_, b = b_, c = c_;
    Kokkos::parallel_for(
        "p3d::bench::triad",
        Kokkos::RangePolicy<device::ExecSpace, Kokkos::IndexType<std::int64_t>>(0, elements / chunk),
        KOKKOS_LAMBDA(std::int64_t block) {
          float* const x = &a(block * chunk);
          float const* const y = &b(block * chunk);
          float const* const z = &c(block * chunk);
          for (int i = 0; i < chunk; ++i) x[i] = y[i] + 0.5f * z[i];
        });
    Kokkos::fence();
  }
  static double bytes() { return 3.0 * sizeof(float) * elements; }

private:
  static constexpr int chunk = host ? 4096 : 1;  // threads of a GPU take neighbouring numbers
  device::Owned1<float> a_, b_, c_;
};

}  // namespace p3d::bench
