// SPDX-License-Identifier: Apache-2.0
// Training steps of one input under several sets of overrides, in turn in one process: what disturbs the machine
// disturbs all of them, so their ratios to the first hold where their times do not. All have the same ranks.
//
//   mpiexec -n 2 bench_variants [--rounds 5] [--steps 1] input.toml [key=value ...] [-- key=value ...]... > out.csv
//
// What stands before the first "--" holds for all, and is the first variant. Between two barriers a variant does so
// many steps: many where steps overlap (optimizer.post_validation), as the barriers keep two of them apart. Prints for
// each the median time of a step, the median over the rounds of its ratio to the first variant's, both also in
// processor time of all ranks (which does not count what other programs take), and the most bytes of a rank.

#include "bench.hpp"

#include <p3d/engine/run_plan.hpp>
#include <p3d/engine/trainer.hpp>

#include <sys/resource.h>

#include <cstring>
#include <memory>
#include <utility>

namespace {

using namespace p3d;

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  auto const seconds = [](timeval const& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct Variant {
  std::string name;
  std::unique_ptr<engine::Trainer<device::Fp32>> trainer;
  std::vector<double> seconds{}, processor{}, ratio{}, processor_ratio{};

  void run(comm::Communicator& world, int steps) {
    world.barrier().wait();
    base::Stopwatch const watch;
    double before = processor_seconds();
    for (int s = 0; s < steps; ++s) trainer->step();
    double spent = (processor_seconds() - before) / steps;
    world.barrier().wait();
    seconds.push_back(watch.seconds() / steps);
    world.all_reduce(&spent, 1, comm::Type::float64, comm::Reduction::sum).wait();
    processor.push_back(spent);
  }

  double most_bytes() const {
    double most = 0;
    for (auto const& m : trainer->plan().memory) most = std::max(most, static_cast<double>(m.total()));
    return most;
  }
};

}  // namespace

int main(int argc, char** argv) {
  bench::Setup setup(argc, argv);
  std::vector<std::string> words(argv + 1, argv + argc);
  int rounds = 5, steps = 1;
  for (auto const& [name, value] : {std::pair("--rounds", &rounds), std::pair("--steps", &steps)}) {
    if (words.size() < 2 || words[0] != name) continue;
    *value = std::max(1, std::atoi(words[1].c_str()));
    words.erase(words.begin(), words.begin() + 2);
  }
  std::vector<std::vector<std::string>> sets(1);
  for (auto const& w : words) {
    if (w == "--")
      sets.emplace_back();
    else
      sets.back().push_back(w);
  }
  std::vector<Variant> variants;
  for (auto const& set : sets) {
    auto all = sets.front();
    if (&set != &sets.front()) all.insert(all.end(), set.begin(), set.end());
    std::vector<char*> args{argv[0]};
    for (auto& a : all) args.push_back(a.data());
    auto const config = bench::read_input(setup.world, static_cast<int>(args.size()), args.data());
    if (!config) return 2;
    std::string name;
    if (&set != &sets.front())
      for (auto const& w : set) name += (name.empty() ? "" : " ") + w;
    variants.push_back(
        {name.empty() ? "first" : name, std::make_unique<engine::Trainer<device::Fp32>>(*config, setup.world)});
  }
  for (auto& v : variants) v.trainer->step();  // touches all memory
  for (int round = 0; round < rounds; ++round) {
    for (auto& v : variants) {
      v.run(setup.world, steps);
      v.ratio.push_back(v.seconds.back() / variants.front().seconds.back());
      v.processor_ratio.push_back(v.processor.back() / variants.front().processor.back());
    }
  }
  bench::print_stamp(setup.world, "p3d steps under several inputs");
  if (setup.world.rank() != 0) return setup.mpi.exit_code(0);
  fmt::print("variant,step,ratio,processor,processor_ratio,bytes\n");
  for (auto const& v : variants)
    fmt::print("\"{}\",{:.4f},{:.4f},{:.4f},{:.4f},{:.0f}\n", v.name, bench::median(v.seconds), bench::median(v.ratio),
               bench::median(v.processor), bench::median(v.processor_ratio), v.most_bytes());
}
