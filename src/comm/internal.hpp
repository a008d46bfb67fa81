// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the sources of this room share: the record behind a Communicator, the one behind a Request, checked MPI calls.

#include <p3d/comm/communicator.hpp>

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

/// Throws base::Error naming the call, the rank, the communicator and MPI's own text unless `code` is MPI_SUCCESS.
void check(int code, char const* call, std::string const& communicator);

/// MPI runs: after MPI_Init, before MPI_Finalize.
bool mpi_runs();

/// Whatever hangs from here on: after so many seconds an alarm ends this process with `exit_code`.
void leave_within(unsigned seconds, int exit_code);

struct CommRecord {
  CommRecord(MPI_Comm handle, std::string given_name, bool owned);
  ~CommRecord();  ///< frees an owned handle unless MPI is finalised or an exception is in flight (a free is collective)
  CommRecord(CommRecord const&) = delete;
  CommRecord& operator=(CommRecord const&) = delete;

  MPI_Comm mpi;
  std::string name;
  bool owned;
  int rank = 0;
  int size = 1;
  std::int64_t collectives = 0;                             ///< started so far: the same number on every rank
  std::unordered_map<std::int64_t, std::int64_t> messages;  ///< started so far, by line
  Communicator::Accounting accounting;
  std::unique_ptr<AllReducer> all_reducer;  ///< null: MPI reduces
  std::unique_ptr<NcclEngine> nccl;         ///< null: device memory is MPI's affair
  int exceptions = std::uncaught_exceptions();
};

/// One operation under way: several MPI requests when the message was split.
struct Pending {
  std::shared_ptr<CommRecord> comm;
  char const* operation = "";
  int peer = -1;              ///< in the communicator; -1 for collectives
  std::int64_t line = -1;     ///< of what begins in order on a communicator: -1 collectives; else (peer, direction)
  std::int64_t sequence = 0;  ///< in that line
  MPI_Datatype type = MPI_BYTE;
  bool stream_waits = false;  ///< what is waited for is the launch: work.stream waits for the rest
  bool begun = true;          ///< not while it is late (late_start.hpp)
  Engine* engine = nullptr;   ///< carries out `work`; null: MPI carries out `parts`
  Work work;
  std::int64_t Communicator::Sent::*sent = nullptr;  ///< where work.sent is counted
  std::vector<MPI_Request> parts;
  std::vector<std::int64_t> receives;  ///< elements that the first parts must bring: those that receive
  std::vector<std::function<void()>> hooks;
  std::vector<std::shared_ptr<void>> keep;
  int exceptions = std::uncaught_exceptions();
};

/// Moves all engines on, and asks whether the operation is over: one MPI_Test for each part that is still open. Throws
/// when MPI reports an error or a message has the wrong length.
bool test(Pending& pending);
/// THE wait. See wait.hpp.
void wait(Pending& pending);
/// Runs the hooks and drops what was kept alive.
void finish(Pending& pending);

/// Has an engine carry out `work`, unless MPI is to (false), as prepare() has set. `sent`: where its bytes count.
bool start_in_engine(Pending& pending, Work work, std::int64_t Communicator::Sent::*sent, Place const& place);
/// Throws unless the elements can be summed, by MPI or else by an engine.
void require_summable(CommRecord const& comm, ElementType type, Memory memory, char const* operation);

/// A barrier that the watchdog sees, before a call that is collective and blocking: a rank that does not come to it is
/// named in one table. (A rank that stops inside the call is blocking()'s affair.)
void watched_barrier(MPI_Comm mpi, std::string const& name, char const* operation);

/// Whether MPI_Finalize may never return with ranks on several nodes: by what MPI_Get_library_version says.
bool finalize_may_hang(std::string_view library);
/// From now on this process ends with `exit_code` unless stay_after_finalize() comes soon. When all ranks have met.
void leave_finalize_after_a_while(int exit_code);
void stay_after_finalize();

}  // namespace p3d::comm::detail

namespace p3d::comm {
struct Communicator::State : detail::CommRecord {
  using CommRecord::CommRecord;
};
struct Request::State : detail::Pending {};
}  // namespace p3d::comm
