// SPDX-License-Identifier: Apache-2.0
#pragma once
// The Cartesian mesh: one MPI_Cart_create, then MPI_Cart_sub for every group that is asked for, all up front.

#include <p3d/comm/communicator.hpp>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

namespace p3d::comm {

/// One dimension of the Cartesian communicator: a name ("tp") and a size.
struct MeshAxis {
  std::string name;
  int size = 1;
};

/// The dimensions of a mesh, and the axes by which its groups are named: each is a set of dimensions, so two axes may
/// overlap (the experts' factorisation of the same ranks).
struct MeshShape {
  struct NamedAxis {
    std::string name;
    std::vector<std::size_t> dimensions;  ///< indices, fastest first
  };
  std::vector<MeshAxis> dimensions;  ///< fastest (neighbouring ranks) first
  std::vector<NamedAxis> axes;
};
/// Every dimension is an axis.
MeshShape plain_shape(std::vector<MeshAxis> axes_fastest_first);

/// A mesh over all ranks of a communicator. Ranks keep their number (reorder = 0), so coordinates follow from the order
/// by arithmetic.
class Mesh {
public:
  using Names = std::vector<std::string>;

  /// `sets`: the groups to make, each by the names of its axes; the same list in the same order on all ranks. Throws
  /// base::Error when the product of the sizes is not the number of ranks, on all ranks, with every factor shown.
  Mesh(Communicator const& parent, MeshShape shape, std::vector<Names> const& sets);

  Communicator& world() { return cart_; }
  /// Coordinate of this rank along an axis.
  int coordinate(std::string const& axis) const;
  int size(std::string const& axis) const;
  /// The ranks that differ from this one only along `axis`; rank in it = coordinate.
  Communicator& along(std::string const& axis);
  /// The ranks that differ only along the given axes, in the order of their rank in world. Named in alphabetical order,
  /// "dp+tp"; all dimensions together are world(). A set that was not made is served by one that differs from it only
  /// in axes of size 1; without that, throws base::Error.
  Communicator& along(Names const& axes);
  Communicator& along(std::initializer_list<char const*> axes);  ///< along({"dp", "tp"})
  /// Number of communicators beside world().
  std::size_t num_groups() const { return groups_.size(); }
  /// Sets how the all-reduces of all these groups are carried out. Collective; over all ranks of the program it opens
  /// the memory that ranks of a node share. `settings.nccl` holds for groups whose ranks differ along `nccl_axes` only.
  void prepare(AllReduceSettings const& settings, std::size_t buffer_bytes = 0, Names const& nccl_axes = {});
  /// On this rank, by axis: "dp shared; tp shared". Only of the axes that a set was asked for.
  std::string describe_all_reduce() const;

private:
  struct Group {
    std::size_t mask = 0;  ///< of dimensions
    Communicator communicator;
  };
  std::size_t mask_of(Names const& axes) const;
  std::size_t extent_of(std::size_t mask) const;  ///< without dimensions of size 1
  /// What the blocking `make` makes, or a duplicate of the one that is kept.
  template <class Make>
  Communicator make_or_duplicate(std::string const& name, std::size_t mask, Make const& make) const;
  std::size_t all_dimensions() const { return (std::size_t{1} << shape_.dimensions.size()) - 1; }
  Group const* find(std::size_t mask) const;
  void add_group(Names const& set);

  MeshShape shape_;
  bool keeps_ = false;  ///< keep_mesh_groups(), and over all ranks
  std::vector<int> coordinates_;
  Communicator cart_;
  std::vector<Group> groups_;
};

/// From now on the communicators of meshes over all ranks of the program are kept until it ends, and the same mesh made
/// again duplicates them, which blocks nowhere. For programs that make many meshes, as tests do: where ranks outnumber
/// cores, making one takes tens of milliseconds of polling. Local; on all ranks before the first mesh.
void keep_mesh_groups();

}  // namespace p3d::comm
