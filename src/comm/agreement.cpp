// SPDX-License-Identifier: Apache-2.0
#include "agreement.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/hash.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/wait.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string_view>

#include "internal.hpp"

namespace p3d::comm::detail {

namespace {

/// The words of one rank, sent as bytes between the ranks of one program: their hash, and the beginning of their text.
struct Asked {
  std::uint64_t hash = 0;
  char text[184] = "";
};

std::uint64_t hash_of(std::vector<std::string> const& words) {
  std::uint64_t hash = base::fnv1a_start;
  for (auto const& word : words) hash = base::fnv1a({word.c_str(), word.size() + 1}, hash);  // with the zero at its end
  return hash;
}

/// Numbers of ranks as text: "rank 2", "ranks 0 to 3, 7".
std::string rank_list(std::vector<int> const& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + base::number_ranges(ranks, " to ", ", ");
}

bool contains(std::string const& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

std::string lonely(Launch const& launch, int world_size, std::string const& library) {
  if (world_size != 1 || launch.size <= 1) return {};
  bool const slurm = launch.rank_variable.starts_with("SLURM");
  bool const open_mpi = contains(library, "Open MPI");
  auto const right = !slurm     ? fmt::format("start p3d with the mpiexec that belongs to {}", library)
                     : open_mpi ? std::string("srun --mpi=pmix (Open MPI), or this MPI's own mpiexec")
                     : contains(library, "CRAY")
                         ? std::string("srun --mpi=cray_shasta (Cray MPICH), or --mpi=pmi2 where there is none")
                         : std::string("srun --mpi=pmi2 (MPICH, Intel MPI), or this MPI's own mpiexec");
  return base::format(
      {.expected = fmt::format("one MPI world of {} ranks", launch.size),
       .found =
           fmt::format("a world of one rank in each process: the MPI library ({}) does not see the launcher's other "
                       "processes",
                       library),
       .where = fmt::format("{} = {}, {} = {}", launch.rank_variable, launch.rank, launch.size_variable, launch.size),
       .fix = fmt::format("{}{}; for separate runs of one rank each: env -u {} p3d ...", right,
                          slurm ? "; srun --mpi=list shows what this Slurm has" : "", launch.rank_variable)});
}

std::string different_words(std::vector<std::string> const& words) {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) return {};
  Asked own;
  own.hash = hash_of(words);
  // The smallest hash and the complement of the largest one, in one reduction.
  std::array<std::uint64_t, 2> range{own.hash, ~own.hash};
  check(blocking("MPI_Allreduce", "world, to compare the command lines",
                 [&] { return MPI_Allreduce(MPI_IN_PLACE, range.data(), 2, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD); }),
        "MPI_Allreduce", "world");
  if (range[0] == ~range[1]) return {};

  auto text = words.empty() ? std::string("no words") : base::join(words, " ");
  if (text.size() >= sizeof(own.text)) text = text.substr(0, sizeof(own.text) - 5) + " ...";
  std::snprintf(own.text, sizeof(own.text), "%s", text.c_str());
  std::vector<Asked> all(static_cast<std::size_t>(size));
  check(blocking("MPI_Allgather", "world, to compare the command lines",
                 [&] {
                   return MPI_Allgather(&own, sizeof(own), MPI_BYTE, all.data(), sizeof(own), MPI_BYTE, MPI_COMM_WORLD);
                 }),
        "MPI_Allgather", "world");
  std::vector<std::string> order;  // one text for each different command line, by its first rank
  std::map<std::uint64_t, std::vector<int>> ranks;
  for (int r = 0; r < size; ++r) ranks[all[static_cast<std::size_t>(r)].hash].push_back(r);
  for (int r = 0; r < size; ++r) {
    auto const& asked = all[static_cast<std::size_t>(r)];
    if (ranks[asked.hash].front() == r)
      order.push_back(fmt::format("{}: {}", rank_list(ranks[asked.hash]), asked.text));
  }
  constexpr std::size_t most = 8;
  std::size_t const left_out = order.size() > most ? order.size() - most : 0;
  order.resize(order.size() - left_out);
  return base::format({.expected = "the same words after the program's name on every rank",
                       .found = base::join(order, "; ") +
                                (left_out > 0 ? fmt::format("; and {} more command lines", left_out) : std::string()),
                       .where = fmt::format("the command lines of {} ranks", size),
                       .fix = fmt::format("start all ranks with one command: mpiexec -n {} p3d ...", size)});
}

}  // namespace p3d::comm::detail
