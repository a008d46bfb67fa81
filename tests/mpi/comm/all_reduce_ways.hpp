// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tests of all-reduces share: the ways in which they are made, and a communicator for each.

#include <p3d/comm/communicator.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <string>

namespace p3d::test {

using namespace p3d::comm;

struct Way {
  AllReduce algorithm;
  int ranks_per_node;  ///< 0: as it is
};
inline std::string name(Way const& w) {
  return std::string(to_string(w.algorithm)) + "_nodes_of_" + std::to_string(w.ranks_per_node);
}

inline constexpr std::size_t room_for_buffers = std::size_t{8} << 20;

class AllReduceWays : public ::testing::TestWithParam<Way> {
protected:
  AllReduceWays() : world(communicator(GetParam())) { set_ranks_per_node(GetParam().ranks_per_node); }
  ~AllReduceWays() override { set_ranks_per_node(0); }
  static void TearDownTestSuite() { communicators().clear(); }

  /// One for each way, for all tests: making one takes long when ranks outnumber cores.
  static std::map<std::string, Communicator>& communicators() {
    static std::map<std::string, Communicator> all;
    return all;
  }
  static Communicator& communicator(Way const& way) {
    auto& comm = communicators()[name(way)];
    if (!comm.valid()) {
      open_node_memory(room_for_buffers);
      set_ranks_per_node(way.ranks_per_node);
      comm = Communicator::world();
      comm.prepare({way.algorithm});
    }
    return comm;
  }

  Communicator& world;
  int const p = world.size();
  int const me = world.rank();
};

}  // namespace p3d::test
