// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>

#include <fmt/format.h>

#include <utility>

#include "late_start.hpp"

namespace p3d::comm {

namespace detail {

bool test(Pending& pending) {
  advance_engines();
  if (!pending.begun) return false;
  if (pending.engine != nullptr) {
    if (pending.work.done || (pending.stream_waits && pending.work.launched)) return true;
    pending.engine->require_working();
    return false;
  }
  if (pending.shared) {
    int over = 0;
    if (pending.shared->begun)
      check(MPI_Test(&pending.shared->request, &over, MPI_STATUS_IGNORE), pending.operation, pending.comm->name);
    return over != 0;
  }
  bool all = true;
  for (std::size_t i = 0; i < pending.parts.size(); ++i) {
    if (pending.parts[i] == MPI_REQUEST_NULL) continue;
    int flag = 0;
    MPI_Status status;
    check(MPI_Test(&pending.parts[i], &flag, &status), pending.operation, pending.comm->name);
    if (!flag) {
      all = false;
    } else if (i < pending.receives.size()) {
      int count = 0;
      check(MPI_Get_count(&status, pending.type, &count), "MPI_Get_count", pending.comm->name);
      if (count != pending.receives[i]) {
        throw base::Error(
            {.expected = fmt::format("a message of {} elements", pending.receives[i]),
             .found = count == MPI_UNDEFINED ? std::string("one that is no whole number of elements")
                                             : std::to_string(count),
             .where = fmt::format("rank {}, communicator '{}', message {} from its rank {}", base::log_rank(),
                                  pending.comm->name, pending.sequence, status.MPI_SOURCE),
             .fix = "sender and receiver must agree on the number of elements"});
      }
    }
  }
  return all;
}

void finish(Pending& pending) {
  if (pending.sent != nullptr) pending.comm->accounting.sent.*pending.sent += pending.work.sent;
  for (int const peer : pending.peers) wake_peer(*pending.comm, peer);
  auto const hooks = std::move(pending.hooks);
  for (auto const& hook : hooks) hook();
  pending.keep.clear();
}

}  // namespace detail

Request::Request() noexcept = default;
Request::Request(Request&&) noexcept = default;

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    Request finishes_the_old(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

Request::~Request() {
  if (!state_) return;
  if (std::uncaught_exceptions() > state_->exceptions || !detail::mpi_runs()) {
    // The peers may never come, so do not wait for them. MPI may still write into the buffers that are kept alive, so
    // those are never freed.
    bool open = state_->engine != nullptr && !state_->work.done;
    if (open) state_->engine->stop();
    if (!state_->begun) {
      detail::give_up_late(*state_);
      open = true;
    }
    open = open || (state_->shared && !(state_->shared->begun && state_->shared->request == MPI_REQUEST_NULL));
    for (auto& part : state_->parts) {
      if (part == MPI_REQUEST_NULL) continue;
      open = true;
      if (state_->peer >= 0 && detail::mpi_runs()) MPI_Cancel(&part);
    }
    static auto& given_up = *new std::vector<std::unique_ptr<State>>;
    if (open) given_up.push_back(std::move(state_));
    return;
  }
  try {
    wait();
  } catch (std::exception const& e) {  // nobody above a destructor can handle the error
    base::error_here(e.what());
    abort_all(static_cast<int>(base::ExitCode::run_failed));
  }
}

bool Request::active() const { return state_ != nullptr; }

bool Request::test() {
  if (!state_) return true;
  if (!detail::test(*state_) || (state_->stream_waits && !state_->work.done)) return false;
  auto const done = std::move(state_);
  detail::finish(*done);
  return true;
}

void Request::wait() {
  if (!state_) return;
  detail::wait(*state_);
  auto done = std::move(state_);
  if (!done->stream_waits || done->work.done) return detail::finish(*done);
  done->engine->make_wait(done->work.stream, done->work);
  auto kept = std::move(done->keep);
  detail::finish(*done);
  done->keep = std::move(kept);
  // The engine still has the work, on its stream. The communicator may be destroyed before the work is over: its engine
  // settles then.
  static auto& with_the_engine = *new std::vector<std::unique_ptr<State>>;
  std::erase_if(with_the_engine, [](auto const& other) { return other->work.done; });
  done->comm.reset();
  with_the_engine.push_back(std::move(done));
}

void Request::on_complete(std::function<void()> hook, std::shared_ptr<void> keep) {
  if (!state_) {  // nothing to wait for (a communicator of one rank): the operation is complete
    if (hook) hook();
    return;
  }
  if (hook) state_->hooks.push_back(std::move(hook));
  if (keep) state_->keep.push_back(std::move(keep));
}

void wait_all(std::vector<Request>& requests) {
  for (auto& request : requests) request.wait();
}

}  // namespace p3d::comm
