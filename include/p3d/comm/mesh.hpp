// SPDX-License-Identifier: Apache-2.0
#pragma once
// The Cartesian mesh of ranks: one MPI_Cart_create, then one MPI_Cart_sub for every group that is asked for, all at the
// start. Example: with tp=2 (fastest) and dp=2, rank 3 has coordinates dp 1, tp 1; along("tp") is the communicator of
// ranks 2 and 3.

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

/// The dimensions of a mesh, and the axes that name its groups. Each axis is a set of dimensions, so two axes may
/// overlap (the experts' factorisation of the same ranks).
struct MeshShape {
  /// An axis that is a set of dimensions.
  struct NamedAxis {
    std::string name;
    std::vector<std::size_t> dimensions;  ///< indices, fastest first
  };
  std::vector<MeshAxis> dimensions;  ///< fastest (neighbouring ranks) first
  std::vector<NamedAxis> axes;
};
/// The shape in which every dimension is an axis of its own.
MeshShape plain_shape(std::vector<MeshAxis> axes_fastest_first);

/// A mesh over all ranks of a communicator. Ranks keep their number (reorder = 0), so coordinates follow from the order
/// by arithmetic.
class Mesh {
public:
  using Names = std::vector<std::string>;

  /// Makes the groups of `sets`, each named by its axes; the list and its order must be the same on all ranks. Throws
  /// base::Error on all ranks, with every factor shown, when the product of the sizes is not the number of ranks.
  /// Collective.
  Mesh(Communicator const& parent, MeshShape shape, std::vector<Names> const& sets);

  Communicator& world() { return cart_; }
  /// The coordinate of this rank along an axis.
  int coordinate(std::string const& axis) const;
  /// The number of ranks along an axis.
  int size(std::string const& axis) const;
  /// The group of ranks that differ from this one only along `axis`; the rank in it is the coordinate.
  Communicator& along(std::string const& axis);
  /// The group of ranks that differ from this one only along the given axes, in the order of their rank in world. Its
  /// name is made of the axes in alphabetical order, "dp+tp"; all dimensions make world(). A set that was not made is
  /// served by one that differs from it only in axes of size 1; when there is none, throws base::Error.
  Communicator& along(Names const& axes);
  Communicator& along(std::initializer_list<char const*> axes);  ///< along({"dp", "tp"})
  /// The number of communicators beside world().
  std::size_t num_groups() const { return groups_.size(); }
  /// Sets how the all-reduces of all groups and of world() are carried out. Collective. A mesh over all ranks of the
  /// program also opens the memory that the ranks of a node share (open_node_memory, with `buffer_bytes`).
  /// `settings.nccl` holds only for groups whose ranks differ along `nccl_axes`.
  void prepare(AllReduceSettings const& settings, std::size_t buffer_bytes = 0, Names const& nccl_axes = {});
  /// The algorithms on this rank by axis, "dp shared; tp shared", for the axes that have a group.
  std::string describe_all_reduce() const;

private:
  /// A communicator with its dimensions.
  struct Group {
    std::size_t mask = 0;  ///< bit i: dimension i
    Communicator communicator;
  };
  /// The dimensions of some axes, as bits.
  std::size_t mask_of(Names const& axes) const;
  /// The dimensions of `mask` whose size is not 1.
  std::size_t extent_of(std::size_t mask) const;
  /// The communicator that the blocking `make` makes, or a duplicate of the one that is kept for these dimensions.
  template <class Make>
  Communicator make_or_duplicate(std::string const& name, std::size_t mask, Make const& make) const;
  std::size_t all_dimensions() const { return (std::size_t{1} << shape_.dimensions.size()) - 1; }
  Group const* find(std::size_t mask) const;
  void add_group(Names const& set);

  MeshShape shape_;
  bool keeps_ = false;  ///< keep_mesh_groups() was called, and the mesh covers all ranks
  std::vector<int> coordinates_;
  Communicator cart_;
  std::vector<Group> groups_;
};

/// Keeps the communicators of meshes over all ranks of the program until it ends; the same mesh made again duplicates
/// them, which does not block. It is for programs that make many meshes, as tests do: where ranks outnumber cores,
/// making one takes tens of milliseconds of polling. Local; all ranks call it before their first mesh.
void keep_mesh_groups();

}  // namespace p3d::comm
