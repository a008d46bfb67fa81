// SPDX-License-Identifier: Apache-2.0
#include <p3d/comm/mesh.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/wait.hpp>

#include <fmt/format.h>

#include <algorithm>

#include "internal.hpp"

namespace p3d::comm {

namespace {

std::size_t index_of(std::vector<MeshAxis> const& axes, std::string const& name) {
  std::vector<std::string> known;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name == name) return i;
    known.push_back(axes[i].name);
  }
  throw base::Error({.expected = "an axis of the mesh: " + base::join(known),
                     .found = fmt::format("'{}'", name),
                     .where = fmt::format("rank {}, mesh", base::log_rank()),
                     .fix = "ask for an axis that the mesh was made with"});
}

/// "dp+tp": the names in alphabetical order, whatever the order of the mesh.
std::string subset_name(std::vector<MeshAxis> const& axes, std::size_t mask) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (mask >> i & 1) names.push_back(axes[i].name);
  }
  std::sort(names.begin(), names.end());
  return names.empty() ? "self" : base::join(names, "+");
}

void check_axes(std::vector<MeshAxis> const& axes, int num_ranks) {
  P3D_REQUIRE(!axes.empty() && axes.size() < 16, "a mesh has 1 to 15 axes");
  std::int64_t product = 1;
  bool positive = true;
  std::vector<std::string> factors;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      P3D_REQUIRE(axes[i].name != axes[j].name, "axes of a mesh have different names");
    positive = positive && axes[i].size >= 1;
    // Saturates: a wrong product must not overflow into the right one.
    product = std::min<std::int64_t>(product * std::max(axes[i].size, 0), std::int64_t{1} << 31);
    factors.push_back(fmt::format("{} = {}", axes[i].name, axes[i].size));
  }
  if (positive && product == num_ranks) return;
  throw base::Error({.expected = fmt::format("sizes whose product is the number of ranks, {}", num_ranks),
                     .found = fmt::format("{}{}: product {}", base::join(factors, " * "),
                                          positive ? "" : " (every size is at least 1)", product),
                     .where = fmt::format("rank {} of {}, mesh", base::log_rank(), base::log_num_ranks()),
                     .fix = fmt::format("start {} ranks, or change the sizes", positive ? product : num_ranks)},
                    base::ExitCode::bad_input);
}

}  // namespace

Mesh::Mesh(Communicator const& parent, std::vector<MeshAxis> axes_fastest_first)
    : axes_(std::move(axes_fastest_first)) {
  check_axes(axes_, parent.size());
  std::size_t const n = axes_.size();
  int const ndims = static_cast<int>(n);
  detail::watched_barrier(parent.mpi(), parent.name(), "make the mesh");

  // MPI counts row-major: the last dimension is the fastest.
  std::vector<int> dims(n), periods(n, 0), coordinates(n);
  for (std::size_t i = 0; i < n; ++i) dims[n - 1 - i] = axes_[i].size;
  MPI_Comm handle = MPI_COMM_NULL;
  detail::check(blocking("MPI_Cart_create", parent.name(),
                         [&] { return MPI_Cart_create(parent.mpi(), ndims, dims.data(), periods.data(), 0, &handle); }),
                "MPI_Cart_create", parent.name());
  cart_ = Communicator::adopt(handle, "world");
  detail::check(MPI_Cart_coords(handle, cart_.rank(), ndims, coordinates.data()), "MPI_Cart_coords", "world");
  coordinates_.assign(coordinates.rbegin(), coordinates.rend());

  // Every subset in the order of its bit mask, the same on all ranks; the full one is the mesh itself. A subset without
  // extent needs no agreement with other ranks.
  std::size_t const full = (std::size_t{1} << n) - 1;
  subsets_.resize(full);
  for (std::size_t mask = 0; mask < full; ++mask) {
    std::vector<int> remain(n);
    bool extent = false;
    for (std::size_t i = 0; i < n; ++i) {
      remain[n - 1 - i] = static_cast<int>(mask >> i & 1);
      extent = extent || (remain[n - 1 - i] && axes_[i].size > 1);
    }
    auto const name = subset_name(axes_, mask);
    MPI_Comm part = MPI_COMM_NULL;
    if (extent) {
      detail::check(blocking("MPI_Cart_sub", name, [&] { return MPI_Cart_sub(handle, remain.data(), &part); }),
                    "MPI_Cart_sub", name);
    } else {
      detail::check(blocking("MPI_Comm_dup", "self", [&] { return MPI_Comm_dup(MPI_COMM_SELF, &part); }),
                    "MPI_Comm_dup", "self");
    }
    subsets_[mask] = Communicator::adopt(part, name);
  }
}

int Mesh::coordinate(std::string const& axis) const { return coordinates_[index_of(axes_, axis)]; }
int Mesh::size(std::string const& axis) const { return axes_[index_of(axes_, axis)].size; }
Communicator& Mesh::along(std::string const& axis) { return along(std::vector<std::string>{axis}); }

Communicator& Mesh::along(std::vector<std::string> const& axes) {
  std::size_t mask = 0;
  for (auto const& axis : axes) mask |= std::size_t{1} << index_of(axes_, axis);
  return mask == subsets_.size() ? cart_ : subsets_[mask];
}

Communicator& Mesh::along(std::initializer_list<char const*> axes) {
  return along(std::vector<std::string>(axes.begin(), axes.end()));
}

void Mesh::prepare(AllReduceSettings const& settings, std::size_t buffer_bytes) {
  int num_ranks = 0;
  detail::check(MPI_Comm_size(MPI_COMM_WORLD, &num_ranks), "MPI_Comm_size", "world");
  bool const wants_memory = settings.algorithm != AllReduce::mpi && settings.algorithm != AllReduce::ring &&
                            settings.algorithm != AllReduce::tree;
  if (wants_memory && num_ranks > 1 && cart_.size() == num_ranks) {
    int groups = 1;
    for (auto const& group : subsets_) groups += group.size() > 1 ? 1 : 0;
    open_node_memory(buffer_bytes, groups);
  }
  // The same order on all ranks.
  cart_.prepare(settings);
  for (auto& group : subsets_) group.prepare(settings);
}

std::string Mesh::describe_all_reduce() const {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    auto const& group = axes_.size() == 1 ? cart_ : subsets_[std::size_t{1} << i];
    if (group.size() > 1) parts.push_back(axes_[i].name + " " + group.describe_all_reduce());
  }
  return base::join(parts, "; ");
}

}  // namespace p3d::comm
