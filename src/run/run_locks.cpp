// SPDX-License-Identifier: Apache-2.0
#include "run_locks.hpp"

#include <p3d/base/log.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/io/text_file.hpp>

#include <unistd.h>

namespace p3d::run {

// Rank 0 tries and the others wait for its word, so that an error of rank 0 ends all of them. A lock whose owner may be
// dead needs many tries: its heart is watched, and the user is told after a second.
void RunLocks::take(config::Config const& config, comm::Communicator& world) {
  std::size_t next = 0;
  base::Stopwatch watch;
  bool told = false;
  auto const try_all = [&] {
    if (locks_.empty()) {
      locks_.emplace_back(config.run.output_dir + "/.p3d.lock");
      if (config.checkpoint.on()) {
        io::make_folder(config.checkpoint.dir);
        locks_.emplace_back(config.checkpoint.dir + "/." + config.run.name + ".checkpoints.lock");
      }
    }
    while (next < locks_.size() && locks_[next].try_take()) {
      if (auto const& line = locks_[next].taken_over(); !line.empty()) base::log_root(line);
      ++next;
    }
    if (next == locks_.size() || told || watch.seconds() < 1.0) return;
    base::log_root("Waiting to see whether the run that has " + locks_[next].path() + " is alive");
    told = true;
  };
  for (std::int64_t waits = 1; waits != 0;) {
    comm::agree_on_root(world, try_all);
    waits = next < locks_.size() ? 1 : 0;
    world.broadcast(&waits, 1, comm::Type::int64, 0).wait();
    if (waits != 0) ::usleep(100000);
  }
}

}  // namespace p3d::run
