// SPDX-License-Identifier: Apache-2.0
#pragma once
// All-reduces by messages: by the steps of an algorithm (message_steps.hpp), or of two, by length.

#include <mpi.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "message_steps.hpp"
#include "parts.hpp"

namespace p3d::comm::detail {

/// Segments of one engine that are under way at the same time.
inline constexpr int runs_at_once = 4;
/// Tags that one engine uses in turn. Engines that share a communicator have different families, from 0 to 3, and so
/// different tags. MPI has 2^15 tags at least.
inline constexpr int tags_of_a_family = 1 << 13;

/// Carries out all-reduces by the steps of an algorithm. A buffer is cut into segments, and a few of them are under way
/// at the same time, each with messages of a tag of its own.
class MessageEngine final : public Engine {
public:
  /// `comm`, which the caller owns, carries nothing but the messages of engines of different families. `parts`: the
  /// number of parts of a segment that the steps count with.
  MessageEngine(MPI_Comm comm, std::string name, std::vector<Step> steps, int parts, std::size_t segment_bytes,
                int family);

  bool advance() override;
  void enqueue(Work& work) override;
  bool idle() const override { return works_.empty(); }

private:
  /// One segment under way.
  struct SegmentRun {
    Work* work = nullptr;  ///< null: free
    std::int64_t begin = 0;
    std::int64_t count = 0;
    int tag = 0;
    std::size_t step = 0;                                            ///< the step that comes next, or is under way
    bool exchanging = false;                                         ///< the messages of `step` have been started
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};  ///< the receive and the send of `step`
    std::vector<std::byte> arrived;                                  ///< received elements that are still to be added
  };

  bool open(SegmentRun& run);
  bool move(SegmentRun& run);
  void begin_exchange(SegmentRun& run, Step const& step);
  std::int64_t most(Work const& work) const;

  MPI_Comm comm_;
  std::string name_;
  /// The elements of the buffer that a step means by these parts of the run's segment.
  Range elements(SegmentRun const& run, Parts parts) const;

  std::vector<Step> steps_;
  int parts_;
  std::size_t segment_bytes_;
  int first_tag_;
  std::vector<SegmentRun> runs_;
  std::vector<Work*> works_;   ///< unfinished, oldest first
  std::int64_t segments_ = 0;  ///< segments started so far, of all works: gives the tags
};

/// Gives short works to one engine and long ones to another.
class LengthEngine final : public Engine {
public:
  LengthEngine(std::unique_ptr<Engine> shorter, std::unique_ptr<Engine> longer, std::int64_t longer_from)
      : shorter_(std::move(shorter)), longer_(std::move(longer)), longer_from_(longer_from) {}
  bool advance() override;
  void enqueue(Work& work) override { (work.bytes(work.count) < longer_from_ ? shorter_ : longer_)->enqueue(work); }
  bool idle() const override { return shorter_->idle() && longer_->idle(); }

private:
  std::unique_ptr<Engine> shorter_, longer_;
  std::int64_t longer_from_;  ///< bytes from which on a work is long
};

}  // namespace p3d::comm::detail
