// SPDX-License-Identifier: Apache-2.0
// Warnings about ranks that want the same cores or GPU. Ranks whose cores lie inside a set of cores must not have more
// threads than the set has cores; that is checked for each rank's set, for unions of two sets that overlap, and for the
// whole host.
//
// Example: ranks 0 and 1 may both use cores 0-3 only, with 4 threads each: 8 threads share 4 cores.

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/report/placement.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

namespace p3d::report {

namespace {

using Cores = std::vector<int>;

/// True when all of a's cores are in b.
bool inside(Cores const& a, Cores const& b) { return std::includes(b.begin(), b.end(), a.begin(), a.end()); }

/// The cores that are in a or in b.
Cores unite(Cores const& a, Cores const& b) {
  Cores out;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

/// One host and its ranks.
struct Host {
  std::string name;
  std::vector<int> ranks;
};

/// Ranks in words: "rank 3", "ranks 0-3".
std::string ranks_text(std::vector<int> const& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", base::number_ranges(ranks));
}

/// The sets of cores to check, small ones first: the first error found is the one closest to its cause.
std::vector<Cores> candidates(std::vector<RankPlacement> const& places, Host const& host) {
  std::set<Cores> masks;
  for (int const r : host.ranks) {
    if (!places[r].cores.empty()) masks.insert(places[r].cores);
  }
  std::set<Cores> all = masks;
  Cores whole;
  for (auto const& a : masks) {
    whole = unite(whole, a);
    for (auto const& b : masks) {
      auto joined = unite(a, b);
      if (joined.size() < a.size() + b.size()) all.insert(std::move(joined));
    }
  }
  if (!whole.empty()) all.insert(whole);
  std::vector<Cores> sorted(all.begin(), all.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](auto const& a, auto const& b) { return a.size() < b.size(); });
  return sorted;
}

/// A warning in the form of p3d's errors.
std::string message(std::string expected, std::string found, std::string where, std::string fix) {
  return base::format(
      {.expected = std::move(expected), .found = std::move(found), .where = std::move(where), .fix = std::move(fix)});
}

/// True when ranks with one thread each may all use the same cores and are more than these: somebody tries things out
/// on a small machine. One core for all ranks where the host has more is no such case.
bool takes_turns(std::vector<RankPlacement> const& places, Host const& host) {
  auto const& first = places[host.ranks.front()];
  auto const cores = static_cast<int>(first.cores.size());
  if (cores == 0 || (cores == 1 && first.host_cores > 1) || static_cast<int>(host.ranks.size()) <= cores) return false;
  return std::all_of(host.ranks.begin(), host.ranks.end(),
                     [&](int r) { return places[r].cores == first.cores && places[r].threads <= 1; });
}

/// The first error in the use of cores on a host.
std::optional<std::string> core_error(std::vector<RankPlacement> const& places, Host const& host) {
  if (takes_turns(places, host)) return std::nullopt;
  auto const sets = candidates(places, host);
  int const whole = sets.empty() ? 0 : static_cast<int>(sets.back().size());
  int all_threads = 0;
  for (int const r : host.ranks) all_threads += places[r].threads;
  // Too many threads for the whole host are an error of that, however the ranks are bound.
  bool const too_many = all_threads > std::max(whole, places[host.ranks.front()].host_cores);
  for (auto const& set : sets) {
    if (too_many && &set != &sets.back()) continue;
    std::vector<int> ranks;
    int threads = 0;
    for (int const r : host.ranks) {
      // Only ranks whose cores all lie in the set count; a rank with more cores can go elsewhere.
      if (places[r].cores.empty() || !inside(places[r].cores, set)) continue;
      ranks.push_back(r);
      threads += places[r].threads;
    }
    int const cores = static_cast<int>(set.size()), count = static_cast<int>(ranks.size());
    if (threads <= cores) continue;
    auto const found = fmt::format("{} thread(s) of {} share {} core{} ({})", threads, ranks_text(ranks), cores,
                                   cores == 1 ? "" : "s", base::number_ranges(set));
    std::string fix;
    if (!too_many) {  // there are enough cores, so the binding is wrong
      int const each = std::max(1, threads / count);
      fix = fmt::format(
          "give each rank cores of its own: srun --cpus-per-task={0} --cpu-bind=cores, or MPICH's mpiexec -bind-to "
          "core:{0}, or Open MPI's mpiexec --map-by slot:PE={0} --bind-to core",
          each);
    } else if (count > cores) {
      fix = fmt::format(
          "start at most {0} rank(s) a host (mpiexec -n {0}, srun --ntasks-per-node={0}); it also runs like this, "
          "slower",
          cores);
    } else {
      fix = fmt::format("set OMP_NUM_THREADS={}", cores / count);
    }
    return message("a core for each thread", found, "host " + host.name, fix);
  }
  return std::nullopt;
}

/// The first rank of a host whose BLAS has more threads than its kernels.
std::optional<std::string> blas_error(std::vector<RankPlacement> const& places, Host const& host) {
  for (int const r : host.ranks) {
    auto const& p = places[r];
    if (p.blas_threads <= std::max(1, p.threads)) continue;
    return message(fmt::format("no more BLAS threads than the rank's {} thread(s)", p.threads),
                   fmt::format("{} BLAS threads on rank {}", p.blas_threads, r), "host " + host.name,
                   fmt::format("set OPENBLAS_NUM_THREADS={0} (OpenBLAS) or MKL_NUM_THREADS={0} (MKL)", p.threads));
  }
  return std::nullopt;
}

/// The first GPU of a host that several ranks use.
std::optional<std::string> gpu_error(std::vector<RankPlacement> const& places, Host const& host) {
  std::map<std::string, std::vector<int>> users;
  for (int const r : host.ranks) {
    auto const& p = places[r];
    if (p.gpu >= 0) users[p.gpu_bus.empty() ? "number " + std::to_string(p.gpu) : p.gpu_bus].push_back(r);
  }
  for (auto const& [gpu, ranks] : users) {
    if (ranks.size() < 2) continue;
    return message(
        "one rank per GPU", fmt::format("{} share GPU {}", ranks_text(ranks), gpu), "host " + host.name,
        fmt::format(
            "start {0} rank(s) a host: srun --ntasks-per-node={0} --gpus-per-task=1, or more GPUs; it also runs like "
            "this, slower",
            users.size()));
  }
  return std::nullopt;
}

/// The hosts in the order of their first ranks.
std::vector<Host> hosts_of(std::vector<RankPlacement> const& places) {
  std::vector<Host> hosts;
  std::map<std::string, std::size_t> index;
  for (std::size_t r = 0; r < places.size(); ++r) {
    auto const [at, is_new] = index.emplace(places[r].host, hosts.size());
    if (is_new) hosts.push_back({places[r].host, {}});
    hosts[at->second].ranks.push_back(static_cast<int>(r));
  }
  return hosts;
}

}  // namespace

std::string placement_note(std::vector<RankPlacement> const& places) {
  for (auto const& host : hosts_of(places)) {
    if (!takes_turns(places, host)) continue;
    auto const cores = places[host.ranks.front()].cores.size();
    return fmt::format("  {} ranks share {} core{}: good for trying out; as many ranks as cores are faster\n",
                       host.ranks.size(), cores, cores == 1 ? "" : "s");
  }
  return {};
}

std::vector<std::string> placement_warnings(std::vector<RankPlacement> const& places) {
  auto const hosts = hosts_of(places);
  // An error that many hosts share is one error of the command line, so it is told once, for the first host.
  std::vector<std::string> warnings;
  for (auto const check : {core_error, blas_error, gpu_error}) {
    std::optional<std::string> first;
    int more = 0;
    for (auto const& host : hosts) {
      auto const error = check(places, host);
      if (first) {
        more += error ? 1 : 0;
      } else {
        first = error;
      }
    }
    if (first) warnings.push_back(more == 0 ? *first : fmt::format("{}\n(the like on {} more host(s))", *first, more));
  }
  return warnings;
}

}  // namespace p3d::report
