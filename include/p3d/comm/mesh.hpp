// SPDX-License-Identifier: Apache-2.0
#pragma once
// The Cartesian mesh: one MPI_Cart_create, then MPI_Cart_sub for every group that reductions need, all up front.

#include <p3d/comm/communicator.hpp>

#include <initializer_list>
#include <string>
#include <vector>

namespace p3d::comm {

/// One axis of the mesh: a name ("tp") and a size.
struct MeshAxis {
  std::string name;
  int size = 1;
};

/// A mesh over all ranks of a communicator; axes are given fastest (neighbouring ranks) first. Ranks keep their number
/// (reorder = 0), so coordinates follow from the order by arithmetic.
class Mesh {
public:
  /// Throws base::Error when the product of the sizes is not the number of ranks, on all ranks, with every factor
  /// shown.
  Mesh(Communicator const& parent, std::vector<MeshAxis> axes_fastest_first);

  Communicator& world() { return cart_; }
  /// Coordinate of this rank along an axis.
  int coordinate(std::string const& axis) const;
  int size(std::string const& axis) const;
  /// The ranks that differ from this one only along `axis`; rank in it = coordinate.
  Communicator& along(std::string const& axis);
  /// The ranks that differ only along the given axes (made up front for every subset of the axes), in
  /// the order of their rank in world. Named in alphabetical order: "dp+tp"; all axes together are world().
  Communicator& along(std::vector<std::string> const& axes);
  Communicator& along(std::initializer_list<char const*> axes);  ///< along({"dp", "tp"})
  /// Sets how the all-reduces of all these groups are carried out. Collective; over all ranks of the program it opens
  /// the memory that ranks of a node share.
  void prepare(AllReduceSettings const& settings, std::size_t buffer_bytes = 0);
  /// On this rank, by group: "dp shared, tp shared".
  std::string describe_all_reduce() const;

private:
  std::vector<MeshAxis> axes_;
  std::vector<int> coordinates_;
  Communicator cart_;
  std::vector<Communicator> subsets_;  ///< by bit mask of axes
};

}  // namespace p3d::comm
