// SPDX-License-Identifier: Apache-2.0
// Whole training steps against the ceiling of their own GEMMs, measured before and after each of them: what
// disturbs the machine disturbs both, so the ratio (MFU) holds where the times do not.
//
//   mpiexec -n 4 bench_step [--rounds 7] input.toml [key=value ...] > step.csv

#include "bench.hpp"

#include <p3d/plan/model_cost.hpp>
#include <p3d/report/ceiling.hpp>
#include <p3d/report/gemm_trial.hpp>
#include <p3d/run/input.hpp>
#include <p3d/engine/trainer.hpp>

#include <array>
#include <cstring>

namespace {

using namespace p3d;

using Phases = std::array<double, engine::num_phases>;

/// Phase times of a step, mean over the ranks.
Phases mean(Phases now, Phases const& before, comm::Communicator& world) {
  for (std::size_t i = 0; i < now.size(); ++i) now[i] -= before[i];
  world.all_reduce(now.data(), static_cast<std::int64_t>(now.size()), comm::Type::float64, comm::Reduction::sum).wait();
  for (auto& s : now) s /= world.size();
  return now;
}

void print_row(std::string const& name, double ceiling, double seconds, double tokens, double mfu,
               Phases const& phases) {
  fmt::print("{},{:.2f},{:.4f},{:.2f},{:.4f}", name, ceiling * 1e-9, seconds, tokens / seconds, mfu);
  for (double s : phases) fmt::print(",{:.4f}", s);
  fmt::print("\n");
  std::fflush(stdout);
}

void bench_steps(config::Config const& c, comm::Communicator& world, int rounds) {
  bool const root = world.rank() == 0;
  if (root) {
    fmt::print("# {} tokens a step, {} ranks, microbatches of {}; ceiling in GFLOP/s a rank, times in seconds\n",
               c.batch.global * c.model.seq_len, world.size(), c.batch.micro);
    fmt::print("round,ceiling,step,tokens_per_s,mfu");
    for (std::size_t i = 0; i < engine::num_phases; ++i) fmt::print(",{}", engine::name(static_cast<engine::Phase>(i)));
    fmt::print("\n");
  }
  double const flops = plan::model_flops_per_step(c) / world.size(),
               tokens = static_cast<double>(c.batch.global * c.model.seq_len);
  report::choose_gemms<device::Fp32>(c, world);
  if (root) fmt::print("# {}\n", report::describe_gemms());
  engine::Trainer<device::Fp32> trainer(c, world);
  report::CeilingMeter<device::Fp32> meter(report::model_products(c), world);
  auto const chosen = linalg::gemm_choice();
  auto const ceiling = [&] {  // each product by its quickest library
    std::vector<double> best;
    for (auto const& library : report::gemm_libraries<device::Fp32>()) {
      linalg::set_gemm_choice(library);
      auto const now = meter.measure();
      if (best.empty()) best = now;
      for (std::size_t i = 0; i < now.size(); ++i) best[i] = std::min(best[i], now[i]);
    }
    linalg::set_gemm_choice(chosen);
    return meter.speed(best);
  };
  trainer.step();  // touches all memory
  ceiling();
  double before = ceiling();
  std::vector<double> ceilings, seconds, mfus;
  std::array<std::vector<double>, engine::num_phases> phases;
  for (int round = 1; round <= rounds; ++round) {
    auto const start = trainer.times().seconds;
    world.barrier().wait();
    base::Stopwatch const watch;
    trainer.step();
    world.barrier().wait();
    double const step = watch.seconds();
    auto const spent = mean(trainer.times().seconds, start, world);
    double const after = ceiling();
    ceilings.push_back(0.5 * (before + after));
    seconds.push_back(step);
    mfus.push_back(flops / step / ceilings.back());
    for (std::size_t i = 0; i < spent.size(); ++i) phases[i].push_back(spent[i]);
    if (root) print_row(fmt::format("{}", round), ceilings.back(), step, tokens, mfus.back(), spent);
    before = after;
  }
  Phases middle;
  for (std::size_t i = 0; i < middle.size(); ++i) middle[i] = bench::median(phases[i]);
  if (root) print_row("median", bench::median(ceilings), bench::median(seconds), tokens, bench::median(mfus), middle);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Setup setup(argc, argv);
  int rounds = 7;
  if (argc > 2 && std::strcmp(argv[1], "--rounds") == 0) {
    rounds = std::max(1, std::atoi(argv[2]));
    argc -= 2;
    argv += 2;
  }
  auto const config = bench::read_input(setup.world, argc, argv);
  if (!config) return 2;
  bench::print_stamp(setup.world, "p3d steps");
  bench_steps(*config, setup.world, rounds);
}
