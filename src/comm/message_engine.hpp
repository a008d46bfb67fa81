// SPDX-License-Identifier: Apache-2.0
#pragma once
// All-reduces that are carried out by messages, or by MPI's own all-reduce.

#include <mpi.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "message_steps.hpp"

namespace p3d::comm::detail {

/// Goes through the steps of an algorithm. A buffer is cut into segments of so many bytes, and a few of them, each with
/// messages of a tag of its own, are under way at once.
class MessageEngine final : public Engine {
public:
  /// `comm`, which the caller owns, carries nothing but the messages of engines of different families, 0 and 1.
  MessageEngine(MPI_Comm comm, std::string name, Steps steps, std::size_t segment_bytes, int family);

  bool advance() override;
  void enqueue(AllReduceWork& work) override;
  bool idle() const override { return works_.empty(); }

private:
  /// One segment under way.
  struct SegmentRun {
    AllReduceWork* work = nullptr;  ///< null: free
    std::int64_t begin = 0;
    std::int64_t count = 0;
    int tag = 0;
    std::size_t step = 0;
    bool exchanging = false;
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    std::vector<std::byte> arrived;
  };

  bool open(SegmentRun& run);
  bool move(SegmentRun& run);
  void begin_exchange(SegmentRun& run, Step const& step);
  /// First element, relative to the segment, of a chunk.
  std::int64_t chunk_begin(SegmentRun const& run, int chunk) const { return run.count * chunk / steps_.chunks; }

  MPI_Comm comm_;
  std::string name_;
  Steps steps_;
  std::size_t segment_bytes_;
  int first_tag_;
  std::vector<SegmentRun> runs_;
  std::vector<AllReduceWork*> works_;  ///< unfinished, oldest first
  std::int64_t segments_ = 0;
};

/// MPI_Iallreduce, in place of an algorithm of ours, inside another engine. What MPI cannot sum goes to `float16`.
class MpiEngine final : public Engine {
public:
  MpiEngine(MPI_Comm comm, std::string name, std::unique_ptr<Engine> float16)
      : comm_(comm), name_(std::move(name)), float16_(std::move(float16)) {}
  bool advance() override;
  void enqueue(AllReduceWork& work) override;
  bool idle() const override { return open_.empty() && float16_->idle(); }

private:
  MPI_Comm comm_;
  std::string name_;
  std::unique_ptr<Engine> float16_;
  std::deque<std::pair<AllReduceWork*, MPI_Request>> open_;
};

}  // namespace p3d::comm::detail
