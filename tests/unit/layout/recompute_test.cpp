// SPDX-License-Identifier: Apache-2.0
// Which layers of a stage are recomputed, in which groups, and what stays of their inputs.

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/layout/recompute.hpp>

#include <gtest/gtest.h>

#include <string>

namespace {
using namespace p3d;
using layout::KeptInput;

/// By layer: '-' kept, 'f' full, else the first letters of the operations; behind it how its input is kept.
std::string picture(layout::StageRecompute const& r) {
  std::string text;
  for (int l = 0; l < r.num_layers(); ++l) {
    auto const& layer = r.layer(l);
    text += l > 0 && r.group_begin(l) == l ? " " : "";
    text += layer.full ? "f" : layer.any() ? "" : "-";
    text += std::string(layer.norm ? "n" : "") + (layer.activation ? "a" : "") + (layer.attention ? "t" : "");
    text += r.input(l) == KeptInput::whole ? "" : r.input(l) == KeptInput::shared ? "/" : "0";
    EXPECT_LE(r.group_begin(l), l);
    EXPECT_GT(r.group_end(l), l);
    EXPECT_EQ(r.group_begin(r.group_end(l) - 1), r.group_begin(l));
  }
  EXPECT_EQ(r.input(r.num_layers()), KeptInput::whole);
  return text;
}

config::Memory full() {
  config::Memory m;
  m.recompute = config::Recompute::full;
  return m;
}

TEST(StageRecompute, FollowsTheKeys) {
  layout::StageMap const stages({7}, 1);
  auto const of = [&](config::Memory const& m) { return layout::stage_recompute(m, stages, 0); };
  config::Memory m;
  EXPECT_EQ(picture(of(m)), "- - - - - - -");
  EXPECT_FALSE(of(m).any());
  m.recompute = config::Recompute::list;
  m.recompute_ops = {.norm = true, .rotary = true, .attention = true};
  EXPECT_EQ(picture(of(m)), "nt nt nt nt nt nt nt");
  m.recompute_ops = {.rotary = true};
  EXPECT_FALSE(of(m).any()) << "the rotary embedding works in place";
  m = full();
  EXPECT_EQ(picture(of(m)), "f f f f f f f");
  EXPECT_EQ(of(m).largest_group(), 1);
  m.recompute_every = 3;
  EXPECT_EQ(picture(of(m)), "f - - f - - f");
  m.share_saved_inputs = true;
  EXPECT_EQ(picture(of(m)), "f - - f/ - - f/");
  m = full();
  m.recompute_layers = 3;
  EXPECT_EQ(picture(of(m)), "f f f - - - -");
  m.recompute_group = 2;
  EXPECT_EQ(picture(of(m)), "ff0 f - - - -");
  m.recompute_layers = 0;
  m.recompute_group = 3;
  m.share_saved_inputs = true;
  EXPECT_EQ(picture(of(m)), "ff0f0 f/f0f0 f/");
  EXPECT_EQ(of(m).largest_group(), 3);
  m.recompute_group = 100;
  EXPECT_EQ(picture(of(m)), "ff0f0f0f0f0f0");
  EXPECT_EQ(of(m).largest_group(), 7);
}

// Cut into parts of two layers, whose weights come and go one after the other: the same layers; a group ends with its
// part.
TEST(StageRecompute, CountsWithinTheUncutStage) {
  auto const stages = layout::refine(layout::StageMap({5, 4}, 2), {3, 2});  // 2 + 2 + 1, 2 + 2
  auto const pictures = [&](config::Memory const& m) {
    std::string text;
    for (int s = 0; s < stages.num_stages(); ++s)
      text.append(s > 0 ? "|" : "").append(picture(layout::stage_recompute(m, stages, s)));
    return text;
  };
  auto m = full();
  m.recompute_every = 3;
  EXPECT_EQ(pictures(m), "f -|- f|-|f -|- f");
  m = full();
  m.recompute_layers = 3;
  EXPECT_EQ(pictures(m), "f f|f -|-|f f|f -");
  m = full();
  m.recompute_group = 3;
  EXPECT_EQ(pictures(m), "ff0|ff0|f|ff0|ff0");
}

TEST(StageRecompute, RefusesWhatIsChosenElsewhere) {
  config::Memory m;
  m.recompute = config::Recompute::automatic;
  EXPECT_THROW(layout::stage_recompute(m, layout::StageMap({2}, 1), 0), base::Error);
}

}  // namespace
