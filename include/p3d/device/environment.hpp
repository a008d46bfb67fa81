#pragma once
// Kokkos for the lifetime of a program, with a sensible number of threads.

namespace p3d::device {

/// Kokkos::initialize .. Kokkos::finalize. `threads` is used by host-parallel backends unless the user set a number
/// himself (OMP_NUM_THREADS or --kokkos-num-threads).
class Environment {
public:
  Environment(int& argc, char** argv, int threads);
  ~Environment();
  Environment(Environment const&) = delete;
  Environment& operator=(Environment const&) = delete;
};

/// Threads of the default host execution space (1 for Serial).
int host_threads();
/// Name of the default execution space: "Serial", "OpenMP", "Cuda", ...
char const* backend_name();

}  // namespace p3d::device
