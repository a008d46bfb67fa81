// SPDX-License-Identifier: Apache-2.0
// A stage's backward in one piece and in two: same gradients, also when other microbatches pass between the two parts.

#include <p3d/device/guard.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/model/stage.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/tiny.hpp>

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

namespace {

using namespace p3d;
using device::View2;

/// What a stage may consist of: embedding with layers, layers alone, layers with the head, or everything; and none at
/// all.
struct Case {
  std::string name;
  std::vector<int> layers;  ///< per stage
  int stage;
};

config::Config tiny(bool llama, bool tied, double dropout, int tp, bool sequence) {
  return test::config_of(
      {llama ? "model.preset=llama-tiny" : "model.preset=gpt2-tiny", "model.heads=6", "model.kv_heads=6",
       "model.hidden=24", "model.ffn=48", "model.vocab_size=31", "model.seq_len=5", "model.layers=3", "batch.micro=2",
       "batch.microbatches=1", "run.precision=fp64", fmt::format("model.tied_embeddings={}", tied),
       fmt::format("model.dropout={}", dropout), fmt::format("parallel.tp={}", tp),
       fmt::format("parallel.sequence={}", sequence), "data.format=synthetic"},
      tp);
}

constexpr layout::ElementBytes fp64{8, 8};

/// One stage with its memory. The parameters are drawn from the seed, so two of a kind are equal.
class Rig {
public:
  Rig(config::Config const& config, Case const& c, comm::Communicator& world, int slots)
      : config_(config),
        stages_(c.layers, static_cast<int>(c.layers.size())),
        table_(layout::make_param_table(config)),
        tp_{device::ExecSpace(), &world, config.parallel.sequence},
        params_(
            tp_.exec,
            layout::StageParams(table_, stages_, c.stage, {.tp = world.size(), .pp = static_cast<int>(c.layers.size())},
                                {.tp = world.rank(), .pp = c.stage, .dp = 0}),
            config.run.seed),
        sets_{slots, slots, layout::stage_recompute(config.memory, stages_, c.stage)},
        arena_(static_cast<std::size_t>(layout::stage_bytes(config, stages_, c.stage, sets_, fp64).total() +
                                        layout::workspace_bytes(config, scratch(), stages_.is_last(c.stage), fp64,
                                                                kernels::have_device_form())
                                            .total()),
               "p3d::test::arena"),
        workspace_(config, scratch(), stages_.is_last(c.stage), arena_, world.rank()),
        weights_(model::stage_weights(config, stages_, c.stage, params_)),
        stage(config, stages_, c.stage, sets_, params_.layout(), tp_, arena_, {&workspace_, &workspace_}) {
    params_.zero_grads(tp_.exec);
    workspace_.set_loss(loss_);
  }

  /// Forward of a microbatch and the gradient of the stage's output, both made up.
  double forward(int slot, int microbatch) {
    auto const n = config_.batch.micro * config_.model.seq_len;
    std::vector<int> tokens, targets;
    for (std::int64_t i = 0; i < n; ++i) {
      tokens.push_back(static_cast<int>((7 * i + 3 * microbatch + i * i) % 31));
      targets.push_back(static_cast<int>((5 * i + microbatch + 1) % 31));
    }
    stage.load(slot, {config_.batch.micro * microbatch, config_.batch.micro, config_.model.seq_len},
               {tokens, targets, {}, {}});
    if (!stage.is_first()) fill("x", microbatch, stage.input(slot));
    stage.forward(weights_, slot, true);
    if (!stage.is_last()) fill("d", microbatch, stage.gradient(slot));
    return kernels::take_sums(tp_.exec, loss_)[0];
  }
  std::vector<double> weight_gradients() const { return on_host(params_.grads()); }
  std::vector<double> input_gradient(int slot) const { return on_host(device::flat(stage.gradient(slot))); }
  bool arena_is_full() const { return arena_.high_water() == arena_.capacity(); }

private:
  model::RecomputeScratch scratch() const {
    model::RecomputeScratch out;
    out.add(sets_.recompute);
    return out;
  }
  static std::vector<double> on_host(device::View1<double> v) {
    auto const host = device::host_copy(v);
    return {host.data(), host.data() + host.extent(0)};
  }
  static void fill(char const* what, int microbatch, View2<double> v) {
    auto const key = base::random_key(static_cast<std::uint64_t>(microbatch), what);
    auto const host = device::host_mirror(v);
    for (std::size_t i = 0; i < v.extent(0); ++i) {
      for (std::size_t j = 0; j < v.extent(1); ++j) host(i, j) = base::random_normal(key, 0, i * v.extent(1) + j);
    }
    Kokkos::deep_copy(v, host);
  }

