// SPDX-License-Identifier: Apache-2.0
#pragma once
// Declarations that the sources of this room share: the record behind a Communicator, the one behind a Request, checked
// MPI calls.

#include <p3d/comm/communicator.hpp>

#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine.hpp"

namespace p3d::comm::detail {

class AllReducer;
class NcclEngine;

/// Throws base::Error with the call, the rank, the communicator and MPI's own text unless `code` is MPI_SUCCESS.
void check(int code, char const* call, std::string const& communicator);

/// True after MPI_Init and before MPI_Finalize.
bool mpi_runs();

/// Sets an alarm that ends this process with `exit_code` after so many seconds, whatever hangs from here on.
void leave_within(unsigned seconds, int exit_code);

/// The state of a communicator. Requests share it with the Communicator, so it lives until the last of them is done.
struct CommRecord {
  CommRecord(MPI_Comm handle, std::string given_name, bool owned);
  /// Frees an owned handle unless MPI is finalised or an exception is in flight (freeing is collective).
  ~CommRecord();
  CommRecord(CommRecord const&) = delete;
  CommRecord& operator=(CommRecord const&) = delete;

  MPI_Comm mpi;
  std::string name;
  bool owned;
  int rank = 0;
  int size = 1;
  std::int64_t collectives = 0;  ///< number of collectives started so far; the same on every rank
  std::unordered_map<std::int64_t, std::int64_t> messages;  ///< messages started so far on each line (Pending::line)
  Communicator::Accounting accounting;
  /// The ranks below and above on the ring, for exchanges with them; MPI_PROC_NULL: nobody.
  std::array<int, 2> neighbours{MPI_PROC_NULL, MPI_PROC_NULL};
  /// The number of each rank on this node (node_memory.hpp); empty until a message needs it.
  std::vector<int> numbers_on_node;
  std::unique_ptr<AllReducer> all_reducer;      ///< null: MPI reduces host memory
  std::unique_ptr<NcclEngine> nccl;             ///< null: MPI reads device memory itself
  int exceptions = std::uncaught_exceptions();  ///< exceptions in flight when the record was made
};

/// One MPI call that carries several messages, each an operation of its own. All are over when the call is.
struct SharedCall {
  MPI_Request request = MPI_REQUEST_NULL;
  bool begun = false;
  /// The arguments of MPI_Ineighbor_alltoallw, which MPI reads until the call is over.
  struct Blocks {
    std::vector<int> counts;
    std::vector<MPI_Aint> addresses;
    std::vector<MPI_Datatype> types;
  } sends, receives;
};

/// One operation under way. It has several MPI requests when the message was split.
struct Pending {
  std::shared_ptr<CommRecord> comm;
  char const* operation = "";
  int peer = -1;  ///< rank in the communicator; -1 for collectives
  /// Operations of one line begin in order: -1 for collectives, else a number of (peer, direction).
  std::int64_t line = -1;
  /// A send and a receive in one call are of two lines.
  std::int64_t second_line = -2;
  std::int64_t sequence = 0;  ///< number of the operation in its line
  MPI_Datatype type = MPI_BYTE;
  bool stream_waits = false;  ///< wait() ends with the launch; work.stream waits for the end
  bool begun = true;          ///< false while the operation is late (late_start.hpp)
  Engine* engine = nullptr;   ///< the engine that carries out `work`; null: MPI carries out `parts`
  Work work;
  std::int64_t Communicator::Sent::*sent = nullptr;  ///< the counter to which work.sent is added
  std::vector<MPI_Request> parts;
  std::shared_ptr<SharedCall> shared;  ///< the call that carries this message and others; null: none
  std::vector<int> peers;              ///< ranks that are woken when this one begins or ends its part, as it is by them
  std::vector<std::int64_t> receives;  ///< elements that each of the first parts, which receive, must bring
  std::vector<std::function<void()>> hooks;
  std::vector<std::shared_ptr<void>> keep;
  int exceptions = std::uncaught_exceptions();
};

/// Advances all engines, and returns whether the operation is over: one MPI_Test for each part that is still open.
/// Throws when MPI reports an error or a message has the wrong length.
bool test(Pending& pending);
/// Waits for an operation; every wait of p3d ends here (wait.hpp).
void wait(Pending& pending);
/// Runs the hooks and releases the buffers that were kept alive.
void finish(Pending& pending);

/// Wakes a rank of a communicator if it sleeps on this node: a message to it, or from it, may move.
void wake_peer(CommRecord& comm, int peer);

/// Has an engine carry out `work`, as prepare() has set. Returns false when MPI must do it. `sent`: the counter for its
/// bytes.
bool start_in_engine(Pending& pending, Work work, std::int64_t Communicator::Sent::*sent, Place const& place);
/// Throws unless MPI or an engine can sum elements of this type in this memory.
void require_summable(CommRecord const& comm, ElementType type, Memory memory, char const* operation);

/// A barrier that the watchdog sees, before a call that is collective and blocking: a rank that does not come to it is
/// named in one table. (A rank that stops inside the call is found by blocking().)
void watched_barrier(MPI_Comm mpi, std::string const& name, char const* operation);

/// True when MPI_Finalize of this library may never return with ranks on several nodes. `library` is the text of
/// MPI_Get_library_version.
bool finalize_may_hang(std::string_view library);
/// Sets a timer that ends this process with `exit_code` unless stay_after_finalize() is called soon. All ranks must
/// have met before.
void leave_finalize_after_a_while(int exit_code);
/// Stops that timer: MPI_Finalize has returned.
void stay_after_finalize();

}  // namespace p3d::comm::detail

namespace p3d::comm {
struct Communicator::State : detail::CommRecord {
  using CommRecord::CommRecord;
};
struct Request::State : detail::Pending {};
}  // namespace p3d::comm
