// SPDX-License-Identifier: Apache-2.0
#pragma once
// Inputs and clusters of tests of the planner, from words and from the files of the project.

#include <p3d/config/cluster.hpp>
#include <p3d/config/parse.hpp>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace p3d::test {

inline auto parsed(std::vector<std::string> overrides, int ranks) {
  overrides.insert(overrides.begin(), "data.format=synthetic");
  return config::parse_text("", "test", "/", overrides, ranks);
}

inline config::Config input(std::vector<std::string> const& overrides) {
  auto result = parsed(overrides, 0);
  if (!result.config) throw std::runtime_error(config::format(result.errors));
  return *result.config;
}

inline config::Cluster cluster(std::string const& name) {
  auto result = config::parse_cluster_file(std::string(P3D_SOURCE_DIR) + "/inputs/clusters/" + name + ".toml");
  if (!result.cluster) throw std::runtime_error(config::format(result.errors));
  return *result.cluster;
}

}  // namespace p3d::test
