// SPDX-License-Identifier: Apache-2.0
// Asks the MPI library whether it can use GPU memory. MPICH, Open MPI and libraries derived from them offer functions
// for that, but under different names and in different headers, or in none: they are looked up by name in the running
// program.

#include <p3d/base/symbol.hpp>
#include <p3d/comm/gpu.hpp>

#include <mpi.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace p3d::comm {

namespace {

/// The functions of one GPU vendor's support.
struct Vendor {
  std::string_view backend;              ///< name of the backend in Kokkos
  std::array<char const*, 2> functions;  ///< functions int f(void); one of them is enough
  int number;                            ///< number of the GPU type in MPIX_GPU_query_support (MPICH 3.4 and newer)
};
constexpr std::array<Vendor, 3> vendors{{{"Cuda", {"MPIX_Query_cuda_support", nullptr}, 0},
                                         {"HIP", {"MPIX_Query_hip_support", "MPIX_Query_rocm_support"}, 2},
                                         {"SYCL", {"MPIX_Query_ze_support", nullptr}, 1}}};

}  // namespace

std::optional<bool> reaches_memory_of(std::string_view backend) {
  auto const* const vendor =
      std::find_if(vendors.begin(), vendors.end(), [&](auto const& v) { return v.backend == backend; });
  if (vendor == vendors.end()) return true;
  std::optional<bool> answer;
  for (char const* const name : vendor->functions) {
    if (name == nullptr) continue;
    if (auto* const query = base::find_symbol<int()>(name)) answer = answer.value_or(false) || query() != 0;
  }
  if (auto* const query = base::find_symbol<int(int, int*)>("MPIX_GPU_query_support")) {
    int is_supported = 0;
    if (query(vendor->number, &is_supported) == MPI_SUCCESS) answer = answer.value_or(false) || is_supported != 0;
  }
  return answer;
}

bool is_open_mpi(std::string_view library) {
  for (std::string_view const name : {"Open MPI", "HPC-X", "Spectrum", "bullx"})
    if (library.find(name) != std::string_view::npos) return true;
  return false;
}

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string version(text.data());  // up to the zero, which Open MPI counts as part of the length
  // Several lines of build options follow the first in some libraries; MPICH separates with a tab.
  version = version.substr(0, version.find('\n'));
  for (char& c : version) {
    if (c == '\t') c = ' ';
  }
  std::string tidy;
  std::unique_copy(version.begin(), version.end(), std::back_inserter(tidy),
                   [](char a, char b) { return a == ' ' && b == ' '; });
  return tidy;
}

}  // namespace p3d::comm
