// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inside of CheckpointWriter, shared by checkpoint_writer.cpp (stages) and write_slices.cpp (numbers).

#include "skeleton.hpp"
#include "slices.hpp"
#include "together.hpp"

#include <p3d/base/timer.hpp>
#include <p3d/io/checkpoint_writer.hpp>

#include <atomic>
#include <functional>
#include <thread>

namespace p3d::io {

/// The rows of one array that this rank writes: its share among the replicas of the part.
struct CheckpointSlice {
  CheckpointPart part;
  layout::Range rows;          ///< rows of the part's rectangle
  std::size_t array = 0;       ///< index into CheckpointJob::arrays
  std::int64_t place = 0;      ///< index of the first element in this rank's copy
  std::uint64_t checksum = 0;  ///< the share of this slice in the array's checksum
  std::int64_t elements() const { return (rows.end - rows.begin) * part.cols; }
};

/// The checkpoint that is being written, from start() to its result.
struct CheckpointJob {
  std::string path, part_path;
  CheckpointHeader header;
  std::vector<TableRow> table;
  std::vector<config::StateArray> state;  ///< arrays of the state in the file
  ModelFiles model_files;                 ///< filled on rank 0 only
  std::vector<CheckpointArray> arrays;
  Skeleton skeleton;                    ///< offsets on every rank after stage `make`, descriptions on rank 0
  std::vector<CheckpointSlice> slices;  ///< the share of this rank
  std::vector<std::uint64_t> sums;      ///< checksums of all arrays, after stage `data`
};

/// The slices of this rank, in the order of `parts`.
std::vector<CheckpointSlice> make_slices(std::vector<CheckpointPart> const& parts,
                                         std::vector<CheckpointArray> const& arrays, std::size_t element_bytes);

/// Writes the slices from the copy and flushes; sets their checksums. Throws soon after `given_up` became true. Makes
/// no MPI and no HDF5 call.
void write_copy(CheckpointJob& job, std::byte const* copy, std::atomic<bool> const& given_up);
/// Writes the slices straight from the parts, every rank its own, a buffer at a time. Sets their checksums. Throws on
/// the ranks that have an error; the others return early. Does not flush. Collective.
void write_shares(CheckpointJob& job, comm::Communicator& world, std::int64_t buffer_bytes);
/// Flushes the file that write_shares wrote to disk. Makes no MPI and no HDF5 call.
void flush_share(CheckpointJob const& job);
/// Writes the slices of all ranks on rank 0: every rank sends its own, a buffer at a time, and rank 0 writes and
/// flushes. Sets their checksums. Throws on the ranks that have an error; the others return early. Collective.
void write_by_root(CheckpointJob& job, comm::Communicator& world, std::int64_t buffer_bytes);
/// Reads the slices back from disk and compares their checksums. Throws when one differs, and soon after `given_up`
/// became true.
void read_back(CheckpointJob const& job, std::int64_t buffer_bytes, std::atomic<bool> const& given_up);

/// A checkpoint passes through the stages in order. Each has work for a thread of its own; poll() moves on when the
/// threads of all ranks are done.
struct CheckpointWriter::State {
  /// make: rank 0 makes the descriptions. data: the numbers are written. commit: rank 0 seals and renames the file.
  /// verify: all ranks read their slices back.
  enum class Stage { idle, make, data, commit, verify };

  comm::Communicator world;
  Options options;
  CheckpointJob job;
  std::shared_ptr<std::byte> copy;  ///< memory for the slices; kept from one checkpoint to the next
  std::size_t copy_bytes = 0;
  Stage stage = Stage::idle;
  std::thread thread;
  std::atomic<bool> done{false};           ///< the thread's work has ended
  std::atomic<bool> given_up{false};       ///< nobody waits for the thread's work any more
  std::optional<base::ErrorText> failure;  ///< error of the thread's work; read after the thread is joined
  base::Stopwatch watch;                   ///< since start()
  WriteResult result;

  State(comm::Communicator const& w, Options o) : world(w.mpi(), "checkpoint"), options(o) {}
  /// Runs `work` in the thread as the work of stage `next`. It makes no MPI call.
  void begin(Stage next, std::function<void()> work);
  /// True on every rank when all ranks have finished the stage. Collective.
  bool all_done();
  /// Goes on to the next stage; call it after all_done() was true. Returns the result at the end. Collective.
  std::optional<WriteResult> advance();
  /// Begins stage `data`: the thread writes the copy, or all ranks write their shares, or send them to rank 0, before
  /// this returns.
  void begin_data();
  /// Ends the job, with or without an error; rank 0 deletes the .part file of a failed one.
  std::optional<WriteResult> end(std::optional<base::ErrorText> error);
};

}  // namespace p3d::io
