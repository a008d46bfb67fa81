// SPDX-License-Identifier: Apache-2.0
// p3d with divided state against PyTorch's FSDP2 (make_sharded_reference.py): losses and gradient norms of ten steps,
// and every element of every parameter after the last, in fp64.

#include "reference.hpp"

#include <p3d/config/parse.hpp>
#include <p3d/engine/trainer.hpp>

#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace {

using p3d::golden::Reference;

/// Relative; of weights, to the L2 norm of their tensor. Measured: 1e-15.
constexpr double tolerance = 1e-13;

struct Run {
  std::vector<p3d::engine::StepResult> steps;
  std::map<std::string, std::vector<double>> weights;
};

double norm(std::span<double const> v) {
  double sum = 0.0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}

/// Distance of two tensors, relative to the second one.
double distance(std::span<double const> ours, std::span<double const> theirs) {
  if (ours.size() != theirs.size()) return 1.0;
  std::vector<double> difference(ours.size());
  for (std::size_t i = 0; i < ours.size(); ++i) difference[i] = ours[i] - theirs[i];
  return norm(difference) / norm(theirs);
}

/// What is not the same, by name; `worst`: the largest relative deviation.
std::vector<std::string> differences(Reference const& reference, Run const& run, double& worst) {
  std::vector<std::string> found;
  auto const compare = [&](std::string name, double deviation) {
    worst = std::max(worst, deviation);
    if (!(deviation <= tolerance)) found.push_back(std::move(name));  // NaN too
  };
  for (std::size_t s = 0; s < reference.steps.size(); ++s) {
    compare(fmt::format("lr {}", s), std::fabs(run.steps.at(s).lr / reference.steps[s].lr - 1.0));
    compare(fmt::format("loss {}", s), std::fabs(run.steps[s].loss / reference.steps[s].loss - 1.0));
    compare(fmt::format("norm {}", s), std::fabs(run.steps[s].grad_norm / reference.steps[s].grad_norm - 1.0));
  }
  for (auto const& p : reference.parameters) {
    auto const& ours = run.weights.at(p.name);
    auto const theirs = reference.weight(p.name);
    if (p.name.ends_with("attn.k.bias")) {  // its gradient is zero but for rounding, which AdamW's steps then are
      if (norm(ours) > 1e-10 || norm(theirs) > 1e-10) found.push_back(p.name);
    } else {
      compare(p.name, distance(ours, theirs));
    }
  }
  return found;
}

std::string file_of(std::string const& name) { return std::string(P3D_SOURCE_DIR) + "/tests/golden/" + name; }

p3d::config::Config make_config(std::string const& name, std::vector<std::string> const& overrides, int ranks) {
  auto result = p3d::config::parse_file(file_of(name + ".toml"), overrides, ranks);
  if (!result.config) throw std::runtime_error(p3d::config::format(result.errors));
  return *result.config;
}

Run train(p3d::config::Config const& config, Reference const& reference, p3d::comm::Communicator const& world) {
  p3d::engine::Trainer<p3d::device::Fp64> trainer(config, world);
  Run run;
  for (std::size_t s = 0; s < reference.steps.size(); ++s) run.steps.push_back(trainer.step());
  for (auto const& p : reference.parameters) run.weights[p.name] = trainer.inspection().gather_value(p.name);
  return run;
}

/// Times that weights are put together in a step.
auto gathers(p3d::config::Config const& config) {
  auto const plan = p3d::engine::make_run_plan(config);
  std::ptrdiff_t count = 0;
  for (auto const& actions : plan.training.program().ranks)
    count += std::count_if(actions.begin(), actions.end(),
                           [](auto const& a) { return a.op == p3d::schedule::Op::gather_weights; });
  return count;
}

class GoldenSharded : public ::testing::TestWithParam<char const*> {
protected:
  std::string const name = GetParam();
  Reference const reference = p3d::golden::read_reference(file_of(name + ".sharded.txt"));
  p3d::comm::Communicator const world = p3d::comm::Communicator::world();
};

TEST_P(GoldenSharded, TrainsAsFsdp2Does) {
  std::vector<std::string> const divided{fmt::format("parallel.dp={}", world.size()), "memory.shard=parameters"};
  auto const with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), divided.begin(), divided.end());
    return make_config(name, more, world.size());
  };
  auto const once = with({"memory.gather=step"}), each = with({"memory.gather=microbatch"});
  EXPECT_GT(gathers(once), 0);
  EXPECT_GT(gathers(each), gathers(once));
  EXPECT_GT(once.batch.microbatches, 1) << "gradients add up over microbatches";
  double worst = 0.0;
  for (auto const& config : {once, each, with({"memory.gather=microbatch", "memory.reduce=microbatch"})}) {
    EXPECT_EQ(differences(reference, train(config, reference, world), worst), std::vector<std::string>{})
        << p3d::config::to_string(config.memory.gather) << ", " << p3d::config::to_string(config.memory.reduce);
  }
  if (world.rank() == 0) std::printf("%s: worst relative deviation from FSDP2 %.1e\n", name.c_str(), worst);
}

// A reference that is wrong by a little, in one place, is not agreed with, and the place is named.
TEST_P(GoldenSharded, NoticesAWrongReference) {
  auto const config =
      make_config(name, {fmt::format("parallel.dp={}", world.size()), "memory.shard=parameters"}, world.size());
  auto const run = train(config, reference, world);
  auto const found_after = [&](auto const& change) {
    auto wrong = reference;
    change(wrong);
    double worst = 0.0;
    return differences(wrong, run, worst);
  };
  using Names = std::vector<std::string>;
  double const off = 1.0 + 1e-12;
  for (std::size_t s = 0; s < reference.steps.size(); ++s) {
    EXPECT_EQ(found_after([&](Reference& r) { r.steps[s].loss *= off; }), Names{fmt::format("loss {}", s)});
    EXPECT_EQ(found_after([&](Reference& r) { r.steps[s].grad_norm *= off; }), Names{fmt::format("norm {}", s)});
    EXPECT_EQ(found_after([&](Reference& r) { r.steps[s].lr *= off; }), Names{fmt::format("lr {}", s)});
  }
  for (auto const& p : reference.parameters) {
    if (p.name.ends_with("attn.k.bias")) continue;
    double const size = norm(reference.weight(p.name));
    for (auto at : {p.offset, p.offset + p.size() / 2, p.offset + p.size() - 1})
      EXPECT_EQ(found_after([&](Reference& r) { r.weights[static_cast<std::size_t>(at)] += 1e-12 * size; }),
                Names{p.name});
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenSharded, ::testing::Values("gpt2", "llama"),
                         [](auto const& info) { return std::string(info.param); });

}  // namespace
