// SPDX-License-Identifier: Apache-2.0
// A mesh of six axes: 2^6 groups of which 32 have two ranks, as many as five axes of two ranks make. Each has its
// region of the node's memory, or is refused with the reason.
//
// With P3D_SMALL_SHM set, /dev/shm is too small for that (small_shm_test.sh).
#include <support/mpi_main.hpp>

#include <p3d/base/error.hpp>
#include <p3d/comm/mesh.hpp>

#include <cstdlib>

using namespace p3d;

namespace {

std::int64_t sum(comm::Communicator& group) {
  std::vector<std::int64_t> values(100000, group.rank() + 1);
  group.all_reduce(values.data(), 100000, comm::Type::int64, comm::Reduction::sum).wait();
  EXPECT_EQ(values.front(), values.back());
  return values.back();
}

std::vector<comm::Mesh::Names> every_set() {
  std::vector<comm::Mesh::Names> sets(64);
  for (unsigned mask = 0; mask < 64; ++mask) {
    for (unsigned i = 0; i < 6; ++i) {
      if (mask >> i & 1) sets[mask].emplace_back(1, static_cast<char>('a' + i));
    }
  }
  return sets;
}

comm::Mesh make_mesh() {
  auto world = comm::Communicator::world();
  return {world, comm::plain_shape({{"a", world.size()}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}}),
          every_set()};
}

TEST(ManyGroups, EachHasRoomInTheNodesMemory) {
  if (std::getenv("P3D_SMALL_SHM") != nullptr) GTEST_SKIP();
  auto mesh = make_mesh();
  mesh.prepare({comm::AllReduce::shared});
  int groups = 0;
  for (auto const& set : every_set()) {
    auto& group = mesh.along(set);
    if (group.size() == 1) continue;
    ++groups;
    EXPECT_EQ(group.describe_all_reduce(), "shared") << group.name();
    EXPECT_EQ(sum(group), group.size() * (group.size() + 1) / 2) << group.name();
  }
  EXPECT_EQ(groups, 32);
}

TEST(ManyGroups, AFullShmIsAnAnswer) {
  if (std::getenv("P3D_SMALL_SHM") == nullptr) GTEST_SKIP();
  auto mesh = make_mesh();
  try {
    mesh.prepare({comm::AllReduce::shared});
    FAIL() << "it found room";
  } catch (base::Error const& e) {
    std::string const found = e.text().found;
    EXPECT_TRUE(found == "none: no memory is left in /dev/shm" || found == "none on some other rank") << found;
  }
  auto again = make_mesh();
  again.prepare({comm::AllReduce::automatic});  // does without
  EXPECT_EQ(sum(again.world()), again.world().size() * (again.world().size() + 1) / 2);
}

}  // namespace
