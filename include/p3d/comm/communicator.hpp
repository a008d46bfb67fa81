// SPDX-License-Identifier: Apache-2.0
#pragma once
// MPI in RAII: environment, communicator, request. No Kokkos: buffers are raw host (or GPU-aware) pointers with counts.
//
// Every operation is non-blocking and returns a Request that ends in wait(). Example: auto sum = comm.all_reduce(x, n,
// Type::float32, Reduction::sum); ... (other work) ...; sum.wait();

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

/// MPI_Init_thread(FUNNELED or better) in the constructor, MPI_Finalize in the destructor. It sets the log rank and,
/// for this node, the wait policy. The error handlers of world return codes, which p3d turns into base::Error with the
/// call, the rank and MPI's text. Destroying it while an exception is in flight aborts all ranks instead of hanging in
/// MPI_Finalize: print the message inside its scope, as a catch outside is never reached. It works without a launcher,
/// as one rank. An Environment inside another does nothing.
///
/// It ends the program with ExitCode::bad_input and a text from one rank when a launcher started several processes that
/// MPI does not connect, or when the ranks were given different words (argv, apart from Kokkos' options). Nothing
/// blocks longer than wait_policy().timeout_s (MPI_Init: 30 s at least); set the policy before if its default is not
/// right.
class Environment {
public:
  Environment(int& argc, char**& argv);
  ~Environment();
  Environment(Environment const&) = delete;
  Environment& operator=(Environment const&) = delete;

  /// Tells the exit code of the program and returns it. Some MPI libraries do not return from MPI_Finalize; the process
  /// then ends there, with this code, or with run_failed when none was told.
  int exit_code(int code);

private:
  int exceptions_;
  bool owner_;
};

/// The ranks on this node, this rank's number among them, and the cores that all of them may use.
struct NodeShare {
  int ranks = 1;
  int rank = 0;   ///< number of this rank on its node, from 0
  int cores = 1;  ///< size of the union of the ranks' core sets
};
/// The values that Environment has measured.
NodeShare node_share();

/// Ends every rank with `exit_code` (MPI_Abort on world when MPI runs, std::_Exit otherwise).
[[noreturn]] void abort_all(int exit_code);
/// Ends this process from a thread that may not call MPI, while other threads hang; the launcher ends the other ranks.
/// MPICH's launcher is told the code in its own protocol; another launcher may return the code of a rank that it kills
/// itself.
[[noreturn]] void leave_without_mpi(int exit_code);

/// Element types that MPI may sum (except byte, which is only moved). There is deliberately no 2-byte type.
enum class Type { int32, int64, uint64, float32, float64, byte };
/// 16-bit floating-point numbers (base/float16.hpp). MPI has no sum for them, so for MPI they are bits to move; p3d's
/// own algorithms add them in float.
enum class Float16Type { bfloat16, float16 };
/// Any element type. A function that calls an MPI sum takes a Type instead, so that no sum of 16 bits reaches MPI by
/// mistake.
class ElementType {
public:
  constexpr ElementType(Type type) : type_(type) {}
  constexpr ElementType(Float16Type type) : float16_(type) {}
  /// The type for MPI; empty for 16-bit numbers.
  constexpr std::optional<Type> mpi() const { return type_; }
  /// The 16-bit type; empty for all others.
  constexpr std::optional<Float16Type> float16() const { return float16_; }
  bool operator==(ElementType const&) const = default;

private:
  std::optional<Type> type_;
  std::optional<Float16Type> float16_;
};
/// Bytes of one element.
std::size_t size_of(ElementType type);
enum class Reduction { sum, max, min };
/// The kind of memory that holds a buffer: host memory, which this process reads and writes, or device memory, which
/// only MPI or NCCL reads.
enum class Memory { host, device };
/// Where a buffer lies, and from when on it may be touched. For device memory, `stream` is the stream (the vendor's
/// own) on which the caller writes it: NCCL comes after what the stream has been given. MPI and p3d's own algorithms
/// begin when `ready` returns true (an event on the device, for example); empty: at once. `ready` is called at each
/// start, test and wait of this process, by the thread that makes them, and never again after true. It must become true
/// without this process' help, and must not communicate.
struct Place {
  using Ready = std::function<bool()>;
  Place(Memory kind = Memory::host, void* device_stream = nullptr, Ready is_ready = {})
      : memory(kind), stream(device_stream), ready(std::move(is_ready)) {}
  Memory memory;
  void* stream;
  Ready ready;
  /// True: Request::wait() of a collective by NCCL returns when it is launched, and `stream`, not the host, waits for
  /// it. It fits buffers that only work on this stream touches afterwards.
  bool stream_waits = false;
};

