// SPDX-License-Identifier: Apache-2.0
// Groups by name: one mesh whose communicators are made together by init_parallel(). Two names whose axes differ only
// in axes of size 1 share a communicator.
#include <p3d/parallel/groups.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/comm/mesh.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

namespace p3d::parallel {

namespace {

/// The mesh that init_parallel() makes, and this rank's group of every name.
struct Groups {
  layout::RankGrid grid;
  comm::Mesh mesh;
  std::vector<Group> groups;
};

std::unique_ptr<Groups>& current() {
  static std::unique_ptr<Groups> groups;
  return groups;
}

std::string where() { return fmt::format("rank {}, parallel groups", base::log_rank()); }

Groups& require_groups() {
  if (current()) return *current();
  throw base::Error({.expected = "parallel groups",
                     .found = "none were made",
                     .where = where(),
                     .fix = "call init_parallel() on all ranks first"});
}

/// The axes of a set that have more than one rank, by name.
comm::Mesh::Names extended(layout::RankGrid const& grid, layout::AxisSet axes) {
  comm::Mesh::Names names;
  for (auto a : axes.list())
    if (grid.sizes()[a] > 1) names.emplace_back(layout::name(a));
  return names;
}

comm::Mesh make_mesh(layout::RankGrid const& grid, comm::Communicator const& world) {
  comm::MeshShape shape;
  for (auto const& atom : grid.atoms()) shape.dimensions.push_back({atom.name, atom.size});
  for (auto a : layout::all_axes) {
    auto& axis = shape.axes.emplace_back(comm::MeshShape::NamedAxis{layout::name(a), {}});
    for (std::size_t i = 0; i < grid.atoms().size(); ++i)
      if (grid.atoms()[i].axes.has(a)) axis.dimensions.push_back(i);
  }
  std::vector<comm::Mesh::Names> sets;
  for (auto const& group : layout::named_groups()) {
    auto names = extended(grid, group.axes);
    if (std::find(sets.begin(), sets.end(), names) == sets.end()) sets.push_back(std::move(names));
  }
  return comm::Mesh(world, std::move(shape), sets);
}

}  // namespace

Group::Group(std::string name, std::vector<int> ranks, comm::Communicator& communicator)
    : name_(std::move(name)), ranks_(std::move(ranks)), communicator_(&communicator) {}

template <class T>
void Group::reduce(std::span<T> inout, comm::Reduction op) {
  communicator_->all_reduce(inout.data(), static_cast<std::int64_t>(inout.size()), collectives::type_of<T>(), op)
      .wait();
}

template <class T>
std::vector<T> Group::split(std::span<T const> whole) const {
  auto const parts = ranks_.size();
  if (whole.size() % parts != 0)
    throw base::Error({.expected = fmt::format("a number of elements that {} ranks can share evenly", parts),
                       .found = fmt::format("{} elements", whole.size()),
                       .where = fmt::format("rank {}, split over the group '{}'", base::log_rank(), name_),
                       .fix = fmt::format("pad to {} elements", (whole.size() / parts + 1) * parts)});
  auto const each = whole.size() / parts;
  auto const mine = whole.subspan(static_cast<std::size_t>(rank()) * each, each);
  return {mine.begin(), mine.end()};
}

template <class T>
std::vector<T> Group::gather(std::span<T const> part) {
  std::vector<T> whole(part.size() * ranks_.size());
  communicator_
      ->all_gather(part.data(), whole.data(), static_cast<std::int64_t>(part.size()), *collectives::type_of<T>().mpi())
      .wait();
  return whole;
}

template <class T>
void Group::broadcast(std::span<T> inout, int root) {
  if (root < 0 || root >= size())
    throw base::Error({.expected = fmt::format("a rank of the group, 0 to {}", size() - 1),
                       .found = fmt::format("{}", root),
                       .where = fmt::format("rank {}, broadcast in the group '{}'", base::log_rank(), name_),
                       .fix = "name the root by its number in the group, not in the program"});
  communicator_->broadcast(inout.data(), static_cast<std::int64_t>(inout.size()), collectives::type_of<T>(), root)
      .wait();
}

void init_parallel(layout::PerAxis const& sizes, std::string_view order) {
  if (current())
    throw base::Error({.expected = "no parallel groups",
                       .found = "groups that were made before",
                       .where = where(),
                       .fix = "call reset_parallel() on all ranks first"});
  auto const world = comm::Communicator::world();
  auto grid = layout::grid_of(sizes, world.size(), order);
  auto mesh = make_mesh(grid, world);
  auto made = std::make_unique<Groups>(Groups{std::move(grid), std::move(mesh), {}});
  for (auto const& group : layout::named_groups())
    made->groups.emplace_back(group.name, made->grid.group(group.axes, world.rank()),
                              made->mesh.along(extended(made->grid, group.axes)));
  current() = std::move(made);
}

bool parallel_is_initialised() { return current() != nullptr; }

void reset_parallel() { current().reset(); }

Group& parallel_group(std::string_view name) {
  auto& groups = require_groups().groups;
  layout::group_axes(name);  // says which names there are where this is none
  return *std::find_if(groups.begin(), groups.end(), [&](auto const& group) { return group.name() == name; });
}

layout::RankGrid const& parallel_grid() { return require_groups().grid; }

#define P3D_INSTANTIATE(T)                                        \
  template void Group::reduce(std::span<T>, comm::Reduction);     \
  template std::vector<T> Group::split(std::span<T const>) const; \
  template std::vector<T> Group::gather(std::span<T const>);      \
  template void Group::broadcast(std::span<T>, int);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(std::int32_t)
P3D_INSTANTIATE(std::int64_t)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
