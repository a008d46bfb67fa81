#include <p3d/device/environment.hpp>

#include <p3d/device/compat.hpp>

#include <Kokkos_Core.hpp>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::device {

Environment::Environment(int& argc, char** argv, int threads) {
  bool chosen = std::getenv("OMP_NUM_THREADS") != nullptr || std::getenv("KOKKOS_NUM_THREADS") != nullptr;
  std::vector<char*> args(argv, argv + argc);
  for (auto const* a : args) {
    std::string_view const text(a);
    chosen = chosen || text.starts_with(threads_option) || text.starts_with("--threads");
  }
  std::string ours = std::string(threads_option) + "=" + std::to_string(threads);
  if (!chosen && std::string_view(backend_name()) == "OpenMP") args.push_back(ours.data());
  int count = static_cast<int>(args.size());
  args.push_back(nullptr);
  Kokkos::initialize(count, args.data());
}

Environment::~Environment() { Kokkos::finalize(); }

int host_threads() { return Kokkos::DefaultHostExecutionSpace().concurrency(); }

char const* backend_name() { return Kokkos::DefaultExecutionSpace::name(); }

}  // namespace p3d::device
