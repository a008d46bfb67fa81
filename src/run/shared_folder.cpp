// SPDX-License-Identifier: Apache-2.0
// Rank 0 writes a file with a text that no other start writes; a rank of every other host must read that text.
#include "shared_folder.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/process.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/comm/wait.hpp>
#include <p3d/io/file_watch.hpp>
#include <p3d/io/text_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>

#include <unistd.h>

namespace p3d::run {

namespace {

/// Seconds to look: a network file system may show a new file a moment later.
constexpr double patience_s = 10.0;

/// Returns what stands in the place of the file with `text`; empty when the file says `text`.
std::string difference(std::string const& path, std::string const& text) {
  try {
    std::string read;
    io::apart([&] { read = io::read_text(path); });
    return read == text ? "" : "another file of this name";
  } catch (base::Error const& e) {
    return e.text().found;
  }
}

/// Looks for the file, again and again for patience_s at most; throws when another one, or none, is there.
void look(std::string const& dir, std::string const& path, std::string const& text) {
  auto const patience = std::min(patience_s, 0.5 * comm::wait_policy().timeout_s);
  base::Stopwatch watch;
  auto found = difference(path, text);
  for (; !found.empty() && watch.seconds() < patience; found = difference(path, text)) ::usleep(50000);
  if (found.empty()) return;
  base::refuse({.expected = "a folder of checkpoints that all hosts share",
                .found = fmt::format("{} on host {}, where rank 0 on another host has written {}", found,
                                     base::host_name(), std::filesystem::path(path).filename().string()),
                .where = fmt::format("checkpoint.dir = \"{}\"", dir),
                .fix = "name a folder of a file system that all hosts mount (df shows which one a folder is on), "
                       "or set checkpoint.every = 0"});
}

/// Deletes its file at the end of its scope, also after an error.
struct RemovedAtEnd {
  std::string path;  ///< empty: no file to delete
  ~RemovedAtEnd() {
    if (path.empty()) return;
    io::FileOperation const here("unlink", path);
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
};

}  // namespace

void require_shared_folder(std::string const& dir, std::string const& run_name, comm::Communicator& world) {
  auto const node = comm::node_share();
  if (node.ranks == world.size()) return;
  auto const path = fmt::format("{}/.{}.shared", dir, run_name);
  std::string text;
  comm::agree_on_root(world, [&] {
    text = fmt::format("{} {} {}\n", base::host_name(), ::getpid(),
                       std::chrono::system_clock::now().time_since_epoch().count());
    io::apart([&] {
      io::make_folder(dir);
      io::write_text_atomically(path, text);
    });
  });
  comm::broadcast_text(world, text, 0);
  RemovedAtEnd const removed{world.rank() == 0 ? path : ""};
  comm::agree(world, "see the checkpoints of rank 0", [&] {
    if (node.rank == 0) look(dir, path, text);
  });
}

}  // namespace p3d::run
