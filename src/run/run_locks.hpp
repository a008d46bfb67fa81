// SPDX-License-Identifier: Apache-2.0
#pragma once
// A run owns the folders that it writes to: two runs at once would destroy each other's files.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/io/folder_lock.hpp>

#include <deque>

namespace p3d::run {

/// The locks of run.output_dir and, for this run.name, of checkpoint.dir (runs of other names may share that folder).
/// Rank 0 holds them; the others hold nothing.
class RunLocks {
public:
  /// Makes the folders and takes the locks. Throws on every rank when another run has one of them. May take two
  /// minutes, to see whether a run on another host is alive. Collective.
  void take(config::Config const& config, comm::Communicator& world);

private:
  std::deque<io::FolderLock> locks_;
};

}  // namespace p3d::run
