// SPDX-License-Identifier: Apache-2.0
#pragma once
// An engine carries out p3d's own collectives of one communicator, first come first served, in small steps that never
// block. Nothing runs in the background: whoever tests or waits for any operation of this process moves all engines on,
// as MPI does with its own operations. So a rank that waits for one thing never holds up a peer that waits for another.

#include <p3d/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace p3d::comm::detail {

/// The last two only by NCCL; MPI does them otherwise.
enum class Collective { all_reduce, reduce_scatter, all_gather, broadcast, exchange };

/// One collective in an engine. It goes in segments, which the engine cuts.
struct Work {
  std::byte* data = nullptr;  ///< null: no work
  std::int64_t count = 0;
  ElementType type = Type::float32;
  Reduction op = Reduction::sum;
  Collective kind = Collective::all_reduce;
  /// Share s is the elements from bounds[s] up to bounds[s + 1]; from 0 to count. An all-reduce has none.
  std::vector<std::int64_t> bounds{};
  int root = 0;                                         ///< of a broadcast
  std::vector<Communicator::Part> sends{}, receives{};  ///< of an exchange
  void* stream = nullptr;  ///< device memory: the collective comes after what this stream has been given
  bool held = false;       ///< has its place in the order, but is not to be touched yet
  bool launched = false;   ///< all of it is on the engine's stream: another stream can be made to wait for it
  bool done = false;
  std::int64_t sent = 0;  ///< bytes that this rank has given to others: Communicator::Sent

  // In segments.
  std::int64_t segments = 0, started = 0, finished = 0;

  std::byte* at(std::int64_t element) const { return data + bytes(element); }
  std::int64_t bytes(std::int64_t elements) const { return elements * static_cast<std::int64_t>(size_of(type)); }
  std::int64_t share(int s) const {
    auto const* const begin = bounds.data() + s;
    return begin[1] - begin[0];
  }
};

class Engine {
public:
  Engine() = default;
  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;
  virtual ~Engine();

  /// Takes `work`, which must stay where it is until done, and moves on once. Started in the same order on all ranks.
  void start(Work& work);
  /// Does what can be done without waiting; true when anything moved. Bounded.
  virtual bool advance() = 0;
  /// Takes `work` without a place among the engines that are moved on by all: for an engine inside another.
  virtual void enqueue(Work& work) = 0;
  virtual bool idle() const = 0;
  /// Touches no buffer again. For a request that is given up while an exception unwinds: its peers will not get what
  /// they wait for, and their watchdog says so.
  void stop();
  bool stopped() const { return stopped_; }
  /// Makes `stream` wait for `work`, which is launched: the host goes on. Engines without a stream have none launched.
  virtual void make_wait(void* stream, Work const& work);
  /// Throws where no work will ever be done, because of an error that another operation's wait may have met.
  virtual void require_working() const {}

private:
  bool stopped_ = false;
};

/// Begins what has become ready (late_start.hpp) and moves every engine with work on; true when anything moved.
bool advance_engines();

}  // namespace p3d::comm::detail
