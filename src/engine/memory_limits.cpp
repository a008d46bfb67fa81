// SPDX-License-Identifier: Apache-2.0
// Finds what may be allocated, before anything is: limits of the process, of the control group that a job runs in, and
// free memory of node and GPU. Ranks that share a limit add up what they want. Example: 8 ranks of 4 GiB in a job with
// 16 GiB are refused on every rank, with the sum, the limit and where the limit comes from.
#include <p3d/engine/memory_limits.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/hash.hpp>
#include <p3d/base/process.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/plan/memory.hpp>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace p3d::engine {

namespace {

constexpr std::int64_t mib = std::int64_t{1} << 20;
constexpr std::int64_t blas_buffer = 128 * mib;           ///< of OpenBLAS, for each thread
constexpr std::int64_t slack = 128 * mib;                 ///< memory that the libraries map until the first GEMM
constexpr std::int64_t no_limit = std::int64_t{1} << 60;  ///< v1 writes a number near 2^63

std::string human(std::int64_t bytes) { return base::human_bytes(static_cast<double>(bytes)); }

/// The number at the start of a file; 0 when there is none ("max").
std::int64_t number_in(std::string const& path) {
  std::ifstream file(path);
  std::string word;
  std::int64_t number = 0;
  if (!(file >> word)) return 0;
  std::from_chars(word.data(), word.data() + word.size(), number);
  return number > 0 && number < no_limit ? number : 0;
}

void take_smaller(MemoryLimit& best, std::int64_t bytes, std::string const& what) {
  if (bytes > 0 && (best.bytes == 0 || bytes < best.bytes)) best = {bytes, what};
}

/// The limits of a group and of all above it, as far as the files are there.
void walk(MemoryLimit& best, std::string const& mount, std::string group, char const* file) {
  for (;;) {
    auto const path = mount + (group == "/" ? "" : group) + "/" + file;
    take_smaller(best, number_in(path), path);
    if (group.empty() || group == "/") return;
    group.resize(group.find_last_of('/'));
  }
}

std::int64_t address_space_in_use() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  file >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

/// The limit of `ulimit -v`; 0 when there is none.
std::int64_t address_space_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
  return limit.rlim_cur < static_cast<rlim_t>(no_limit) ? static_cast<std::int64_t>(limit.rlim_cur) : 0;
}

using base::refuse;

void require_own(std::int64_t bytes) {
  auto const limit = address_space_limit();
  auto const used = address_space_in_use();
  if (limit == 0 || bytes + used + blas_buffer <= limit) return;
  refuse(
      fmt::format("address space for the {} that a rank allocates", human(bytes)),
      fmt::format("{}, of which {} are in use", human(limit), human(std::min(limit, used))), "ulimit -v",
      "raise it or remove it (ulimit -v unlimited), use more ranks (parallel.tp, parallel.pp), or a smaller model or "
      "batch.micro");
}

std::int64_t hash(std::string_view text) { return static_cast<std::int64_t>(base::fnv1a(text)); }

/// The bytes that ranks which share something on a node want together.
struct Wanted {
  double sum = 0.0, most = 0.0;  // doubles: nothing wraps
  int ranks = 0;
};
/// `what`: its name. Collective.
Wanted share(std::string_view what, std::int64_t bytes, comm::Communicator& world) {
  std::array<std::int64_t, 3> const mine{hash(base::host_name()), hash(what), bytes};
  auto const ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> all(3 * ranks);
  std::copy(mine.begin(), mine.end(), all.begin() + 3 * world.rank());
  world.all_gather(mine.data(), all.data(), 3, comm::Type::int64).wait();
  Wanted wanted;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (all[3 * r] != mine[0] || all[3 * r + 1] != mine[1]) continue;
    ++wanted.ranks;
    wanted.sum += static_cast<double>(all[3 * r + 2]);
    wanted.most = std::max(wanted.most, static_cast<double>(all[3 * r + 2]));
  }
  return wanted;
}
std::string describe(Wanted const& wanted) {
  return fmt::format("{} for {}, {} for the largest", base::human_bytes(wanted.sum),
                     base::counted(wanted.ranks, "rank"), base::human_bytes(wanted.most));
}

}  // namespace

