// SPDX-License-Identifier: Apache-2.0
// The mesh: its communicators are made once, at the start, by MPI_Cart_create and MPI_Cart_sub. A group is a mask of
// dimensions. Two groups whose masks differ only in dimensions of size 1 hold the same ranks, so find() accepts one for
// the other. Example: with pp = 1 the groups of tp and of tp x pp share one communicator.
#include <p3d/comm/mesh.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/wait.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "internal.hpp"

namespace p3d::comm {

namespace {

template <class Axis>
Axis const& find_axis(std::vector<Axis> const& axes, std::string const& name) {
  std::vector<std::string> known;
  for (auto const& axis : axes) {
    if (axis.name == name) return axis;
    known.push_back(axis.name);
  }
  throw base::Error({.expected = "an axis of the mesh: " + base::join(known),
                     .found = fmt::format("'{}'", name),
                     .where = fmt::format("rank {}, mesh", base::log_rank()),
                     .fix = "ask for an axis that the mesh was made with"});
}

/// The name of a set of axes, "dp+tp": in alphabetical order, whatever the order of the mesh.
std::string set_name(Mesh::Names names) {
  std::sort(names.begin(), names.end());
  return names.empty() ? "self" : base::join(names, "+");
}

/// The kept communicators, by the mesh's sizes and the group's dimensions; null when none are kept. The map is never
/// destroyed, as MPI ends before it would be.
std::map<std::vector<std::size_t>, Communicator>* kept_groups = nullptr;

/// True when `comm` holds all ranks of the program.
bool over_all_ranks(MPI_Comm comm) {
  int result = MPI_UNEQUAL;
  detail::check(MPI_Comm_compare(comm, MPI_COMM_WORLD, &result), "MPI_Comm_compare", "world");
  return result == MPI_CONGRUENT || result == MPI_IDENT;
}

/// Throws unless the product of the sizes is the number of ranks.
void check_axes(std::vector<MeshAxis> const& axes, int num_ranks) {
  P3D_REQUIRE(!axes.empty() && axes.size() < 16, "a mesh has 1 to 15 axes");
  std::int64_t product = 1;
  bool positive = true;
  std::vector<std::string> factors;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      P3D_REQUIRE(axes[i].name != axes[j].name, "axes of a mesh have different names");
    positive = positive && axes[i].size >= 1;
    // The product saturates: a wrong product must not overflow into the right one.
    product = std::min<std::int64_t>(product * std::max(axes[i].size, 0), std::int64_t{1} << 31);
    factors.push_back(fmt::format("{} = {}", axes[i].name, axes[i].size));
  }
  if (positive && product == num_ranks) return;
  base::refuse({.expected = fmt::format("sizes whose product is the number of ranks, {}", num_ranks),
                .found = fmt::format("{}{}: product {}", base::join(factors, " * "),
                                     positive ? "" : " (every size is at least 1)", product),
                .where = fmt::format("rank {} of {}, mesh", base::log_rank(), base::log_num_ranks()),
                .fix = fmt::format("start {} ranks, or change the sizes", positive ? product : num_ranks)});
}

}  // namespace

MeshShape plain_shape(std::vector<MeshAxis> axes_fastest_first) {
  MeshShape shape;
  shape.dimensions = std::move(axes_fastest_first);
  for (std::size_t i = 0; i < shape.dimensions.size(); ++i) shape.axes.push_back({shape.dimensions[i].name, {i}});
  return shape;
}

void keep_mesh_groups() {
  if (!kept_groups) kept_groups = new std::map<std::vector<std::size_t>, Communicator>;
}

template <class Make>
Communicator Mesh::make_or_duplicate(std::string const& name, std::size_t mask, Make const& make) const {
  if (!keeps_) return Communicator::adopt(make(), name);
  std::vector<std::size_t> key{mask};
  for (auto const& dimension : shape_.dimensions) key.push_back(static_cast<std::size_t>(dimension.size));
  auto at = kept_groups->find(key);
  if (at == kept_groups->end()) at = kept_groups->emplace(key, Communicator::adopt(make(), name)).first;
  return Communicator(at->second.mpi(), name);
}

Mesh::Mesh(Communicator const& parent, MeshShape shape, std::vector<Names> const& sets) : shape_(std::move(shape)) {
  check_axes(shape_.dimensions, parent.size());
  std::size_t const n = shape_.dimensions.size();
  for (auto const& axis : shape_.axes) {
    for (auto d : axis.dimensions) P3D_REQUIRE(d < n, "an axis is made of dimensions of the mesh: " + axis.name);
  }
  int const ndims = static_cast<int>(n);
  detail::watched_barrier(parent.mpi(), parent.name(), "make the mesh");

  // MPI counts row-major: its last dimension is the fastest.
  std::vector<int> dims(n), periods(n, 0), coordinates(n);
  for (std::size_t i = 0; i < n; ++i) dims[n - 1 - i] = shape_.dimensions[i].size;
  keeps_ = kept_groups != nullptr && over_all_ranks(parent.mpi());
  cart_ = make_or_duplicate("world", all_dimensions(), [&] {
    MPI_Comm handle = MPI_COMM_NULL;
    detail::check(
        blocking("MPI_Cart_create", parent.name(),
                 [&] { return MPI_Cart_create(parent.mpi(), ndims, dims.data(), periods.data(), 0, &handle); }),
        "MPI_Cart_create", parent.name());
    return handle;
  });
  detail::check(MPI_Cart_coords(cart_.mpi(), cart_.rank(), ndims, coordinates.data()), "MPI_Cart_coords", "world");
  coordinates_.assign(coordinates.rbegin(), coordinates.rend());
  for (auto const& set : sets) add_group(set);
}