/// Pieces of a buffer that the ranks of a communicator own, for a collective over part of a buffer of shares: rank r
/// owns elements begins[r] up to ends[r], perhaps none. They ascend; what lies between two pieces takes no part. All
/// ranks give the same.
struct SharePieces {
  std::vector<std::int64_t> begins, ends;
  /// Number of elements of the whole buffer. The algorithm is chosen for so many, so that pieces are added in the order
  /// in which the whole would be. 0: the pieces are all there is.
  std::int64_t whole = 0;
};

class Communicator;

/// One non-blocking operation. It is move-only, keeps alive what it was told to keep, and ends in wait(). Destroying an
/// unfinished request waits for it, except while an exception unwinds: then it is abandoned, and its kept buffers are
/// never freed.
class Request {
public:
  Request() noexcept;
  Request(Request&&) noexcept;
  Request& operator=(Request&&) noexcept;
  ~Request();
  /// False for a request that is done, or that never had anything to do.
  bool active() const;
  /// Makes one MPI_Test. True when the operation is finished (then the completion hook has run).
  bool test();
  /// Waits: spins, backs off, watches the time, and past the budget reports and ends all ranks. The time spent is added
  /// to the communicator's wait_seconds.
  void wait();
  /// Runs `hook` after completion (unpack, copy to a device) and keeps `keep` alive until then. The hook runs at once
  /// when the request is not active (a collective over one rank).
  void on_complete(std::function<void()> hook, std::shared_ptr<void> keep = {});

private:
  friend class Communicator;
  struct State;
  std::unique_ptr<State> state_;
};

/// Waits for all requests, in order.
void wait_all(std::vector<Request>& requests);

/// Copies the text of rank `root` to every rank. Collective; waits.
void broadcast_text(Communicator& comm, std::string& text, int root);

/// An owned duplicate of an MPI communicator with a name, a sequence number per operation, and accounting. It is
/// move-only, and freed unless MPI is already finalised or an exception unwinds. All operations are non-blocking and
/// return a Request. Counts are 64-bit: a buffer longer than 1 GiB is split over several MPI calls (src/comm/parts.hpp
/// says why).
class Communicator {
public:
  Communicator() = default;
  /// Duplicates `comm`. Collective.
  Communicator(MPI_Comm comm, std::string name);
  /// Duplicates MPI_COMM_WORLD. Collective.
  static Communicator world();
  /// Duplicates MPI_COMM_SELF.
  static Communicator self();
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  /// False for a default-constructed communicator, and for one of split() with a negative color.
  bool valid() const { return state_ != nullptr; }
  int rank() const;
  int size() const;
  std::string const& name() const;
  /// The handle, which this object owns; MPI_COMM_NULL when not valid().
  MPI_Comm mpi() const;

  /// Makes a communicator of the ranks with the same color, ordered by key (MPI_Comm_split). A negative color gives an
  /// invalid communicator. Collective.
  Communicator split(int color, int key, std::string name) const;
  /// Takes ownership of an existing handle (of MPI_Cart_sub, for example).
  static Communicator adopt(MPI_Comm comm, std::string name);