  config::Config config_;
  layout::StageMap stages_;
  layout::ParamTable table_;
  parallel::TensorParallel tp_;
  model::Parameters<device::Fp64> params_;
  layout::StageActivations sets_;
  device::Arena arena_;
  model::Workspace<device::Fp64> workspace_;
  device::Owned1<double> loss_{"p3d::test::loss", 1};
  model::StageWeights<device::Fp64> weights_;

public:
  void backward(int slot, double scale) { stage.backward(weights_, slot, scale, {}); }
  void backward_input(int slot, double scale) { stage.backward_input(weights_, slot, scale); }
  void backward_weight(int slot, model::Stage<device::Fp64>::Ready const& ready = {}) {
    stage.backward_weight(weights_, slot, ready);
  }

  model::Stage<device::Fp64> stage;
};

void expect_equal(std::vector<double> const& a, std::vector<double> const& b, std::string const& what) {
  ASSERT_EQ(a.size(), b.size());
  double size = 0.0, difference = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    size = std::max(size, std::fabs(a[i]));
    difference = std::max(difference, std::isfinite(b[i]) ? std::fabs(a[i] - b[i]) : INFINITY);
  }
  EXPECT_GT(size, 0.0) << what;
  EXPECT_LE(difference, 1e-13 * size) << what;
}

class SplitBackward : public ::testing::TestWithParam<std::tuple<bool, bool, double, bool>> {};

TEST_P(SplitBackward, EqualsTheWholeForEveryKindOfStage) {
  auto const [llama, tied, dropout, sequence] = GetParam();
  auto world = comm::Communicator::world();
  if (sequence && world.size() == 1) return;
  auto const config = tiny(llama, tied, dropout, world.size(), sequence);
  double const scale = 0.25;
  for (Case const& c :
       {Case{"whole model", {3}, 0}, Case{"first", {2, 1}, 0}, Case{"middle", {1, 1, 1}, 1}, Case{"last", {1, 2}, 1},
        Case{"embedding alone", {0, 3}, 0}, Case{"nothing", {1, 0, 2}, 1}, Case{"head alone", {3, 0}, 1}}) {
    Rig whole(config, c, world, 3), split(config, c, world, 3);
    EXPECT_TRUE(whole.arena_is_full()) << c.name;
    // Two rounds: in the second, the buffers have changed places already.
    for (int round = 0; round < 2; ++round) {
      for (int m = 0; m < 3; ++m) {
        double const loss = whole.forward(m, 3 * round + m);
        whole.backward(m, scale);
        if (m == 2) continue;
        EXPECT_EQ(loss, split.forward(m, 3 * round + m)) << c.name;
      }
      // I of two microbatches, a forward between, then the weight parts; the sums run in the same order.
      split.backward_input(0, scale);
      split.backward_input(1, scale);
      split.forward(2, 3 * round + 2);
      split.backward_weight(0);
      split.backward_input(2, scale);
      split.backward_weight(1);
      std::vector<bool> ready(100, false);
      std::size_t marked = 0;
      split.backward_weight(2, [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i, ++marked) ready.at(i) = true;
      });
      EXPECT_EQ(marked, static_cast<std::size_t>(std::count(ready.begin(), ready.end(), true))) << c.name;
      if (c.name != "nothing") expect_equal(whole.weight_gradients(), split.weight_gradients(), c.name + ": weights");
      if (whole.stage.is_first()) continue;  // there, gradient() is the embedding's affair
      for (int m = 0; m < 3; ++m) expect_equal(whole.input_gradient(m), split.input_gradient(m), c.name + ": input");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SplitBackward,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(), ::testing::Values(0.0, 0.2),
                                            ::testing::Bool()));

}  // namespace
