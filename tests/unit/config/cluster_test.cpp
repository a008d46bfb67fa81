// SPDX-License-Identifier: Apache-2.0
// cluster.toml: its values, its defaults, and every kind of error with its place.
#include <p3d/config/cluster.hpp>

#include <gtest/gtest.h>

namespace {
using namespace p3d;

constexpr char const* good = R"(name = "Two nodes"
[device]
name = "D1"
bf16 = 312e12
memory = 80e9
bandwidth = 2e12
[gemm]
best = 0.75
units = 108
[[level]]
name = "node"
size = 8
bandwidth = 300e9
share = [[1e6, 0.1], [1e9, 0.8]]
[[level]]
name = "network"
bandwidth = 25e9
latency = 5e-6
)";

TEST(ClusterFile, ReadsValuesAndDefaults) {
  auto const r = config::parse_cluster(good, "c.toml");
  ASSERT_TRUE(r.cluster) << config::format(r.errors);
  EXPECT_EQ(r.cluster->name, "Two nodes");
  EXPECT_EQ(r.cluster->peak(config::Precision::bf16), 312e12);
  EXPECT_EQ(r.cluster->peak(config::Precision::fp64), 0);
  EXPECT_EQ(r.cluster->gemm.best, 0.75);
  EXPECT_EQ(r.cluster->gemm.align, 8);
  ASSERT_EQ(r.cluster->levels.size(), 2U);
  EXPECT_EQ(r.cluster->levels[0].share.back(), (std::pair{1e9, 0.8}));
  EXPECT_EQ(r.cluster->levels[1].size, 0);
}

TEST(ClusterFile, MessagesTakeTheClosestLevel) {
  auto const c = *config::parse_cluster(good, "c.toml").cluster;
  EXPECT_EQ(c.level(1).name, "node");
  EXPECT_EQ(c.level(7).name, "node");
  EXPECT_EQ(c.level(8).name, "network");
  EXPECT_EQ(c.level(1000).name, "network");
}

/// The errors of `good` with one text in place of another.
std::vector<config::KeyError> errors_of(std::string const& from, std::string const& to) {
  std::string text = good;
  text.replace(text.find(from), from.size(), to);
  return config::parse_cluster(text, "c.toml").errors;
}

TEST(ClusterFile, NamesTheKeyAndThePlace) {
  struct Case {
    char const *from, *to, *key, *where, *words;
  };
  for (auto const& c : {
           Case{"bf16", "bf61", "device.bf61", "c.toml:4:1", "did you mean bf16?"},
           Case{"[gemm]", "[gem]", "gem", "c.toml:7:2", "did you mean gemm?"},
           Case{"0.75", "7.5", "gemm.best", "c.toml:8:8", "(0, 1]"},
           Case{"size = 8", "size = 1", "level.size", "c.toml:12:8", ""},
           Case{"bandwidth = 25e9\n", "", "level.bandwidth", "c.toml:15:1", "the bandwidth of the level"},
           Case{"[1e9, 0.8]", "[1e5, 0.8]", "level.share", "c.toml:14:22", "ascend"},
           Case{"memory = 80e9\n", "", "device.memory", "c.toml", "the bytes of a device's memory"},
           Case{"bf16 = 312e12\n", "", "device", "c.toml", "operations per second"},
           Case{"[device]", "[device", "", "c.toml:2:8", "TOML"},
       }) {
    auto const all = errors_of(c.from, c.to);
    ASSERT_EQ(all.size(), 1U) << c.from << '\n' << config::format(all);
    EXPECT_EQ(all[0].key, c.key);
    EXPECT_EQ(all[0].where, c.where) << c.from;
    EXPECT_NE(config::format(all).find(c.words), std::string::npos) << config::format(all);
  }
}

TEST(ClusterFile, LevelsNest) {
  auto const all = errors_of("bandwidth = 25e9", "size = 12\nbandwidth = 25e9");
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].expected, "a multiple of 8, the size of the level before, and more than it");
  EXPECT_EQ(all[0].found, "12");
}

TEST(ClusterFile, NoFile) {
  auto const r = config::parse_cluster_file("/nowhere/c.toml");
  ASSERT_EQ(r.errors.size(), 1U);
  EXPECT_EQ(r.errors[0].expected, "a cluster file");
}

}  // namespace