  /// Sets how later all-reduces, and reduce-scatters and all-gathers by shares, are carried out (all_reduce.hpp).
  /// Collective, with none of these under way. shared, hierarchical and auto need open_node_memory(); without it, auto
  /// uses messages, and the others throw base::Error.
  void prepare(AllReduceSettings const& settings);
  /// The algorithm of an all-reduce of this many bytes of host memory.
  AllReduce all_reduce_algorithm(std::int64_t bytes) const;
  /// The algorithms in words: "shared", or "mpi, ring from 64.00 KiB"; with NCCL "nccl (host memory: shared)".
  std::string describe_all_reduce() const;
  /// The number of nodes that the ranks are on, as prepare() found it; 1 where MPI itself reduces host memory.
  int nodes() const;
  /// True when collectives and exchanges of device memory go by NCCL.
  bool has_nccl() const;

  /// Reduces `count` elements in place over all ranks. The following holds for all operations. Buffers must stay valid,
  /// and untouched from Place::ready on, until the request is done. Collectives must be started in the same order on
  /// all ranks; many may be under way at once. An operation that is not ready holds up the collectives that follow on
  /// the same communicator, or the messages that follow to, or from, the same rank; nothing else. Collectives over one
  /// rank cost nothing (and are not counted); a gather there copies in to out. A received message with another number
  /// of elements is an error. Collectives go the way that prepare() has set, by MPI otherwise; device memory goes by
  /// NCCL where it was prepared with that, by MPI otherwise. A sum of 16-bit numbers is never MPI's: it is an error
  /// before prepare(), after prepare() with AllReduce::mpi, and for device memory without NCCL. `whole`: elements of
  /// the buffer of which these are a part, as SharePieces::whole.
  Request all_reduce(void* inout, std::int64_t count, ElementType type, Reduction op, Place place = {},
                     std::int64_t whole = 0);

  /// Reduces a buffer of shares: rank r owns elements bounds[r] up to bounds[r + 1], perhaps none. `bounds` holds
  /// size() + 1 ascending offsets, the same on all ranks. Afterwards the own share holds the reduction over all ranks,
  /// bit for bit what an all-reduce of the elements from bounds.front() to bounds.back() would give (unless MPI adds),
  /// whatever the bounds. The contents of the other shares are unspecified; nothing outside the bounds is touched.
  Request reduce_scatter(void* inout, std::span<std::int64_t const> bounds, ElementType type, Reduction op,
                         Place place = {});
  /// Gathers a buffer of shares in place: before the call the own share is set, afterwards all shares are. `bounds` as
  /// for reduce_scatter().
  Request all_gather(void* inout, std::span<std::int64_t const> bounds, ElementType type, Place place = {});
  /// Reduces one piece of every rank's share: a reduce_scatter() in several parts, each of which may begin when its
  /// elements are there. Together the parts give the bits of the whole (unless MPI adds). Elements between the pieces
  /// are not touched.
  Request reduce_scatter(void* inout, SharePieces const& pieces, ElementType type, Reduction op, Place place = {});
  /// Gathers one piece of every rank's share.
  Request all_gather(void* inout, SharePieces const& pieces, ElementType type, Place place = {});
  /// Gathers count_each elements of each rank into `out`, in the order of ranks; `in` may be its own place in `out`. By
  /// MPI.
  Request all_gather(void const* in, void* out, std::int64_t count_each, ElementType type);
  /// Copies `count` elements of rank `root` to all ranks.
  Request broadcast(void* inout, std::int64_t count, ElementType type, int root, Place place = {});
  /// Sends a message to rank `peer`; messages of one pair of ranks and tag arrive in order.
  Request send(void const* buffer, std::int64_t count, ElementType type, int peer, int tag, Place place = {});
  /// Receives a message of just `count` elements from rank `peer`.
  Request recv(void* buffer, std::int64_t count, ElementType type, int peer, int tag, Place place = {});
  /// One message of an exchange: elements for, or from, one other rank.
  struct Part {
    void* data;          ///< where they are, or will be; a send only reads it
    std::int64_t count;  ///< number of elements
    int peer;
  };
  /// Sends and receives messages between many ranks at once; they start and finish as one operation. Every rank of the
  /// communicator must call it, even with nothing to send. At most one message goes from a rank to another, and none to
  /// itself.
  Request exchange(std::vector<Part> sends, std::vector<Part> receives, ElementType type, int tag, Place place = {});
  /// A message with one rank that can start, perhaps together with others.
  struct Message {
    bool sends;          ///< false: it is received
    void* data;          ///< where the elements are, or will be; a send only reads it
    std::int64_t count;  ///< number of elements
    ElementType type;
    int peer, tag;
    Place place = {};
    /// A hook and what stays alive until it has run, as for Request::on_complete().
    struct Completion {
      std::function<void()> hook;
      std::shared_ptr<void> keep = {};
    };
    std::vector<Completion> completions = {};
  };
  /// Starts a message by itself, as send() or recv() do.
  Request start_message(Message message);
  /// Starts a send and a receive with the same rank in one call (MPI_Isendrecv), or, where MPI has none (before MPI-4)
  /// or a message is longer than a call can carry, one after the other. In one call, both requests are done when both
  /// messages are. The peer may use any calls. No shorter message is noticed: MPI does not tell the length.
  std::pair<Request, Request> start_pair(Message first, Message second);
  /// Starts one exchange with the neighbours on the ring (MPI_Ineighbor_alltoallw): at most one message to, and one
  /// from, each. Returns a request for each message, or a single one when there is none; all are done when the exchange
  /// is over on this rank. The ranks of a ring start all exchanges in the same order. Only on a communicator of ring().
  std::vector<Request> exchange_with_neighbours(std::vector<Message> messages);
  /// Makes a Cartesian communicator of one dimension of these ranks, with their numbers. periodic: the first and the
  /// last one are neighbours, too, which needs three ranks. Collective.
  Communicator ring(bool periodic, std::string name) const;
  /// Is done when all ranks have started it.
  Request barrier();

