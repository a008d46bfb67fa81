// SPDX-License-Identifier: Apache-2.0
// The keys of [memory]: their values, and rules between them.
#include "support.hpp"

namespace p3d::config::test {
namespace {

TEST(Memory, ReadsWhatIsRecomputed) {
  EXPECT_EQ(good("").memory.recompute, Recompute::none);
  EXPECT_EQ(good("[memory]\nrecompute = \"full\"\n").memory.recompute, Recompute::full);
  auto const list = good("[memory]\nrecompute = [\"attention\", \"norm\"]\n").memory;
  EXPECT_EQ(list.recompute, Recompute::list);
  EXPECT_EQ(list.recompute_ops, (RecomputedOps{.norm = true, .attention = true}));
  EXPECT_EQ(only_fault(parse("[memory]\nrecompute = [\"norm\", \"gelu\"]\n")).key, "memory.recompute");
  EXPECT_EQ(only_fault(parse("[memory]\nrecompute = \"norm\"\n")).key, "memory.recompute");
}

/// One fault, of this key, with these words.
void refused(std::string const& text, char const* key, char const* expected, char const* found) {
  auto const fault = only_fault(parse("[memory]\n" + text));
  EXPECT_EQ(fault.key, key) << text;
  expect_contains(fault.expected, expected);
  expect_contains(fault.found, found);
}

TEST(Memory, KeysOfFullRecomputationNeedIt) {
  for (std::string const key :
       {"recompute_every = 2", "recompute_layers = 2", "recompute_group = 2", "recompute_microbatches_kept = 2",
        "recompute_communication = false", "share_saved_inputs = true"}) {
    auto const name = "memory." + key.substr(0, key.find(' '));
    refused(key, name.c_str(), "only with recompute = \"full\"", "another recompute");
    refused("recompute = [\"norm\"]\n" + key, name.c_str(), "only with recompute = \"full\"", "another recompute");
  }
}

TEST(Memory, ValuesOfFullRecomputationGoTogether) {
  std::string const full = "recompute = \"full\"\n";
  refused(full + "recompute_every = 2\nrecompute_layers = 4\n", "memory.recompute_every",
          "every n-th layer, or the first n", "recompute_every 2, recompute_layers 4");
  refused(full + "recompute_every = 3\nrecompute_group = 2\n", "memory.recompute_group", "groups of neighbouring",
          "recompute_group 2 of every 3th layer");
  refused(full + "recompute_communication = false\n", "memory.recompute_communication", "no sums over tp", "tp 1");
  refused(full + "share_saved_inputs = true\n", "memory.share_saved_inputs", "nobody to share inputs with", "tp 1");
  refused(full + "recompute_communication = false\nrecompute_group = 2\n[parallel]\ntp = 2\n", "memory.recompute_group",
          "groups whose sums over tp are made again", "recompute_communication false");
  good("[memory]\n" + full +
       "recompute_layers = 4\nrecompute_group = 2\nrecompute_microbatches_kept = 1\nshare_saved_inputs = true\n"
       "[parallel]\ntp = 2\n");
  good("[memory]\n" + full + "recompute_every = 2\nrecompute_communication = false\n[parallel]\ntp = 2\n");
}

}  // namespace
}  // namespace p3d::config::test