void Mesh::add_group(Names const& set) {
  auto const mask = mask_of(set), extent = extent_of(mask);
  bool const made = std::any_of(groups_.begin(), groups_.end(), [&](auto const& g) { return g.mask == mask; });
  if (mask == all_dimensions() || made) return;
  auto const name = set_name(set);
  if (extent == 0) {  // making it needs no other rank
    groups_.push_back({mask, Communicator(MPI_COMM_SELF, name)});
    return;
  }
  std::size_t const n = shape_.dimensions.size();
  std::vector<int> remain(n);
  for (std::size_t i = 0; i < n; ++i) remain[n - 1 - i] = static_cast<int>(extent >> i & 1);
  groups_.push_back(
      {mask, make_or_duplicate(name, extent, [&] {
         MPI_Comm part = MPI_COMM_NULL;
         detail::check(blocking("MPI_Cart_sub", name, [&] { return MPI_Cart_sub(cart_.mpi(), remain.data(), &part); }),
                       "MPI_Cart_sub", name);
         return part;
       })});
}

std::size_t Mesh::mask_of(Names const& axes) const {
  std::size_t mask = 0;
  for (auto const& axis : axes) {
    for (auto d : find_axis(shape_.axes, axis).dimensions) mask |= std::size_t{1} << d;
  }
  return mask;
}

std::size_t Mesh::extent_of(std::size_t mask) const {
  for (std::size_t i = 0; i < shape_.dimensions.size(); ++i) {
    if (shape_.dimensions[i].size == 1) mask &= ~(std::size_t{1} << i);
  }
  return mask;
}

Mesh::Group const* Mesh::find(std::size_t mask) const {
  Group const* found = nullptr;
  for (auto const& group : groups_) {
    if (group.mask == mask) return &group;
    if (!found && extent_of(group.mask) == extent_of(mask)) found = &group;
  }
  return found;
}

int Mesh::coordinate(std::string const& axis) const {
  auto const& dimensions = find_axis(shape_.axes, axis).dimensions;
  int out = 0;
  for (auto d = dimensions.rbegin(); d != dimensions.rend(); ++d)
    out = out * shape_.dimensions[*d].size + coordinates_[*d];
  return out;
}

int Mesh::size(std::string const& axis) const {
  int out = 1;
  for (auto d : find_axis(shape_.axes, axis).dimensions) out *= shape_.dimensions[d].size;
  return out;
}

Communicator& Mesh::along(std::string const& axis) { return along(Names{axis}); }

Communicator& Mesh::along(Names const& axes) {
  auto const mask = mask_of(axes);
  if (mask == all_dimensions()) return cart_;
  if (auto const* group = find(mask)) return const_cast<Group*>(group)->communicator;
  Names asked;
  for (auto const& group : groups_) asked.push_back(group.communicator.name());
  throw base::Error({.expected = "a group that the mesh was made with: " + base::join(asked),
                     .found = fmt::format("'{}'", set_name(axes)),
                     .where = fmt::format("rank {}, mesh", base::log_rank()),
                     .fix = "name the set of axes when the mesh is made: groups are made once, at the start"});
}

Communicator& Mesh::along(std::initializer_list<char const*> axes) { return along(Names(axes.begin(), axes.end())); }

void Mesh::prepare(AllReduceSettings const& settings, std::size_t buffer_bytes, Names const& nccl_axes) {
  int num_ranks = 0;
  detail::check(MPI_Comm_size(MPI_COMM_WORLD, &num_ranks), "MPI_Comm_size", "world");
  bool const wants_memory = settings.algorithm != AllReduce::mpi && settings.algorithm != AllReduce::ring &&
                            settings.algorithm != AllReduce::tree;
  if (wants_memory && num_ranks > 1 && cart_.size() == num_ranks) {
    int groups = 1;
    for (auto const& group : groups_) groups += group.communicator.size() > 1 ? 1 : 0;
    open_node_memory(buffer_bytes, groups);
  }
  auto const covered = mask_of(nccl_axes);
  auto const settings_of = [&](std::size_t mask) {
    auto out = settings;
    out.nccl = settings.nccl && (extent_of(mask) & ~covered) == 0;
    return out;
  };
  // All ranks prepare in the same order.
  cart_.prepare(settings_of(all_dimensions()));
  for (auto& group : groups_) group.communicator.prepare(settings_of(group.mask));
}

std::string Mesh::describe_all_reduce() const {
  std::vector<std::string> parts;
  std::vector<Communicator const*> told;  // communicators that were named: two axes may have the same ranks
  for (auto const& axis : shape_.axes) {
    auto const mask = mask_of({axis.name});
    auto const* group = find(mask);
    if (extent_of(mask) == 0 || (!group && mask != all_dimensions())) continue;
    auto const* const communicator = group ? &group->communicator : &cart_;
    if (std::find(told.begin(), told.end(), communicator) != told.end()) continue;
    told.push_back(communicator);
    parts.push_back(axis.name + " " + communicator->describe_all_reduce());
  }
  return base::join(parts, "; ");
}

}  // namespace p3d::comm
