// SPDX-License-Identifier: Apache-2.0
#include <p3d/comm/launch.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string_view>

namespace p3d::comm {

namespace {

/// Looks a variable up; nothing when it is not set.
using Lookup = std::function<std::optional<std::string>(char const* name)>;

/// Names of the variables with rank and size that a launcher sets.
struct Variables {
  char const* rank;
  char const* size;
};
// The launcher nearest to the process comes first: mpiexec inside a Slurm step starts its daemons as tasks of Slurm.
constexpr Variables launchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                   {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                   {"PMI_RANK", "PMI_SIZE"},
                                   {"PALS_RANKID", "PALS_SIZE"},
                                   {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
                                   {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"}};

/// A whole number of at most 9 digits; nothing for other texts.
std::optional<int> number(std::optional<std::string> const& text) {
  if (!text || text->empty() || text->find_first_not_of("0123456789") != std::string::npos || text->size() > 9)
    return {};
  return std::atoi(text->c_str());
}

/// The process as a task of Slurm; nothing outside Slurm.
std::optional<Launch> slurm(Lookup const& look) {
  auto const rank = number(look("SLURM_PROCID"));
  if (!rank) return {};
  // srun tells how many tasks its step has.
  if (auto const tasks = number(look("SLURM_STEP_NUM_TASKS"))) {
    return Launch{*rank, *tasks, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"};
  }
  // A batch script has SLURM_PROCID = 0 and the SLURM_NTASKS of its job, but no step.
  bool const script = *rank == 0 && look("SLURM_JOB_ID") && !look("SLURM_STEP_ID");
  return Launch{*rank, script ? 1 : number(look("SLURM_NTASKS")).value_or(0), "SLURM_PROCID", "SLURM_NTASKS"};
}

/// The first launcher whose variables are set.
Launch from_variables(Lookup const& look) {
  for (auto const& names : launchers) {
    auto const rank = number(look(names.rank));
    auto const size = number(look(names.size));
    if (rank && size) return {*rank, *size, names.rank, names.size};
  }
  if (auto const step = slurm(look)) return *step;
  for (char const* name : {"PMI_RANK", "PMIX_RANK"}) {
    if (auto const rank = number(look(name))) return {*rank, 0, name, ""};
  }
  return {};
}

std::string contents(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The launcher's variables in the environment of another process, given as the text of /proc/N/environ.
Launch launch_of(std::string const& environment) {
  return from_variables([&](char const* name) -> std::optional<std::string> {
    auto const start = fmt::format("{}=", name);
    for (std::size_t begin = 0; begin < environment.size();) {
      auto const end = std::min(environment.find('\0', begin), environment.size());
      if (environment.compare(begin, start.size(), start) == 0) {
        return environment.substr(begin + start.size(), end - begin - start.size());
      }
      begin = end + 1;
    }
    return {};
  });
}

}  // namespace

Launch launch() {
  return from_variables([](char const* name) -> std::optional<std::string> {
    char const* const value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

std::vector<std::string> command_words(int argc, char const* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    if (!std::string_view(argv[i]).starts_with("--kokkos-")) words.emplace_back(argv[i]);
  }
  return words;
}

std::vector<NodeProcess> node_processes() {
  std::vector<NodeProcess> found;
  std::error_code none;
  for (auto const& entry : std::filesystem::directory_iterator("/proc", none)) {
    auto const name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    auto const stat = contents(entry.path() / "stat");  // "12 (the name) S 11 ...": the name may hold anything
    auto const after = stat.rfind(") ");
    if (after == std::string::npos || after + 4 >= stat.size()) continue;
    if (std::atol(stat.c_str() + after + 4) != getppid()) continue;
    char const state = stat[after + 2];
    auto const told = launch_of(contents(entry.path() / "environ"));
    bool const ended = state == 'Z' || state == 'X';  // the environment of an ended process is gone
    if (told.rank_variable.empty() && !ended) continue;
    found.push_back({ended ? -1 : told.rank, std::atol(name.c_str()), state == 'T' || state == 't', ended});
  }
  std::sort(found.begin(), found.end(), [](auto const& a, auto const& b) { return a.rank < b.rank; });
  return found;
}

std::string describe(NodeProcess const& process) {
  return fmt::format("process {} {}", process.process, process.stopped ? "is stopped" : "runs");
}

}  // namespace p3d::comm
