// SPDX-License-Identifier: Apache-2.0
#pragma once
// The checkpoints of a folder: names, the newest valid one, which may go.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace p3d::io {

/// "DIR/NAME-00000015.h5".
std::string checkpoint_path(std::string const& dir, std::string const& run_name, std::int64_t step);

/// A file whose name is that of a checkpoint.
struct CheckpointFile {
  std::string path;
  std::string run_name;
  std::int64_t step = 0;  ///< by its name
  std::int64_t file_bytes = 0;
  bool valid = false;  ///< the seal is intact, and the step inside is that of the name
  std::string error;   ///< why not
};

/// All files of a folder that are named like checkpoints (of one run, unless `run_name` is empty), by run name and
/// step. A folder that is not there has none. Looks into every file: nothing else says what is valid.
std::vector<CheckpointFile> find_checkpoints(std::string const& dir, std::string const& run_name);

/// Deletes the oldest valid ones among those of at most `newest_step`, so that `keep` remain of them (0: all). Those
/// that are not valid are left alone. `newest_step` is to be that of a checkpoint that was verified. Returns what it
/// deleted.
std::vector<std::string> prune_checkpoints(std::string const& dir, std::string const& run_name,
                                           std::int64_t newest_step, std::int64_t keep);

/// Deletes the .part files of a run: what a killed run left. Returns them.
std::vector<std::string> remove_unfinished(std::string const& dir, std::string const& run_name);

}  // namespace p3d::io
