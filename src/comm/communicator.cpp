// SPDX-License-Identifier: Apache-2.0
// Communicators: making, duplicating, splitting and freeing them. Making one is collective, so a rank that never comes
// must be found: MPI's non-blocking calls go through the watched wait, and blocking ones stand behind a watched
// barrier.
#include <p3d/comm/communicator.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/wait.hpp>

#include <fmt/format.h>

#include <utility>

#include "all_reducer.hpp"
#include "late_start.hpp"
#include "mpi_calls.hpp"
#include "nccl_engine.hpp"

namespace p3d::comm {

namespace detail {

void check(int code, char const* call, std::string const& communicator) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw base::Error(
      {.expected = fmt::format("{} to succeed", call),
       .found = fmt::format("MPI error {}: {}", code, text),
       .where = fmt::format("rank {} of {}, communicator '{}'", base::log_rank(), base::log_num_ranks(), communicator),
       .fix = "see MPI's text; when another rank failed first, its message is the one to read"});
}

bool mpi_runs() {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised && !finalised;
}

CommRecord::CommRecord(MPI_Comm handle, std::string given_name, bool is_owned)
    : mpi(handle), name(std::move(given_name)), owned(is_owned) {
  check(MPI_Comm_rank(mpi, &rank), "MPI_Comm_rank", name);
  check(MPI_Comm_size(mpi, &size), "MPI_Comm_size", name);
  if (!owned) return;
  check(MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", name);
  check(MPI_Comm_set_name(mpi, name.c_str()), "MPI_Comm_set_name", name);
}

CommRecord::~CommRecord() {
  nccl.reset();                                                  // its destructor needs the communicator
  if (all_reducer && std::uncaught_exceptions() > exceptions) {  // peers may still use its memory
    static auto& given_up = *new std::vector<std::unique_ptr<AllReducer>>;
    given_up.push_back(std::move(all_reducer));
  }
  // Freeing is collective: after an exception the peers may be elsewhere. One rank alone waits for nobody.
  if (owned && mpi_runs() && (size == 1 || std::uncaught_exceptions() <= exceptions)) {
    blocking("MPI_Comm_free", name, [&] { return MPI_Comm_free(&mpi); });
  }
}

namespace {
/// Runs a non-blocking collective of MPI, `begin(MPI_Request*)`, as an operation that the watchdog sees, and waits for
/// it.
template <class Begin>
void watched(MPI_Comm mpi, std::string const& name, char const* operation, char const* call, Begin const& begin) {
  Pending pending;
  pending.comm = std::make_shared<CommRecord>(mpi, name, false);
  pending.operation = operation;
  // The communicators whose operations are late may include this one, under another record.
  struct Never {
    Pending const& pending;
    ~Never() {
      if (!pending.begun) give_up_late(pending);
    }
  } const after_an_error{pending};
  begin_when_ready(
      pending, [&] { return first_of_all(pending); }, [&] { start(pending, call, begin); });
  wait(pending);
}
}  // namespace

void watched_barrier(MPI_Comm mpi, std::string const& name, char const* operation) {
  int size = 0;
  check(MPI_Comm_size(mpi, &size), "MPI_Comm_size", name);
  if (size == 1) return;
  watched(mpi, name, operation, "MPI_Ibarrier", [&](MPI_Request* part) { return MPI_Ibarrier(mpi, part); });
}

}  // namespace detail

Communicator::Communicator(MPI_Comm comm, std::string name) {
  MPI_Comm copy = MPI_COMM_NULL;
  detail::watched(comm, name, "duplicate", "MPI_Comm_idup",
                  [&](MPI_Request* part) { return MPI_Comm_idup(comm, &copy, part); });
  state_ = std::make_shared<State>(copy, std::move(name), true);
}

Communicator Communicator::adopt(MPI_Comm comm, std::string name) {
  Communicator result;
  if (comm != MPI_COMM_NULL) result.state_ = std::make_shared<State>(comm, std::move(name), true);
  return result;
}

Communicator Communicator::world() { return Communicator(MPI_COMM_WORLD, "world"); }
Communicator Communicator::self() { return Communicator(MPI_COMM_SELF, "self"); }

Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

int Communicator::rank() const {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  return state_->rank;
}
int Communicator::size() const {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  return state_->size;
}
std::string const& Communicator::name() const {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  return state_->name;
}
MPI_Comm Communicator::mpi() const { return valid() ? state_->mpi : MPI_COMM_NULL; }

Communicator Communicator::split(int color, int key, std::string name) const {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  detail::watched_barrier(state_->mpi, state_->name, "split");
  MPI_Comm part = MPI_COMM_NULL;
  detail::check(blocking("MPI_Comm_split", name,
                         [&] { return MPI_Comm_split(state_->mpi, color < 0 ? MPI_UNDEFINED : color, key, &part); }),
                "MPI_Comm_split", name);
  return adopt(part, std::move(name));
}

void Communicator::prepare(AllReduceSettings const& settings) {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  state_->all_reducer.reset();
  state_->nccl.reset();
  if (size() == 1) return;
  // NCCL serves device memory; the engines below serve host memory.
  if (settings.nccl) {
    auto api = detail::nccl_api();
    if (!api) {
      base::refuse({.expected = "NCCL or RCCL, for collectives on device memory",
                    .found = "a build of p3d without",
                    .where = fmt::format("rank {}, communicator '{}'", base::log_rank(), name()),
                    .fix = "configure p3d with -DP3D_NCCL=ON, or set comm.backend = \"mpi\""});
    }
    state_->nccl = std::make_unique<detail::NcclEngine>(*this, std::move(api), settings.fixed_order);
  }
  if (settings.algorithm == AllReduce::mpi) return;
  state_->all_reducer = std::make_unique<detail::AllReducer>(*this, settings.algorithm);
}

AllReduce Communicator::all_reduce_algorithm(std::int64_t bytes) const {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  return state_->all_reducer ? state_->all_reducer->choice(bytes) : AllReduce::mpi;
}

std::string Communicator::describe_all_reduce() const {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  auto const host = state_->all_reducer ? state_->all_reducer->describe() : to_string(AllReduce::mpi);
  if (!state_->nccl) return host;
  return fmt::format("nccl{} (host memory: {})", state_->nccl->fixed_order() ? " in order of ranks" : "", host);
}

int Communicator::nodes() const {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  return state_->all_reducer ? state_->all_reducer->nodes() : 1;
}

bool Communicator::has_nccl() const {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  return state_->nccl != nullptr;
}

Communicator::Accounting Communicator::accounting() const {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  return state_->accounting;
}
void Communicator::reset_accounting() {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  state_->accounting = {};
}

}  // namespace p3d::comm
