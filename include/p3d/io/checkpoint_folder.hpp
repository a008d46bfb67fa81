// SPDX-License-Identifier: Apache-2.0
#pragma once
// The checkpoints of a folder: how they are named, which one is the newest valid one, and which may be deleted.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace p3d::io {

/// The path of a checkpoint: "DIR/NAME-00000015.h5" for step 15 of the run NAME.
std::string checkpoint_path(std::string const& dir, std::string const& run_name, std::int64_t step);

/// A file whose name is that of a checkpoint, valid or not.
struct CheckpointFile {
  std::string path;
  std::string run_name;
  std::int64_t step = 0;  ///< the step in the file's name
  std::int64_t file_bytes = 0;
  bool valid = false;  ///< the seal is intact, and the step inside is that of the name
  std::string error;   ///< why the file is not valid; empty when it is
};

/// Lists all files of a folder that are named like checkpoints (of one run, unless `run_name` is empty), sorted by run
/// name and step. A folder that does not exist has none. Reads the description of every file: only that tells whether
/// it is valid.
std::vector<CheckpointFile> find_checkpoints(std::string const& dir, std::string const& run_name);

/// Deletes old checkpoints of a run: of the valid ones whose step is at most `newest_step`, the oldest, so that `keep`
/// remain (0: all remain). Files that are not valid are never deleted. `newest_step` must be the step of a checkpoint
/// that was verified: without it nothing is deleted. The file `spared`, under whatever path, is neither deleted nor
/// counted. Returns the deleted paths.
std::vector<std::string> prune_checkpoints(std::string const& dir, std::string const& run_name,
                                           std::int64_t newest_step, std::int64_t keep, std::string const& spared = "");

/// Deletes the .part files of a run, which a killed run left. Returns their paths.
std::vector<std::string> remove_unfinished(std::string const& dir, std::string const& run_name);

}  // namespace p3d::io
