// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives on device memory by NCCL, in small steps that never block, as engines work. NCCL's communicator is made
// so that its calls do not block either: a thread of the library puts a call onto its stream, some time after it
// returned. So all engines of a process share one queue of launches: a collective is launched when the calls of the one
// before it, of any communicator, are on their stream. All ranks that share communicators thereby launch in one order,
// that of their program; with two orders two kernels could wait for each other on two GPUs.
//
// With `fixed_order` a sum of floating-point numbers is several launches: for each segment the summands of a rank's
// share come to it by send and receive, into a workspace; a kernel (DeviceSums) adds them in the order of ranks; and at
// the end of an all-reduce the shares are gathered. A rank sends 2 (p-1)/p n bytes for a buffer of n, as round a ring,
// against (p-1) n if it gathered all summands.

#include <p3d/base/error.hpp>
#include <p3d/comm/nccl.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine.hpp"
#include "nccl_api.hpp"

namespace p3d::comm::detail {

/// The engine of one communicator for device memory.
class NcclEngine final : public Engine {
public:
  /// Makes NCCL's communicator. Collective over `comm`; waits, for at most wait_policy().timeout_s.
  NcclEngine(Communicator& comm, std::shared_ptr<NcclApi> api, bool fixed_order);
  /// Ends NCCL's communicator in good order, as the other ranks do, unless there was an error or an exception is in
  /// flight.
  ~NcclEngine() override;

  bool advance() override;
  void enqueue(Work& work) override;
  bool idle() const override { return queued_ == 0 && launched_.empty() && !changing_ && !settling_; }
  void make_wait(void* stream, Work const& work) override;
  bool sends_messages() const override { return false; }
  void require_working() const override;
  /// Waits for the collectives that streams wait for: the watchdog does not see those waits.
  void settle();
  bool fixed_order() const { return sums_ != nullptr; }
  /// Ends NCCL's work on the GPU now. Collectives under way will never be done.
  void abort() noexcept;

private:
  using Result = NcclApi::Result;
  /// A stream for NCCL: this engine's, or one for all engines of the process (NcclApi::one_at_a_time).
  struct OwnStream {
    explicit OwnStream(std::shared_ptr<NcclApi> given) : api(std::move(given)) {}
    OwnStream(OwnStream const&) = delete;
    OwnStream& operator=(OwnStream const&) = delete;
    ~OwnStream();
    std::shared_ptr<NcclApi> api;
    std::shared_ptr<DeviceSums> sums;  ///< additions that may have kernels on the stream; null: NCCL adds
    NcclApi::Stream stream = nullptr;
  };
  /// A collective in the queue of launches of the process.
  struct Waiting {
    NcclEngine* engine;
    Work* work;
    NcclApi::Event ready;  ///< reached when the caller's stream is done with the buffer
    int step = 0;          ///< number of launches that are on the stream
    bool open = false;     ///< the next launch has been called, and is not on the stream yet
  };
  /// A collective that is on the stream and not known to be over.
  struct Launched {
    Work* work;
    NcclApi::Event done;   ///< reached when the collective is over
    bool awaited = false;  ///< a stream waits for it, but no host does
  };
  /// A run of elements of a buffer.
  struct Piece {
    std::int64_t begin, count;
  };

  static std::deque<Waiting>& queue();
  static bool advance_queue();

  void change(char const* call, Result const& result);
  void watch(char const* operation, Work*& until_done);
  void check(Result const& result, char const* call);
  void launch(Waiting& first);
  void finish_launch(Work& work);
  bool streams_wait() const;
  bool sums_here(Work const& work) const;
  int segments(Work const& work) const;
  int launches(Work const& work) const;
  Result call(Work& work, int step);
  Result reduce_scatter(Work& work);
  Result all_gather(Work& work);
  Result exchange(Work& work);
  std::int64_t piece_length(Work const& work) const;
  Piece piece(Work const& work, int share, int segment) const;
  Result scatter_segment(Work& work, int segment);
  void add_segment(Work& work, int segment);
  Result gather_sums(Work& work);
  NcclApi::Event event();
  void release() noexcept;

  std::shared_ptr<NcclApi> api_;
  MPI_Comm mpi_;
  std::string name_;
  int rank_, size_;
  int exceptions_;
  std::shared_ptr<DeviceSums> sums_;      ///< additions in the order of ranks; null: NCCL adds
  std::shared_ptr<std::byte> workspace_;  ///< summands of the other ranks, for one segment
  NcclApi::Group group_ = nullptr;
  std::shared_ptr<OwnStream> own_stream_;
  NcclApi::Stream stream_ = nullptr;
  std::vector<NcclApi::Event> events_, free_events_;  ///< all events, and those that nothing uses
  int queued_ = 0;                                    ///< works of this engine in the queue
  std::deque<Launched> launched_;                     ///< works on the stream, in order
  Work* changing_ = nullptr;                          ///< not null while NCCL's communicator begins or ends
  Work* settling_ = nullptr;            ///< not null while settle() waits; done when no stream waits for a work
  char const* call_ = "";               ///< name of the last call, for errors
  std::optional<base::Error> failure_;  ///< the first error; every later wait throws it
};

/// Aborts the communicators of all engines: work on the GPU would keep the process from ending.
void abort_nccl() noexcept;

}  // namespace p3d::comm::detail
