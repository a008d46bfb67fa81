// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inside of CheckpointWriter.

#include "skeleton.hpp"
#include "slices.hpp"
#include "together.hpp"

#include <p3d/base/timer.hpp>
#include <p3d/io/checkpoint_writer.hpp>

#include <atomic>
#include <functional>
#include <thread>

namespace p3d::io {

/// The rows of one array that this rank writes.
struct CheckpointSlice {
  CheckpointPart part;
  layout::Range rows;
  std::size_t array = 0;       ///< index
  std::int64_t place = 0;      ///< of its elements in the copy
  std::uint64_t checksum = 0;  ///< this slice's part of the sum
  std::int64_t elements() const { return (rows.end - rows.begin) * part.cols; }
};

/// What is being written.
struct CheckpointJob {
  std::string path, part_path;
  CheckpointHeader header;
  std::vector<TableRow> table;
  bool moments = false;
  ModelFiles model_files;  ///< on rank 0
  std::vector<CheckpointArray> arrays;
  Skeleton skeleton;
  std::vector<CheckpointSlice> slices;
  std::vector<std::uint64_t> sums;
};

/// The slices of this rank, in the order of `parts`.
std::vector<CheckpointSlice> make_slices(std::vector<CheckpointPart> const& parts,
                                         std::vector<CheckpointArray> const& arrays, std::size_t element_bytes);

/// Writes the slices from the copy and flushes; sets their checksums. No MPI, no HDF5.
void write_copy(CheckpointJob& job, std::byte const* copy);
/// Writes the slices straight from the parts, every rank its own, a buffer at a time. Sets their checksums. Throws on
/// the ranks that have an error; the others return early. Does not flush. Collective.
void write_shares(CheckpointJob& job, comm::Communicator& world, std::int64_t buffer_bytes);
/// Flushes what write_shares wrote to disk. No MPI, no HDF5.
void flush_share(CheckpointJob const& job);
/// The slices straight from the parts: every rank sends its own to rank 0, a buffer at a time, and rank 0 writes and
/// flushes. Sets their checksums. Throws on the ranks that have an error; the others return early. Collective.
void write_by_root(CheckpointJob& job, comm::Communicator& world, std::int64_t buffer_bytes);
/// Reads the slices back from disk and compares.
void read_back(CheckpointJob const& job, std::int64_t buffer_bytes);

struct CheckpointWriter::State {
  enum class Stage { idle, make, data, commit, verify };

  comm::Communicator world;
  Options options;
  CheckpointJob job;
  std::shared_ptr<std::byte> copy;
  std::size_t copy_bytes = 0;
  Stage stage = Stage::idle;
  std::thread thread;
  std::atomic<bool> done{false};
  std::optional<base::ErrorText> failure;  ///< of the thread's work; read after it is joined
  base::Stopwatch watch;
  WriteResult result;

  State(comm::Communicator const& w, Options o) : world(w.mpi(), "checkpoint"), options(o) {}
  /// Runs `work` in the thread as the work of `next`. No MPI in it.
  void begin(Stage next, std::function<void()> work);
  /// Whether all ranks have finished the stage. Collective.
  bool all_done();
  /// After all_done: on to the next stage. Returns the result at the end.
  std::optional<WriteResult> advance();
  /// The thread writes the copy, or all ranks write their shares, or give them to rank 0, now.
  void begin_data();
  std::optional<WriteResult> end(std::optional<base::ErrorText> error);
};

}  // namespace p3d::io
