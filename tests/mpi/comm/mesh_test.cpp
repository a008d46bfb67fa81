// SPDX-License-Identifier: Apache-2.0
// The mesh against plain arithmetic: coordinate of axis i = rank / (product of the faster sizes) % size.
#include <support/mpi_main.hpp>

#include <p3d/comm/mesh.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

using namespace p3d::comm;

namespace {

using Axes = std::vector<MeshAxis>;

std::vector<int> coordinates(Axes const& axes, int rank) {
  std::vector<int> out;
  for (auto const& axis : axes) {
    out.push_back(rank % axis.size);
    rank /= axis.size;
  }
  return out;
}

/// World ranks that share the coordinates of `me` outside the mask, in order.
std::vector<int> group(Axes const& axes, int me, unsigned mask, int num_ranks) {
  std::vector<int> members;
  auto const mine = coordinates(axes, me);
  for (int r = 0; r < num_ranks; ++r) {
    auto const other = coordinates(axes, r);
    bool same = true;
    for (std::size_t i = 0; i < axes.size(); ++i) same = same && ((mask >> i & 1u) || mine[i] == other[i]);
    if (same) members.push_back(r);
  }
  return members;
}

/// The world ranks behind a communicator, in its order; no communication.
std::vector<int> members_of(Communicator const& comm) {
  MPI_Group part, world;
  MPI_Comm_group(comm.mpi(), &part);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  std::vector<int> in(static_cast<std::size_t>(comm.size())), out(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>(i);
  MPI_Group_translate_ranks(part, comm.size(), in.data(), world, out.data());
  MPI_Group_free(&part);
  MPI_Group_free(&world);
  return out;
}

/// Every set of axes.
std::vector<Mesh::Names> every_set(Axes const& axes) {
  std::vector<Mesh::Names> sets;
  for (unsigned mask = 0; mask < 1u << axes.size(); ++mask) {
    auto& names = sets.emplace_back();
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (mask >> i & 1u) names.push_back(axes[i].name);
    }
  }
  return sets;
}

void check(Mesh& mesh, Axes const& axes, int me, int num_ranks) {
  auto const mine = coordinates(axes, me);
  EXPECT_EQ(mesh.world().name(), "world");
  EXPECT_EQ(mesh.world().rank(), me);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    EXPECT_EQ(mesh.coordinate(axes[i].name), mine[i]);
    EXPECT_EQ(mesh.size(axes[i].name), axes[i].size);
    auto& line = mesh.along(axes[i].name);
    EXPECT_EQ(line.rank(), mine[i]);
    EXPECT_EQ(line.name(), axes[i].name);
  }
  for (unsigned mask = 0; mask < 1u << axes.size(); ++mask) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (mask >> i & 1u) names.push_back(axes[i].name);
    }
    EXPECT_EQ(members_of(mesh.along(names)), group(axes, me, mask, num_ranks)) << "subset " << mask;
  }
}

// Every order with every triple of sizes while each rank has a core. Making communicators is slow beyond that (MPI
// polls), and the mesh sees only the sequence of sizes, so there every sequence comes once, the orders take turns, and
// the sizes that differ most come in every order.
TEST(Mesh, AgreesWithArithmeticForEveryOrderAndSize) {
  auto world = Communicator::world();
  int const p = world.size();
  bool const all = p <= 4;
  int made = 0;
  int triple = 0;
  for (int dp = 1; dp <= p; ++dp) {
    for (int tp = 1; dp * tp <= p; ++tp) {
      if (p % (dp * tp) != 0) continue;
      int const pp = p / dp / tp;
      std::map<std::string, int> const sizes{{"dp", dp}, {"tp", tp}, {"pp", pp}};
      std::vector<std::string> order{"dp", "pp", "tp"};
      int number = 0;
      do {
        bool const every_order = all || (tp == 2 && dp == p / 2);
        if (!every_order && number++ % 6 != triple % 6) continue;
        Axes axes;
        std::string text;
        for (auto const& name : order) {
          axes.push_back({name, sizes.at(name)});
          text += name + "=" + std::to_string(sizes.at(name)) + " ";
        }
        SCOPED_TRACE(text);
        Mesh mesh(world, plain_shape(axes), every_set(axes));
        check(mesh, axes, world.rank(), p);
        ++made;
      } while (std::next_permutation(order.begin(), order.end()));
      ++triple;
    }
  }
  EXPECT_GE(made, all ? 6 * triple : triple + 5);
}

TEST(Mesh, GroupsAddUpTheirMembers) {
  auto world = Communicator::world();
  int const p = world.size();
  int const tp = p % 2 == 0 ? 2 : 1;
  Axes const axes{{"tp", tp}, {"pp", p / tp}, {"dp", 1}};
  Mesh mesh(world, plain_shape(axes), every_set(axes));
  for (unsigned mask = 0; mask < 8; ++mask) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < 3; ++i) {
      if (mask >> i & 1u) names.push_back(axes[i].name);
    }
    std::int64_t sum = 1 << world.rank();
    std::int64_t expected = 0;
    for (int r : group(axes, world.rank(), mask, p)) expected += 1 << r;
    mesh.along(names).all_reduce(&sum, 1, Type::int64, Reduction::sum).wait();
    EXPECT_EQ(sum, expected) << "subset " << mask;
  }
}

TEST(Mesh, NamesSubsetsInAlphabeticalOrder) {
  auto world = Communicator::world();
  Axes const axes{{"tp", 1}, {"pp", world.size()}, {"dp", 1}};
  Mesh mesh(world, plain_shape(axes), every_set(axes));
  EXPECT_EQ(mesh.along({"tp", "dp"}).name(), "dp+tp");
  EXPECT_EQ(mesh.along({"dp", "tp"}).name(), "dp+tp");
  EXPECT_EQ(mesh.along({"pp", "tp"}).name(), "pp+tp");
  EXPECT_EQ(mesh.along({"pp", "tp", "dp"}).name(), "world");
  EXPECT_THROW(mesh.along("cp"), p3d::base::Error);
}