  /// Bytes that this rank has given to others, by kind of operation: sent in messages, read by others from its memory,
  /// or written by it into theirs. They are counted as they go, once their request is done. Nobody knows what MPI makes
  /// of a collective, so its bytes are counted at its start, in even parts (a broadcast at its root).
  ///
  /// Sums over all p ranks are the same for every algorithm. For a buffer of n bytes they are 2 (p-1) n in an
  /// all-reduce, (p-1) n in a reduce-scatter, an all-gather or a broadcast, and n in a message. One rank gives 1/p of
  /// an all-reduce's bytes (ring: up to rounding); in a reduce-scatter all but its own share, always; in an all-gather
  /// p-1 times its own share (hierarchical: where shares and nodes are even). All-reduces through shared memory of up
  /// to 4 KiB really move more, to be over in one step; they are counted like longer ones.
  struct Sent {
    std::int64_t all_reduce = 0;
    std::int64_t reduce_scatter = 0;
    std::int64_t all_gather = 0;
    std::int64_t broadcast = 0;
    std::int64_t messages = 0;
    std::int64_t total() const { return all_reduce + reduce_scatter + all_gather + broadcast + messages; }
    bool operator==(Sent const&) const = default;
  };
  /// The time that this rank has spent waiting for operations of this communicator, the number of operations, and their
  /// bytes (the longest buffer of each on this rank).
  struct Accounting {
    double wait_seconds = 0.0;
    std::int64_t operations = 0;
    std::int64_t bytes = 0;
    Sent sent;
  };
  /// The account since the start, or since reset_accounting().
  Accounting accounting() const;
  void reset_accounting();

private:
  friend class Request;
  struct State;
  Request begin(char const* operation, std::int64_t count, ElementType type, int peer, bool receives);
  std::shared_ptr<State> state_;
};

}  // namespace p3d::comm
