// SPDX-License-Identifier: Apache-2.0
// Times every all-reduce of room comm against MPI's, and its two halves over even shares: a CSV row for each size,
// operation and algorithm, below a stamp of what was measured.
//
//   mpiexec -n 4 bench_allreduce [--turns N] [--sizes BYTES,BYTES,...] [--halves] [ALGORITHM...] > allreduce.csv
//
// With --halves also: reduce_scatter, all_gather, and halves (one after the other, as an all-reduce is used).
// For each size the algorithms take turns; in a turn one of them runs as often as fills about 10 ms (at least once) and
// its time is that of the slowest rank. It includes that each rank writes its buffer before, as a backward pass does:
// an algorithm that leaves the result in the caches of other cores pays for it. Given are the median time over the
// turns and the median over the turns of the ratio to MPI: speed = (the quicker of MPI_Iallreduce and MPI_Allreduce in
// the same turn) / time; of the other operations (MPI's of the same kind in the same turn) / time.

#include "bench.hpp"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

using namespace p3d;

namespace {

enum class Operation { all_reduce, reduce_scatter, all_gather, halves };
constexpr char const* names_of_operations[] = {"all_reduce", "reduce_scatter", "all_gather", "halves"};

struct Options {
  int turns = 7;
  bool halves = false;
  std::vector<std::int64_t> sizes;
  std::vector<std::string> algorithms;
};

[[noreturn]] void usage() {
  std::fputs(
      "usage: allreduce [--turns N] [--sizes BYTES,...] [--halves] [mpi-blocking mpi ring tree hierarchical shared "
      "auto]\n",
      stderr);
  comm::abort_all(2);
}

Options read(int argc, char** argv) {
  Options out;
  for (int i = 1; i < argc; ++i) {
    std::string const word = argv[i];
    if (word == "--turns" && i + 1 < argc) {
      out.turns = std::atoi(argv[++i]);
    } else if (word == "--sizes" && i + 1 < argc) {
      for (char* at = argv[++i]; *at != '\0';) {
        out.sizes.push_back(std::strtoll(at, &at, 10));
        if (*at == ',')
          ++at;
        else if (*at != '\0')
          usage();
      }
    } else if (word == "--halves") {
      out.halves = true;
    } else if (word.starts_with("-")) {
      usage();
    } else {
      out.algorithms.push_back(word);
    }
  }
  if (out.turns < 1 || std::any_of(out.sizes.begin(), out.sizes.end(), [](auto n) { return n < 4; })) usage();
  if (out.sizes.empty()) {
    for (std::int64_t n = 8; n < std::int64_t{1} << 20; n *= 4) out.sizes.push_back(n);
    for (std::int64_t n = std::int64_t{1} << 20; n <= std::int64_t{64} << 20; n *= 2) out.sizes.push_back(n);
  }
  if (out.algorithms.empty()) out.algorithms = {"ring", "tree", "hierarchical", "shared", "auto"};
  return out;
}

class Contest {
public:
  Contest(comm::Communicator& world, std::vector<std::string> const& algorithms) : world_(world) {
    names_ = {"mpi-blocking", "mpi"};
    for (auto const& name : algorithms) {
      if (std::find(names_.begin(), names_.end(), name) == names_.end()) names_.push_back(name);
    }
    for (auto const& name : names_) communicators_.push_back(make(name));
  }

  /// Seconds by name and turn. mpi-blocking has no halves: its times are mpi's then.
  std::vector<std::vector<double>> run(Operation operation, std::int64_t bytes, int turns) {
    operation_ = operation;
    bounds_.clear();
    for (std::int64_t r = 0; r <= world_.size(); ++r) bounds_.push_back(bytes / 4 * r / world_.size());
    // Where a run has its gradients, and the same for all contestants.
    comm::SharedBuffer const shared(static_cast<std::size_t>(bytes));
    std::vector<float> own(shared.data() == nullptr ? static_cast<std::size_t>(bytes / 4) : 0);
    std::span<float> const buffer(shared.data() == nullptr ? own.data() : static_cast<float*>(shared.data()),
                                  static_cast<std::size_t>(bytes / 4));
    std::vector<int> repeats;
    for (std::size_t a = 0; a < names_.size(); ++a) {
      time(a, buffer, 1);
      repeats.push_back(std::clamp(static_cast<int>(0.01 / time(a, buffer, 3)), 1, 2000));
    }
    std::vector<std::vector<double>> seconds(names_.size());
    for (int turn = 0; turn < turns; ++turn) {
      for (std::size_t i = 0; i < names_.size(); ++i) {
        std::size_t const a = (i + static_cast<std::size_t>(turn)) % names_.size();
        seconds[a].push_back(time(a, buffer, repeats[a]));
      }
    }
    return seconds;
  }

