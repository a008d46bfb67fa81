// SPDX-License-Identifier: Apache-2.0
#pragma once
// An engine carries out p3d's own all-reduces of one communicator, first come first served, in small steps that never
// block. Nothing runs in the background: whoever tests or waits for any operation of this process moves all engines on,
// as MPI does with its own operations. So a rank that waits for one thing never holds up a peer that waits for another.

#include <p3d/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>

namespace p3d::comm::detail {

/// One all-reduce in an engine.
struct AllReduceWork {
  std::byte* data = nullptr;  ///< null: no work
  std::int64_t count = 0;
  ElementType type = Type::float32;
  Reduction op = Reduction::sum;
  bool done = false;

  std::int64_t started = 0;   ///< elements of the segments under way or finished
  std::int64_t finished = 0;  ///< elements of the finished ones
  std::byte* at(std::int64_t element) const { return data + element * static_cast<std::int64_t>(size_of(type)); }
};

class Engine {
public:
  Engine() = default;
  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;
  virtual ~Engine();

  /// Takes `work`, which must stay where it is until done, and moves on once. Started in the same order on all ranks.
  void start(AllReduceWork& work);
  /// Does what can be done without waiting; true when anything moved. Bounded.
  virtual bool advance() = 0;
  /// Takes `work` without a place among the engines that are moved on by all: for an engine inside another.
  virtual void enqueue(AllReduceWork& work) = 0;
  virtual bool idle() const = 0;
  /// Touches no buffer again. For a request that is given up while an exception unwinds: its peers will not get what
  /// they wait for, and their watchdog says so.
  void stop();

private:
  bool stopped_ = false;
};

/// Moves every engine with work on; true when anything moved.
bool advance_engines();

}  // namespace p3d::comm::detail