TEST(Mesh, MakesTheSetsThatWereAskedForAndNoOthers) {
  auto world = Communicator::world();
  int const p = world.size(), tp = p % 2 == 0 ? 2 : 1;
  Mesh mesh(world, plain_shape({{"tp", tp}, {"pp", p / tp}, {"dp", 1}}), {{"tp"}, {"tp", "dp"}, {"tp"}});
  EXPECT_EQ(mesh.num_groups(), 2u);
  EXPECT_EQ(mesh.along("tp").size(), tp);
  EXPECT_EQ(mesh.along({"pp", "tp", "dp"}).size(), p);
  if (p / tp == 1) {  // then pp is nothing more than the dp that was asked for
    EXPECT_EQ(&mesh.along({"pp", "tp"}), &mesh.along("tp"));
    return;
  }
  try {
    mesh.along({"pp", "dp"});
    ADD_FAILURE() << "a group that nobody asked for";
  } catch (p3d::base::Error const& e) {
    EXPECT_NE(e.text().expected.find("tp, dp+tp"), std::string::npos) << e.what();
    EXPECT_NE(e.text().found.find("'dp+pp'"), std::string::npos) << e.what();
  }
}

// Two factorisations of the same ranks: a dimension of 2 and the rest are the axes "inner" and "outer", and both
// together "both".
TEST(Mesh, AnAxisMayBeSeveralDimensions) {
  auto world = Communicator::world();
  int const p = world.size(), inner = p % 2 == 0 ? 2 : 1, me = world.rank();
  MeshShape const shape{{{"x0", inner}, {"y", 1}, {"x1", p / inner}},
                        {{"inner", {0}}, {"outer", {2}}, {"both", {0, 2}}}};
  Mesh mesh(world, shape, {{"inner"}, {"both"}});
  EXPECT_EQ(mesh.size("both"), p);
  EXPECT_EQ(mesh.coordinate("both"), me);
  EXPECT_EQ(mesh.coordinate("outer"), me / inner);
  EXPECT_EQ(mesh.along("both").rank(), me);
  EXPECT_EQ(mesh.along("both").name(), "both");
  EXPECT_EQ(&mesh.along({"inner", "outer"}), &mesh.along("both"));
  std::vector<int> pair;
  for (int i = 0; i < inner; ++i) pair.push_back(me / inner * inner + i);
  EXPECT_EQ(members_of(mesh.along("inner")), pair);
}

TEST(Mesh, AWrongProductIsRefusedOnAllRanksWithEveryFactor) {
  auto world = Communicator::world();
  for (int wrong : {world.size() + 1, 0, -1, 1 << 20}) {
    try {
      Mesh mesh(world, plain_shape({{"tp", wrong}, {"pp", 1 << 20}, {"dp", 7}}), {});
      ADD_FAILURE() << "a mesh was made";
    } catch (p3d::base::Error const& e) {
      EXPECT_EQ(e.code(), p3d::base::ExitCode::bad_input);
      EXPECT_NE(e.text().found.find("tp = " + std::to_string(wrong) + " * pp = 1048576 * dp = 7"), std::string::npos)
          << e.what();
      EXPECT_NE(e.text().expected.find(std::to_string(world.size())), std::string::npos) << e.what();
    }
  }
}

// Last, because it holds from then on: a mesh made again has communicators of its own with the same ranks.
TEST(Mesh, GroupsThatAreKeptAreDuplicated) {
  keep_mesh_groups();
  auto world = Communicator::world();
  int const p = world.size(), inner = p % 2 == 0 ? 2 : 1;
  for (Axes const& axes : {Axes{{"tp", inner}, {"dp", p / inner}}, Axes{{"tp", p / inner}, {"dp", inner}}}) {
    Mesh first(world, plain_shape(axes), every_set(axes)), again(world, plain_shape(axes), every_set(axes));
    EXPECT_EQ(again.num_groups(), first.num_groups());
    for (unsigned mask = 0; mask < 4; ++mask) {
      Mesh::Names names;
      for (std::size_t i = 0; i < axes.size(); ++i) {
        if (mask >> i & 1u) names.push_back(axes[i].name);
      }
      auto const members = group(axes, world.rank(), mask, p);
      EXPECT_EQ(members_of(first.along(names)), members);
      EXPECT_EQ(members_of(again.along(names)), members);
      EXPECT_EQ(again.along(names).name(), first.along(names).name());
      // Sums begin in another order on half of the ranks: one communicator for both would mix them up.
      std::int64_t ones = 1, tens = 10;
      Request a, b;
      auto const begin = [&](Mesh& mesh, std::int64_t& value) {
        return mesh.along(names).all_reduce(&value, 1, Type::int64, Reduction::sum);
      };
      if (world.rank() % 2 == 0) a = begin(first, ones);
      b = begin(again, tens);
      if (world.rank() % 2 != 0) a = begin(first, ones);
      a.wait();
      b.wait();
      auto const count = static_cast<std::int64_t>(members.size());
      EXPECT_EQ(ones, count);
      EXPECT_EQ(tens, 10 * count);
    }
  }
  // What is not over all ranks is made anew.
  auto half = world.split(world.rank() % 2, world.rank(), "half");
  Mesh const small(half, plain_shape({{"tp", half.size()}}), {{"tp"}});
  EXPECT_EQ(small.num_groups(), 0u);
}

}  // namespace
