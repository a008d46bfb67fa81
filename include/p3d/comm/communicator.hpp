// SPDX-License-Identifier: Apache-2.0
#pragma once
// MPI in RAII: environment, communicator, request. No Kokkos: buffers are raw host (or GPU-aware) pointers with counts.

#include <p3d/comm/all_reduce.hpp>

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace p3d::comm {

/// MPI_Init_thread(FUNNELED or better)..MPI_Finalize. Sets the log rank. Error handlers of world return codes, which
/// p3d turns into base::Error with the call, the rank and MPI's text. Destroying it while an exception is in flight
/// aborts all ranks instead of hanging in MPI_Finalize: print the message inside its scope, the catch outside is never
/// reached. The wait policy is set for this node. Works without a launcher, as one rank. An Environment inside another
/// does nothing.
///
/// Ends the program with ExitCode::bad_input and a text from one rank when a launcher started several processes that
/// MPI does not connect, or when the ranks were given different words (argv, but for Kokkos' options). Nothing blocks
/// longer than wait_policy().timeout_s (MPI_Init: 30 s at least); set the policy before, if its default will not do.
class Environment {
public:
  Environment(int& argc, char**& argv);
  ~Environment();
  Environment(Environment const&) = delete;
  Environment& operator=(Environment const&) = delete;

  /// What the program will end with. Some MPI libraries do not return from MPI_Finalize; the process ends there then,
  /// with this code, or with run_failed where it was not told. Returns `code`.
  int exit_code(int code);

private:
  int exceptions_;
  bool owner_;
};

/// The ranks on this node, this rank's number among them, and the cores that they may use together.
struct NodeShare {
  int ranks = 1;
  int rank = 0;
  int cores = 1;
};
NodeShare node_share();

/// Ends every rank with `exit_code` (MPI_Abort on world when MPI runs, std::_Exit otherwise).
[[noreturn]] void abort_all(int exit_code);
/// The same from a thread that may not call MPI, while others hang: the launcher ends the other ranks. MPICH's is told
/// the code in its own words; else it may return that of a rank that it kills itself.
[[noreturn]] void leave_without_mpi(int exit_code);

/// Element types that MPI may sum (but for bytes, which only travel). There is deliberately no 2-byte type.
enum class Type { int32, int64, uint64, float32, float64, byte };
/// 16-bit floating-point numbers (base/float16.hpp). MPI has no such sum, so to MPI they are bits that travel; p3d's
/// own algorithms add them up in float.
enum class Float16Type { bfloat16, float16 };
/// Either: what may travel. What names MPI's sums takes a Type, so no sum of 16 bits gets there by mistake.
class ElementType {
public:
  constexpr ElementType(Type type) : type_(type) {}
  constexpr ElementType(Float16Type type) : float16_(type) {}
  /// What MPI may know it as.
  constexpr std::optional<Type> mpi() const { return type_; }
  constexpr std::optional<Float16Type> float16() const { return float16_; }
  bool operator==(ElementType const&) const = default;

private:
  std::optional<Type> type_;
  std::optional<Float16Type> float16_;
};
std::size_t size_of(ElementType type);
enum class Reduction { sum, max, min };
/// Where a buffer lies: memory that the host reads and writes, or memory that only MPI does.
enum class Memory { host, device };
/// The same, and when it may be touched. Of a device's memory the stream (the vendor's own) on which the caller writes
/// it: NCCL comes after what the stream has been given. MPI and p3d's own algorithms begin when `ready` says true (an
/// event on the device, say); empty: now. It is asked at each start, test and wait of this process, by the thread that
/// makes them, and never again after true. It must come true without this process' doing, and may not communicate.
struct Place {
  using Ready = std::function<bool()>;
  Place(Memory kind = Memory::host, void* device_stream = nullptr, Ready is_ready = {})
      : memory(kind), stream(device_stream), ready(std::move(is_ready)) {}
  Memory memory;
  void* stream;
  Ready ready;
  /// Request::wait() of a collective by NCCL returns when it is launched: `stream`, not the host, waits for it. For
  /// buffers that only work on this stream touches afterwards.
  bool stream_waits = false;
};

class Communicator;

/// One non-blocking operation. Move-only; keeps what it was told to keep alive; ends in wait(). Destroying an
/// unfinished request waits for it, except while an exception unwinds: then it is given up (its kept buffers are never
/// freed).
class Request {
public:
  Request() noexcept;
  Request(Request&&) noexcept;
  Request& operator=(Request&&) noexcept;
  ~Request();
  bool active() const;
  /// One MPI_Test. True when finished (then the completion hook has run).
  bool test();
  /// The one wait: spin, back off, watch the time, and past the budget report and end all ranks. The time spent is
  /// added to the communicator's wait_seconds().
  void wait();
  /// Runs `hook` after completion (unpack, copy to a device) and keeps `keep` alive until then. At once when the
  /// request is not active (a collective over one rank).
  void on_complete(std::function<void()> hook, std::shared_ptr<void> keep = {});

private:
  friend class Communicator;
  struct State;
  std::unique_ptr<State> state_;
};

/// Waits for all, in order.
void wait_all(std::vector<Request>& requests);

/// The text of rank `root`, on every rank. Collective; waits.
void broadcast_text(Communicator& comm, std::string& text, int root);

/// An owned duplicate of an MPI communicator with a name, a sequence number per operation, and accounting.
/// Move-only; freed unless MPI is already finalised or an exception unwinds. All operations are non-blocking and return
/// a Request. Counts are 64-bit: what is longer than 1 GiB is split over several MPI calls (src/comm/parts.hpp says
/// why).
class Communicator {
public:
  Communicator() = default;
  /// Duplicates `comm`.
  Communicator(MPI_Comm comm, std::string name);
  /// MPI_COMM_WORLD, duplicated.
  static Communicator world();
  /// MPI_COMM_SELF, duplicated.
  static Communicator self();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  bool valid() const { return state_ != nullptr; }
  int rank() const;
  int size() const;
  std::string const& name() const;
  MPI_Comm mpi() const;

  /// MPI_Comm_split: ranks with the same color, ordered by key. A negative color gives an invalid communicator.
  Communicator split(int color, int key, std::string name) const;
  /// Takes ownership of an existing handle (for MPI_Cart_sub).
  static Communicator adopt(MPI_Comm comm, std::string name);

  /// Sets how the all-reduces that follow are carried out (all_reduce.hpp), and the reduce-scatters and all-gathers by
  /// shares. Collective, with none of these under way. shared, hierarchical and auto need open_node_memory(); without
  /// it, auto does without, the others throw base::Error.
  void prepare(AllReduceSettings const& settings);
  /// The algorithm that an all-reduce of so many bytes of host memory takes.
  AllReduce all_reduce_algorithm(std::int64_t bytes) const;
  /// "shared", or "mpi, ring from 64.00 KiB"; with NCCL "nccl (host memory: shared)".
  std::string describe_all_reduce() const;
  /// Whether collectives and exchanges of device memory go by NCCL.
  bool has_nccl() const;

  /// Buffers must stay valid, and untouched from Place::ready on, until the request is done. Collectives must be
  /// started in the same order on all ranks; many may be under way at once. What is not ready holds up the collectives
  /// that follow on the same communicator, or the messages that follow to, or from, the same rank; nothing else.
  /// Collectives over one rank cost nothing (and are not counted); a gather there copies in to out. A received message
  /// with another number of elements is an error. What prepare() sets goes the way that it says, by MPI otherwise;
  /// device memory goes by NCCL where it was prepared with that, by MPI otherwise. A sum of 16-bit numbers is never
  /// MPI's: it is an error before prepare(), after prepare() with AllReduce::mpi, and of device memory without NCCL.
  Request all_reduce(void* inout, std::int64_t count, ElementType type, Reduction op, Place place = {});

  /// Rank r owns elements bounds[r] up to bounds[r + 1] of the buffer, perhaps none: size() + 1 ascending offsets, the
  /// same on all ranks. Afterwards the own share holds the reduction over all ranks, bit for bit what an all-reduce of
  /// the elements from bounds.front() to bounds.back() would give (unless MPI adds), whatever the bounds. What the
  /// other shares hold is unspecified; nothing outside the bounds is touched.
  Request reduce_scatter(void* inout, std::span<std::int64_t const> bounds, ElementType type, Reduction op,
                         Place place = {});
  /// The same with the own share given, and all of them afterwards.
  Request all_gather(void* inout, std::span<std::int64_t const> bounds, ElementType type, Place place = {});
  /// out: count_each elements of each rank in order of rank; `in` may be its own place in `out`. By MPI.
  Request all_gather(void const* in, void* out, std::int64_t count_each, ElementType type);
  Request broadcast(void* inout, std::int64_t count, ElementType type, int root, Place place = {});
  Request send(void const* buffer, std::int64_t count, ElementType type, int peer, int tag, Place place = {});
  Request recv(void* buffer, std::int64_t count, ElementType type, int peer, int tag, Place place = {});
  /// Elements for, or from, one other rank.
  struct Part {
    void* data;  ///< a send only reads it
    std::int64_t count;
    int peer;
  };
  /// Messages between many ranks at once, started and finished together. Every rank of the communicator comes here, if
  /// only with nothing to send; at most one message goes from a rank to another, and none to itself.
  Request exchange(std::vector<Part> sends, std::vector<Part> receives, ElementType type, int tag, Place place = {});
  Request barrier();

  /// Bytes that this rank has given to others, by kind of operation: in messages, read by others out of its memory, or
  /// written by it into theirs. Counted as they go, once their request is done; what MPI makes of a collective nobody
  /// knows, so that counts at its start, in even parts (a broadcast at its root).
  ///
  /// Over all p ranks together, by every algorithm, n bytes are 2 (p-1) n in an all-reduce, (p-1) n in a
  /// reduce-scatter, an all-gather or a broadcast, and n in a message. One rank gives 1/p of an all-reduce's, by ring
  /// but for rounding; in a reduce-scatter all but its own share, always; in an all-gather p-1 times its own share
  /// (hierarchical: where shares and nodes are even). All-reduces through shared memory of up to 4 KiB really move
  /// more, to be over in one step; they count like longer ones.
  struct Sent {
    std::int64_t all_reduce = 0;
    std::int64_t reduce_scatter = 0;
    std::int64_t all_gather = 0;
    std::int64_t broadcast = 0;
    std::int64_t messages = 0;
    std::int64_t total() const { return all_reduce + reduce_scatter + all_gather + broadcast + messages; }
    bool operator==(Sent const&) const = default;
  };
  /// Seconds this rank has spent waiting for operations of this communicator, and their number and bytes (the longest
  /// buffer of each on this rank).
  struct Accounting {
    double wait_seconds = 0.0;
    std::int64_t operations = 0;
    std::int64_t bytes = 0;
    Sent sent;
  };
  Accounting accounting() const;
  void reset_accounting();

private:
  friend class Request;
  struct State;
  Request begin(char const* operation, std::int64_t count, ElementType type, int peer, bool receives);
  std::shared_ptr<State> state_;
};

}  // namespace p3d::comm
