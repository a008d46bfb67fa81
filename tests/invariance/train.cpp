// SPDX-License-Identifier: Apache-2.0
#include "train.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/mesh.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/engine/precision.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/linalg/blas_threads.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace p3d::test {

namespace {

template <class P>
RunResult train_as(P, config::Config const& config, comm::Communicator const& comm, int steps, Also also) {
  engine::Trainer<P> trainer(config, comm);
  RunResult out;
  trainer.inspection().keep_gradients(true);
  for (int s = 0; s < steps; ++s) {
    auto const step = trainer.step();
    out.losses.push_back(step.loss);
    if (config.model.mtp.on()) out.losses.push_back(step.mtp_loss);
    out.norms.push_back(step.grad_norm);
    if (s > 0) continue;
    for (auto const& spec : trainer.plan().table.specs())
      out.gradients[spec.name] = trainer.inspection().gather_gradient(spec.name);
    trainer.inspection().keep_gradients(false);
  }
  if (also == Also::values)
    for (auto const& spec : trainer.plan().table.specs())
      out.values[spec.name] = trainer.inspection().gather_value(spec.name);
  for (auto& load : trainer.expert_load()) out.expert_tokens.push_back(std::move(load.tokens));
  if (also == Also::evaluation) out.losses.push_back(trainer.evaluate(1));
  P3D_REQUIRE(trainer.inspection().activation_high_water() == trainer.inspection().activation_capacity(),
              "activations fill the arena exactly");
  return out;
}

}  // namespace

RunResult train(config::Config const& c, comm::Communicator const& comm, int steps, Also also) {
  return engine::with_policy(c, [&](auto policy) { return train_as(policy, c, comm, steps, also); });
}

SharedFolder::SharedFolder(comm::Communicator& world) : world_(&world) {
  if (world.rank() == 0) path_ = made_.emplace().path().string();
  comm::broadcast_text(world, path_, 0);
}
SharedFolder::~SharedFolder() { world_->barrier().wait(); }

std::pair<double, double> deviations(RunResult const& a, RunResult const& b) {
  double loss = 0, gradient = 0;
  auto const grow = [](double& most, double value) { most = value <= most ? most : value; };  // takes NaN
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    grow(loss, std::fabs(a.losses[i] - b.losses.at(i)) / std::fabs(a.losses[i]));
  double whole = 0;
  for (auto const& [name, all] : a.gradients)
    for (double x : all) whole = std::max(whole, std::fabs(x));
  for (auto const& [name, all] : a.gradients) {
    auto const& other = b.gradients.at(name);
    // The gradient of a key's bias is rounding alone: softmax does not feel it.
    double largest = 1e-3 * whole, most = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      largest = std::max(largest, std::fabs(all[i]));
      grow(most, std::fabs(all[i] - other.at(i)));
    }
    grow(gradient, most / largest);
  }
  return {loss, gradient};
}

Tally::Tally(int ranks, Options const& o) : Tally(ranks, o.wide() ? 1e-9 : 2e-4, o.wide() ? 1e-12 : 2e-3) {}

void Tally::compare(RunResult const& reference, RunResult const& got, std::string const& what) {
  auto const [loss, gradient] = deviations(reference, got);
  bool const good = loss <= loss_bound_ && gradient <= gradient_bound_;
  ++runs_;
  failures_ += good ? 0 : 1;
  loss_ = loss <= loss_ ? loss_ : loss;  // takes NaN
  gradient_ = gradient <= gradient_ ? gradient_ : gradient;
  base::log_root(fmt::format("{} {} losses {:.1e}, gradients {:.1e}", good ? "ok  " : "FAIL", what, loss, gradient));
}

int Tally::finish() const {
  P3D_REQUIRE(runs_ > 0, "there are layouts of so many ranks");
  base::log_root(fmt::format("{} ranks: {} runs, {} failed; losses within {:.1e}, gradients {:.1e}", ranks_, runs_,
                             failures_, loss_, gradient_));
  return failures_ == 0 ? 0 : 1;
}

namespace {

bool read_options(int argc, char** argv, std::vector<std::string_view> const& accepted, Options& o) {
  for (int i = 1; i < argc; ++i) {
    std::string_view const word = argv[i];
    if (std::find(accepted.begin(), accepted.end(), word) == accepted.end()) return false;
    std::string* const value = word == "--precision" ? &o.precision
                               : word == "--dropout" ? &o.dropout
                               : word == "--only"    ? &o.only
                                                     : nullptr;
    if (value == nullptr)
      (word == "--full" ? o.full : o.sabotage) = true;
    else if (++i < argc)
      *value = argv[i];
    else
      return false;
  }
  return o.precision == "fp64" || o.precision == "fp32";
}

}  // namespace

int run_main(int argc, char** argv, std::vector<std::string_view> const& accepted, int (*run)(Options const& options)) {
  Options options;
  if (!read_options(argc, argv, accepted, options)) {
    fmt::print(stderr, "usage: {} [{}]; precision: fp64 or fp32\n", argv[0], fmt::join(accepted, "] ["));
    return 2;
  }
  comm::Environment mpi(argc, argv);
  comm::keep_mesh_groups();
  try {
    device::Environment kokkos(argc, argv, 1);
    linalg::set_blas_threads(device::host_threads());
    return mpi.exit_code(run(options));
  } catch (std::exception const& e) {
    base::error_here(e.what());
    comm::abort_all(1);
  }
}

}  // namespace p3d::test