  std::vector<std::string> const& names() const { return names_; }
  std::string algorithm(std::size_t a, std::int64_t bytes) const {
    return comm::to_string(communicators_[a].all_reduce_algorithm(bytes));
  }
  std::string describe(std::size_t a) const { return communicators_[a].describe_all_reduce(); }

private:
  comm::Communicator make(std::string const& name) {
    auto made = world_.split(0, world_.rank(), name);
    if (name == "mpi" || name == "mpi-blocking") return made;
    for (auto const algorithm : {comm::AllReduce::ring, comm::AllReduce::tree, comm::AllReduce::hierarchical,
                                 comm::AllReduce::shared, comm::AllReduce::automatic}) {
      if (name == comm::to_string(algorithm)) made.prepare({algorithm});
    }
    if (made.describe_all_reduce() == "mpi") usage();
    return made;
  }

  /// Seconds for one operation on the slowest rank.
  double time(std::size_t a, std::span<float> buffer, int repeats) {
    auto& communicator = communicators_[a];
    auto const count = static_cast<std::int64_t>(buffer.size());
    bool const blocking = names_[a] == "mpi-blocking" && operation_ == Operation::all_reduce;
    world_.barrier().wait();
    base::Stopwatch watch;
    for (int i = 0; i < repeats; ++i) {
      std::fill(buffer.begin(), buffer.end(), static_cast<float>(i));
      if (blocking) {
        MPI_Allreduce(MPI_IN_PLACE, buffer.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, communicator.mpi());
      } else if (operation_ == Operation::all_reduce) {
        communicator.all_reduce(buffer.data(), count, comm::Type::float32, comm::Reduction::sum).wait();
      } else {
        if (operation_ != Operation::all_gather)
          communicator.reduce_scatter(buffer.data(), bounds_, comm::Type::float32, comm::Reduction::sum).wait();
        if (operation_ != Operation::reduce_scatter)
          communicator.all_gather(buffer.data(), bounds_, comm::Type::float32).wait();
      }
    }
    double seconds = watch.seconds() / repeats;
    world_.all_reduce(&seconds, 1, comm::Type::float64, comm::Reduction::max).wait();
    return seconds;
  }

  comm::Communicator& world_;
  std::vector<std::string> names_;
  std::vector<comm::Communicator> communicators_;
  Operation operation_ = Operation::all_reduce;
  std::vector<std::int64_t> bounds_;
};

void print(std::string const& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Setup setup(argc, argv);
  auto const options = read(argc, argv);
  auto& world = setup.world;
  comm::open_node_memory(2 * static_cast<std::size_t>(*std::max_element(options.sizes.begin(), options.sizes.end())));
  Contest contest(world, options.algorithms);
  bool const root = world.rank() == 0;
  bench::print_stamp(world, fmt::format("all-reduce of float32 against MPI's, {} turns", options.turns));
  if (root) {
    for (std::size_t a = 0; a < contest.names().size(); ++a) {
      if (contest.names()[a].starts_with("auto"))
        print(fmt::format("# {}: {}\n", contest.names()[a], contest.describe(a)));
    }
    print("ranks,bytes,operation,algorithm,carried_out_by,microseconds,gigabytes_per_s,speed_to_mpi\n");
  }
  std::vector<Operation> operations{Operation::all_reduce};
  if (options.halves) {
    operations.insert(operations.end(), {Operation::reduce_scatter, Operation::all_gather, Operation::halves});
  }
  for (auto const bytes : options.sizes) {
    for (auto const operation : operations) {
      auto const seconds = contest.run(operation, bytes, options.turns);
      for (std::size_t a = 0; root && a < seconds.size(); ++a) {
        std::vector<double> ratios;
        for (std::size_t t = 0; t < seconds[a].size(); ++t)
          ratios.push_back(std::min(seconds[0][t], seconds[1][t]) / seconds[a][t]);
        double const s = bench::median(seconds[a]);
        print(fmt::format("{},{},{},{},{},{:.2f},{:.3f},{:.2f}\n", world.size(), bytes,
                          names_of_operations[static_cast<int>(operation)], contest.names()[a],
                          contest.algorithm(a, bytes), s * 1e6, static_cast<double>(bytes) / s * 1e-9,
                          bench::median(ratios)));
      }
    }
  }
  return setup.mpi.exit_code(0);
}
