// SPDX-License-Identifier: Apache-2.0
#pragma once
// An engine carries out p3d's own collectives of one communicator, in the order in which they were started, in small
// steps that never block. Nothing runs in the background: a rank that tests or waits for any operation of its process
// advances all engines, as MPI does with its own operations. So a rank that waits for one thing never holds up a peer
// that waits for another.

#include <p3d/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace p3d::comm::detail {

/// The kinds of collectives. broadcast and exchange run in the engine for NCCL only; elsewhere MPI carries them out.
enum class Collective { all_reduce, reduce_scatter, all_gather, broadcast, exchange };

/// One collective in an engine, and how far it has come. The engine cuts it into segments.
struct Work {
  std::byte* data = nullptr;  ///< start of the buffer; null: no work
  std::int64_t count = 0;
  ElementType type = Type::float32;
  Reduction op = Reduction::sum;
  Collective kind = Collective::all_reduce;
  /// The shares of a reduce-scatter or an all-gather: share s is the elements from begins[s] up to ends[s], and begins
  /// at 0 for the first. There may be gaps between shares; `count` is the elements of all. Empty for an all-reduce.
  std::vector<std::int64_t> begins{}, ends{};
  std::int64_t whole = 0;                               ///< elements by which the engine is chosen; 0: `count`
  int root = 0;                                         ///< sender of a broadcast
  std::vector<Communicator::Part> sends{}, receives{};  ///< messages of an exchange
  void* stream = nullptr;  ///< for device memory: the collective comes after what this stream has been given
  bool held = false;       ///< true: it has its place in the order, but its buffer must not be touched yet
  bool launched = false;   ///< all of it is on the engine's stream, so another stream can be made to wait for it
  bool done = false;
  std::int64_t sent = 0;  ///< bytes that this rank has given to others (Communicator::Sent)

  /// The number of segments, and how many have been started and finished.
  std::int64_t segments = 0, started = 0, finished = 0;

  /// Address of an element of the buffer.
  std::byte* at(std::int64_t element) const { return data + bytes(element); }
  /// Bytes of so many elements.
  std::int64_t bytes(std::int64_t elements) const { return elements * static_cast<std::int64_t>(size_of(type)); }
  /// The first element of share s.
  std::int64_t share_begin(int s) const { return begins[static_cast<std::size_t>(s)]; }
  /// Elements of share s.
  std::int64_t share(int s) const { return ends[static_cast<std::size_t>(s)] - share_begin(s); }
};

/// The interface of all engines.
class Engine {
public:
  Engine() = default;
  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;
  virtual ~Engine();

  /// Starts `work`, which must keep its address until it is done, and advances once. All ranks start works in the same
  /// order.
  void start(Work& work);
  /// Does what can be done without waiting; returns true when anything moved. It returns in bounded time.
  virtual bool advance() = 0;
  /// Takes `work` without putting this engine among those that advance_engines() moves: for an engine inside another
  /// one.
  virtual void enqueue(Work& work) = 0;
  /// True when the engine has no unfinished work.
  virtual bool idle() const = 0;
  /// Makes the engine touch no buffer again. It serves a request that is abandoned while an exception unwinds: its
  /// peers will not get the data that they wait for, and their watchdog reports that.
  void stop();
  bool stopped() const { return stopped_; }
  /// Makes `stream` wait for `work`, which is launched, while the host goes on. Only engines with a stream launch
  /// works.
  virtual void make_wait(void* stream, Work const& work);
  /// True when the ranks that this one waits for wake it (bell.hpp) whenever it can go on.
  virtual bool is_woken() const { return false; }
  /// True when its work is messages, which move only when this rank looks.
  virtual bool sends_messages() const { return true; }
  /// Throws when no work will ever be done, because of an error that another operation's wait may have met first.
  virtual void require_working() const {}

private:
  bool stopped_ = false;
};

/// Begins operations that have become ready (late_start.hpp) and advances every engine with work. True when anything
/// moved.
bool advance_engines();
/// True when this rank is woken for the work of all engines.
bool engines_are_woken();
/// True when an engine with work sends messages.
bool engines_send_messages();

}  // namespace p3d::comm::detail
