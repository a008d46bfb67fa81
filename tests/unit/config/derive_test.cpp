// SPDX-License-Identifier: Apache-2.0
// Values that follow from others, and the values of an empty input.

#include "support.hpp"

#include <filesystem>

namespace p3d::config::test {
namespace {

TEST(Derive, AnEmptyInputGivesTheDefaultsOfTheStructs) {
  Config expected;
  expected.data.format = DataFormat::synthetic;
  expected.run.output_dir = (std::filesystem::current_path() / "runs/run").string();
  expected.checkpoint.dir = expected.run.output_dir + "/checkpoints";
  expected.model.head_size = 16;  // hidden / heads
  expected.model.qkv_bias = true;
  EXPECT_EQ(good(""), expected);
}

TEST(Derive, KvHeadsFollowHeads) {
  EXPECT_EQ(good("[model]\nheads = 8\n").model.kv_heads, 8);
  EXPECT_EQ(good("[model]\nheads = 8\nkv_heads = 2\n").model.kv_heads, 2);
  EXPECT_EQ(good("[model]\nheads = 8\n").model.head_size, 8);
  EXPECT_EQ(good("[model]\nheads = 8\nhead_dim = 10\n").model.head_dim(), 10);
  EXPECT_EQ(good("[model]\nhidden = 60\nheads = 8\nhead_dim = 10\n").model.head_dim(), 10);
  EXPECT_TRUE(good("").model.qkv_bias);
  EXPECT_FALSE(good("[model]\nbias = false\n").model.has_qkv_bias());
  EXPECT_TRUE(good("[model]\nbias = false\nqkv_bias = true\n").model.has_qkv_bias());
}

TEST(Derive, FfnFollowsHiddenAndActivation) {
  EXPECT_EQ(good("[model]\nhidden = 100\n").model.ffn, 400);
  // 8/3 hidden, rounded up to a multiple of 16: 8/3 * 96 = 256, 8/3 * 100 = 266.7 -> 272, 8/3 * 102 = 272, 8/3 * 4096
  // -> 10928.
  auto const swiglu = [](int hidden) {
    return good("[model]\nactivation = \"swiglu\"\nheads = 2\nhidden = " + std::to_string(hidden) + "\n").model.ffn;
  };
  EXPECT_EQ(swiglu(96), 256);
  EXPECT_EQ(swiglu(100), 272);
  EXPECT_EQ(swiglu(102), 272);
  EXPECT_EQ(swiglu(4096), 10928);
  EXPECT_EQ(good("[model]\nhidden = 100\nffn = 12\n").model.ffn, 12);
}

TEST(Derive, DpFollowsTheRanks) {
  EXPECT_EQ(good("[parallel]\ntp = 2\npp = 2\n", {}, 12).parallel.dp, 3);
  EXPECT_EQ(good("[parallel]\ntp = 2\npp = 2\n", {}, 0).parallel.dp, 1);
  EXPECT_EQ(good("[parallel]\ntp = 2\ndp = 5\n", {}, 0).parallel.dp, 5);
}

TEST(Derive, TheBatch) {
  struct Row {
    char const* text;
    int micro, microbatches, global;
  };
  for (auto const& row :
       {Row{"", 1, 2, 6},  // microbatches = pp
        Row{"micro = 4", 4, 2, 24}, Row{"micro = 2\nglobal = 60", 2, 10, 60}, Row{"microbatches = 5", 1, 5, 15},
        Row{"micro = 2\nmicrobatches = 5", 2, 5, 30}, Row{"micro = 2\nglobal = 30\nmicrobatches = 5", 2, 5, 30}}) {
    auto const b = good(std::string("[parallel]\ndp = 3\npp = 2\n[batch]\n") + row.text + "\n").batch;
    EXPECT_EQ(b.micro, row.micro) << row.text;
    EXPECT_EQ(b.microbatches, row.microbatches) << row.text;
    EXPECT_EQ(b.global, row.global) << row.text;
  }
}

TEST(Derive, MinLrIsATenthOfLr) {
  EXPECT_EQ(good("[optimizer]\nlr = 0.5\n").optimizer.min_lr, 0.05);
  EXPECT_EQ(good("[optimizer]\nlr = 3e-3\n").optimizer.min_lr, 3e-4);
  EXPECT_EQ(good("[optimizer]\nlr = 0.5\nmin_lr = 0\n").optimizer.min_lr, 0.0);
}

TEST(Derive, PathsAreAbsoluteAndStartAtTheRightFolder) {
  auto const here = std::filesystem::current_path().string();
  EXPECT_EQ(good("[run]\nname = \"abc\"\n").run.output_dir, here + "/runs/abc");
  EXPECT_EQ(good("[run]\noutput_dir = \"./x/../y/\"\n").run.output_dir, here + "/y");
  EXPECT_EQ(good("[run]\noutput_dir = \"/a/b\"\n").run.output_dir, "/a/b");
  std::string const root = P3D_SOURCE_DIR;
  EXPECT_EQ(good("[data]\npath = [\"inputs/../LICENSE\", \"src/\"]\n").data.path,
            (std::vector<std::string>{root + "/LICENSE", root + "/src"}));
  EXPECT_EQ(good("", {"data.path=abc"}).data.path, (std::vector<std::string>{here + "/abc"}));
}

TEST(Derive, IntegersAreNumbers) { EXPECT_EQ(good("[optimizer]\nlr = 1\ngrad_clip = 2\n").optimizer.grad_clip, 2.0); }

}  // namespace
}  // namespace p3d::config::test
