// SPDX-License-Identifier: Apache-2.0
// The same tiny model under every layout against one rank. Rank 0 trains the reference alone, then all ranks train each
// layout; every step's loss must agree.
//
//   mpiexec -n N invariance [--full] [--precision fp64|fp32] [--dropout RATE] [--model NAME] [--sabotage]
//
// Prints one line per layout with the largest relative deviation. Exit code 1 when one is above the tolerance
// (fp64 1e-9, fp32 2e-4). --sabotage gives the layouts another seed: the program must then fail (tests/meta).

#include "cases.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/comm/mesh.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/linalg/blas_threads.hpp>
#include <p3d/engine/precision.hpp>
#include <p3d/engine/trainer.hpp>

#include <support/tiny.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using p3d::invariance::Layout;
using p3d::invariance::Model;

struct Options {
  bool full = false;
  bool sabotage = false;
  std::string precision = "fp64";
  std::string dropout = "0.0";
  std::string model;
};

constexpr int num_steps = 20;
// With some seeds the gradient norm of a llama with dropout jumps (7: to 16 at step 13), and a jump multiplies rounding
// by a thousand in any layout; the comparison is about layouts, so it takes a seed whose run is calm.
constexpr int seed = 3;

/// The configuration for `ranks` ranks, or nothing when the sizes do not allow the layout.
std::optional<p3d::config::Config> make_config(Options const& o, Model const& m, Layout const& l, int ranks, int seed) {
  auto overrides = m.overrides;
  overrides.insert(overrides.end(), l.overrides.begin(), l.overrides.end());
  for (std::string s :
       {fmt::format("run.steps={}", num_steps), fmt::format("run.seed={}", seed), "run.precision=" + o.precision,
        "model.dropout=" + o.dropout, std::string("optimizer.warmup_steps=3"), std::string("optimizer.lr=1e-3"),
        std::string("run.eval_batches=0"), std::string("comm.bucket_mb=0.1"), p3d::test::licence_text()}) {
    overrides.push_back(s);
  }
  auto result = p3d::config::parse_text("", "invariance", P3D_SOURCE_DIR, overrides, ranks);
  return result.config;
}

template <class P>
std::vector<double> train(P, p3d::config::Config const& config, p3d::comm::Communicator const& comm) {
  p3d::engine::Trainer<P> trainer(config, comm);
  std::vector<double> losses;
  for (int s = 0; s < num_steps; ++s) losses.push_back(trainer.step().loss);
  P3D_REQUIRE(trainer.inspection().activation_high_water() == trainer.inspection().activation_capacity(),
              "activations fill the arena exactly");
  return losses;
}

std::vector<double> train(p3d::config::Config const& c, p3d::comm::Communicator const& comm) {
  return p3d::engine::with_policy(c, [&](auto policy) { return train(policy, c, comm); });
}

int run(Options const& o) {
  auto world = p3d::comm::Communicator::world();
  int const ranks = world.size();
  double const tolerance = o.precision == "fp64" ? 1e-9 : 2e-4;
  int failures = 0, layouts = 0, refused = 0, turn = 0;
  double worst = 0.0;
  for (auto const& model : p3d::invariance::models(ranks)) {
    if (!o.model.empty() && model.name != o.model) continue;
    auto const cases = p3d::invariance::layouts(ranks, o.full ? -1 : turn++);
    if (cases.empty()) continue;
    std::vector<double> reference(num_steps);
    if (world.rank() == 0) {
      auto const config = make_config(o, model, {}, 1, seed);
      P3D_REQUIRE(config.has_value(), "the reference input is valid");
      reference = train(*config, p3d::comm::Communicator::self());
      P3D_REQUIRE(reference.front() > reference.back() + 0.5, "the reference learns, so that losses can differ");
    }
    world.broadcast(reference.data(), num_steps, p3d::comm::Type::float64, 0).wait();
    for (auto const& layout : cases) {
      auto const config = make_config(o, model, layout, ranks, o.sabotage ? seed + 1 : seed);
      P3D_REQUIRE(config.has_value() == p3d::invariance::allowed(model, layout),
                  "p3d refuses a layout exactly where the sizes do not divide: " + model.name + " " + layout.name);
      if (!config) {
        ++refused;
        continue;
      }
      auto const losses = train(*config, world);
      double deviation = 0.0;
      for (int s = 0; s < num_steps; ++s) {
        auto const i = static_cast<std::size_t>(s);
        deviation = std::max(deviation, std::fabs(losses[i] - reference[i]) / std::fabs(reference[i]));
      }
      bool const good = deviation <= tolerance;  // false for NaN
      ++layouts;
      failures += good ? 0 : 1;
      worst = std::max(worst, deviation);
      p3d::base::log_root(fmt::format("{} {:<14} {:<32} largest relative deviation {:.2e}", good ? "ok  " : "FAIL",
                                      model.name, layout.name, deviation));
    }
  }
  // The models that the options leave out take their share of the layouts with them; all together have each triple
  // once.
  P3D_REQUIRE(layouts > refused, "most layouts ran");
  P3D_REQUIRE(o.full || !o.model.empty() || layouts + refused == p3d::invariance::num_triples(ranks),
              "the subset has every triple once");
  p3d::base::log_root(
      fmt::format("{} ranks, {}, dropout {}: {} layouts, {} failed, {} refused, worst deviation {:.2e} (tolerance "
                  "{:.0e})",
                  ranks, o.precision, o.dropout, layouts, failures, refused, worst, tolerance));
  return failures == 0 ? 0 : 1;
}

}  // namespace

/// False where an option is unknown or lacks its value: a test with a misspelt option must not pass as another one.
bool read_options(int argc, char** argv, Options& o) {
  for (int i = 1; i < argc; ++i) {
    std::string const a = argv[i];
    std::string* const value = a == "--precision" ? &o.precision
                               : a == "--dropout" ? &o.dropout
                               : a == "--model"   ? &o.model
                                                  : nullptr;
    if (value != nullptr && i + 1 < argc)
      *value = argv[++i];
    else if (a == "--full")
      o.full = true;
    else if (a == "--sabotage")
      o.sabotage = true;
    else
      return false;
  }
  return o.precision == "fp64" || o.precision == "fp32";
}

int main(int argc, char** argv) {
  Options o;
  if (!read_options(argc, argv, o)) {
    std::fputs("usage: invariance [--full] [--precision fp64|fp32] [--dropout RATE] [--model NAME] [--sabotage]\n",
               stderr);
    return 2;
  }
  p3d::comm::Environment mpi(argc, argv);
  p3d::comm::keep_mesh_groups();
  try {
    p3d::device::Environment kokkos(argc, argv, 1);
    p3d::linalg::set_blas_threads(p3d::device::host_threads());
    return mpi.exit_code(run(o));
  } catch (std::exception const& e) {
    p3d::base::error_here(e.what());
    p3d::comm::abort_all(1);
  }
}