MemoryLimit memory_limit(std::string const& root) {
  MemoryLimit best;
  auto const base = root.ends_with('/') ? root.substr(0, root.size() - 1) : root;
  std::ifstream memory(base + "/proc/meminfo");
  for (std::string line; std::getline(memory, line);) {
    if (!line.starts_with("MemTotal:")) continue;
    std::istringstream words(line.substr(9));
    std::int64_t kib = 0;
    if (words >> kib) take_smaller(best, kib * 1024, "MemTotal");
  }
  std::ifstream groups(base + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/slurm/job_1", "0::/user.slice"
    auto const first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    auto const controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    auto const group = line.substr(second + 1);
    if (!group.starts_with('/')) continue;
    if (controllers == ",,") walk(best, base + "/sys/fs/cgroup", group, "memory.max");
    if (controllers.find(",memory,") != std::string::npos)
      walk(best, base + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
  }
  return best;
}

void require_address_space(int blas_threads) {
  auto const limit = address_space_limit();
  if (limit == 0) return;
  auto const bytes = static_cast<std::size_t>(slack + blas_buffer * std::max(1, blas_threads));
  void* const room = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room != MAP_FAILED) {
    munmap(room, bytes);
    return;
  }
  refuse(fmt::format("{} of address space for the buffers of the BLAS, beside the {} in use",
                     human(static_cast<std::int64_t>(bytes)), human(address_space_in_use())),
         fmt::format("a limit of {}", human(limit)), "ulimit -v", "raise it, or remove it: ulimit -v unlimited");
}

void require_memory(std::int64_t bytes, comm::Communicator& world) {
  auto const limit = memory_limit();
  auto const shared = share(limit.what, bytes, world);
  comm::agree(world, "take the memory that the run needs", [&] {
    require_own(bytes);
    if (limit.bytes == 0 || shared.sum <= static_cast<double>(limit.bytes)) return;
    refuse(
        fmt::format("at most {} for all ranks of a node ({})", human(limit.bytes), limit.what), describe(shared),
        "node " + base::host_name(),
        "use more nodes or fewer ranks on each, raise parallel.tp or parallel.pp, lower batch.micro, or ask for more "
        "memory (Slurm: --mem)");
  });
}

GpuRoom gpu_room() {
  auto const gpu = device::gpu();
  auto const memory = device::gpu_memory();
  return {gpu.bus.empty() ? fmt::format("{}", gpu.number) : gpu.bus, memory.free, memory.total};
}

void require_gpu_memory(std::int64_t bytes, GpuRoom const& here, comm::Communicator& world) {
  auto const shared = share("GPU " + here.gpu, bytes, world);
  comm::agree(world, "take the memory of its GPU that the run needs", [&] {
    if (here.total == 0 || shared.sum <= static_cast<double>(here.free)) return;
    refuse(fmt::format("at most {}, which is free of the {} of a GPU", human(here.free), human(here.total)),
           describe(shared), fmt::format("node {}, GPU {}", base::host_name(), here.gpu),
           shared.ranks > 1
               ? "give each rank a GPU of its own (Slurm: --gpus-per-task=1), or lower batch.micro"
               : "raise parallel.tp or parallel.pp, set memory.recompute, memory.shard or memory.offload_*, lower "
                 "batch.micro, or see who else uses the GPU (nvidia-smi, rocm-smi)");
  });
}

void require_room(std::int64_t bytes, comm::Communicator& world) {
  if (device::on_host()) return require_memory(bytes, world);
  // As it was at the first look: what p3d has taken since (handles, a workspace) is among the `bytes`.
  static GpuRoom const first_look = gpu_room();
  require_gpu_memory(bytes - plan::gpu_context_bytes, first_look, world);
}

}  // namespace p3d::engine
