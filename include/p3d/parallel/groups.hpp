// SPDX-License-Identifier: Apache-2.0
#pragma once
// Groups of ranks by name, for programs that use the library without its trainer. All functions that say "collective"
// are called by all ranks of the group (or of the program) in the same order; they wait until the result is there.
//
// Example, on 8 ranks:
//   init_parallel({.tp = 2, .pp = 2});                       // dp is the rest, 2
//   auto& tp = parallel_group("tp");                         // on rank 5: ranks 4 and 5
//   std::vector<double> x{1, 2};
//   tp.reduce<double>(x);                                    // 2, 4
//   auto part = tp.split<double>(x);                         // on rank 5: 4
//   auto whole = tp.gather<double>(part);                    // 2, 4
//   reset_parallel();                                        // other sizes may follow

#include <p3d/comm/communicator.hpp>
#include <p3d/layout/named_groups.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::parallel {

/// This rank's group of a name. T is float, double, std::int32_t or std::int64_t; data are in host memory.
class Group {
public:
  Group(std::string name, std::vector<int> ranks, comm::Communicator& communicator);

  std::string const& name() const { return name_; }
  /// The ranks of the program that are in the group, in ascending order.
  std::vector<int> const& ranks() const { return ranks_; }
  /// This rank's number in the group, from 0.
  int rank() const { return communicator_->rank(); }
  int size() const { return static_cast<int>(ranks_.size()); }
  /// The communicator, for operations that do not wait.
  comm::Communicator& communicator() { return *communicator_; }

  /// Replaces each element by its sum (or largest, or smallest) over the group. Collective.
  template <class T>
  void reduce(std::span<T> inout, comm::Reduction op = comm::Reduction::sum);
  /// This rank's part of `whole`, cut into as many equal pieces as the group has ranks. Throws base::Error when that
  /// leaves a remainder. No communication.
  template <class T>
  std::vector<T> split(std::span<T const> whole) const;
  /// The parts of all ranks, in the order of the group; each rank brings as many elements. Collective.
  template <class T>
  std::vector<T> gather(std::span<T const> part);
  /// Replaces the elements by those of rank `root` of the group. Throws base::Error when there is no such rank.
  /// Collective.
  template <class T>
  void broadcast(std::span<T> inout, int root);

private:
  std::string name_;
  std::vector<int> ranks_;
  comm::Communicator* communicator_;
};

/// Makes all groups of layout::named_groups(). dp and edp of `sizes` are not read: they are what is left of the ranks.
/// Throws base::Error on all ranks when the sizes do not divide the ranks, and when groups were made before. MPI must
/// run (comm::Environment). `order` is that of parallel.order; empty: its default. Collective over all ranks of the
/// program.
void init_parallel(layout::PerAxis const& sizes, std::string_view order = {});
/// True between init_parallel() and reset_parallel().
bool parallel_is_initialised();
/// Forgets all groups, and with them every Group that was given out; without groups it does nothing. Collective.
void reset_parallel();
/// This rank's group of a name. Throws base::Error for a name that is not known, and before init_parallel().
Group& parallel_group(std::string_view name);
/// The mesh behind the groups. Throws base::Error before init_parallel().
layout::RankGrid const& parallel_grid();

}  // namespace p3d::parallel
