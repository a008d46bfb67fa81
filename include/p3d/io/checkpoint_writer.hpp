// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes checkpoints, in the foreground or while training goes on.
//
// In all ways of writing (WriteBy) a thread of rank 0 first makes all descriptions, in memory, and the file NAME.part
// with room for all arrays. Then the numbers are written:
//   copied   each rank has copied its share of the state into host memory (the only time that training is held), and a
//            thread that makes no MPI and no HDF5 call writes it with pwrite at the arrays' offsets and flushes it to
//            disk. No thread support is asked of MPI, and no collective can meet one of the training;
//   direct   each rank writes its share in the same way, straight from the state, a buffer at a time, and training
//            waits: for checkpoints at the end of a run, which need no copy;
//   by_root  the ranks send their shares to rank 0, a buffer at a time, which alone writes: for file systems that share
//            files badly between nodes (NFS: two clients that write into one page).
// All three ways give the same bytes. When all shares are on disk, rank 0 adds descriptions, checksums and the seal,
// flushes, and renames the file. Then every rank reads its share back from disk and compares (`verify`), so that older
// files may be
// deleted. A write, fsync or other file operation that never returns ends the run (file_watch.hpp); a rank that is
// stopped or dead is found by the others, which wait for it in all-reduces, sends and receives that comm.timeout_s
// bounds.
//
// Memory of a rank: `buffer_bytes` (at least one row of an array), and with `copied` the copy of the rank's share,
// which is allocated once.

#include <p3d/base/error.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/io/model_files.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace p3d::io {

/// How the writing of one checkpoint went. It is the same on every rank.
struct WriteResult {
  std::string path;
  std::int64_t step = 0;
  std::optional<base::ErrorText> error;  ///< set: the .part file was removed, and nothing else on disk was changed
  bool verified = false;                 ///< the file was read back and compared
  std::int64_t bytes = 0;                ///< bytes of the arrays
  double seconds = 0.0;                  ///< from start() to the renamed file
  double held_seconds = 0.0;             ///< the part of `seconds` inside start() and poll(), while training was held
  double verify_seconds = 0.0;           ///< time of the reading back
};

/// How the arrays reach the file; the head of this file describes each way.
enum class WriteBy { copied, direct, by_root };

/// Writes one checkpoint at a time. The calls of a step loop: start() at a checkpoint, poll() at every later step until
/// it returns the result. All ranks make the same calls in the same order.
class CheckpointWriter {
public:
  struct Options {
    std::int64_t buffer_bytes = 64 << 20;
    WriteBy way = WriteBy::copied;
    bool verify = true;
    /// A thread of rank 0 calls it before a complete file gets its name: what must be on disk by then. It does not
    /// throw.
    std::function<void()> before_commit = {};
    /// Allocates the memory of the copy: `bytes` bytes, which need not be zero. If empty, ordinary memory is taken; a
    /// GPU wants pinned memory.
    std::function<std::shared_ptr<std::byte>(std::size_t bytes)> memory = {};
  };
  /// Duplicates `world`, so that no message here can meet one of the training. Collective.
  CheckpointWriter(comm::Communicator const& world, Options options);
  /// Waits for the disk. A file that is not complete remains as .part.
  ~CheckpointWriter();
  CheckpointWriter(CheckpointWriter const&) = delete;
  CheckpointWriter& operator=(CheckpointWriter const&) = delete;

  /// Begins to write `path`; the parts may change as soon as this returns. `state` names the arrays of the optimizer's
  /// state that the file gets. `model_files` are those of rank 0; other ranks may pass none. Must not be called while
  /// busy(). Collective.
  void start(std::string const& path, CheckpointHeader const& header, std::vector<TableRow> const& table,
             config::StateArrays state, std::vector<CheckpointPart> const& parts, ModelFiles const& model_files = {});
  /// True from start() until poll() or finish() has returned the result.
  bool busy() const;
  /// Advances the writing (with `copied` without waiting for the disk), and returns the result once, when there is one.
  /// Collective: every rank calls it at the same places (step boundaries).
  std::optional<WriteResult> poll();
  /// Waits for the result. Needs busy(). Collective.
  WriteResult finish();

  /// Allocates and touches the copy before the first step, so that no later call does. `parts` are those that start()
  /// will get.
  void reserve(std::vector<CheckpointPart> const& parts, Element element);
  /// Bytes of the copy on this rank (0 unless `copied`).
  std::int64_t copy_bytes() const;

private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace p3d::io
