// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/recompute.hpp>

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>

#include <algorithm>
#include <vector>

namespace p3d::layout {

bool StageRecompute::any() const {
  return std::any_of(layers.begin(), layers.end(), [](LayerRecompute const& l) { return l.any(); });
}

// In a row of full layers a group begins at every multiple of `group`, counted from the stage's first layer.
int StageRecompute::group_begin(int l) const { return layer(l).full ? l / group * group : l; }

int StageRecompute::group_end(int l) const {
  int end = l + 1;
  if (!layer(l).full) return end;
  while (end < num_layers() && layer(end).full && end % group != 0) ++end;
  return end;
}

int StageRecompute::largest_group() const {
  int most = 0;
  for (int l = 0; l < num_layers(); l = group_end(l))
    if (layer(l).full) most = std::max(most, group_end(l) - l);
  return most;
}

KeptInput StageRecompute::input(int l) const {
  if (l == 0 || l == num_layers() || !layer(l).full) return KeptInput::whole;
  if (group_begin(l) < l) return KeptInput::none;
  return shares_inputs ? KeptInput::shared : KeptInput::whole;
}

StageRecompute no_recompute(StageMap const& stages, int stage) {
  return {.layers = std::vector<LayerRecompute>(static_cast<std::size_t>(stages.num_layers(stage)))};
}

StageRecompute stage_recompute(config::Memory const& m, StageMap const& stages, int stage) {
  P3D_REQUIRE(m.recompute != config::Recompute::automatic, "what \"auto\" recomputes is chosen before");
  auto out = no_recompute(stages, stage);
  if (m.recompute == config::Recompute::list) {
    auto const& ops = m.recompute_ops;
    for (auto& l : out.layers) l = {.norm = ops.norm, .activation = ops.activation, .attention = ops.attention};
  }
  if (m.recompute != config::Recompute::full) return out;
  P3D_REQUIRE(m.recompute_group == 1 || m.recompute_every == 1, "only neighbouring layers make a group");
  auto place = stages.layers(stage).begin - stages.uncut_begin(stage);
  for (auto& l : out.layers) {
    l.full = place % m.recompute_every == 0 && (m.recompute_layers == 0 || place < m.recompute_layers);
    ++place;
  }
  out.group = static_cast<int>(m.recompute_group);
  out.slots_kept = static_cast<int>(m.recompute_microbatches_kept);
  out.keeps_sums = !m.recompute_communication;
  out.shares_inputs = m.share_saved_inputs;
  return out;
}

}  // namespace p3d::layout
