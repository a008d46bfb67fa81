// SPDX-License-Identifier: Apache-2.0
#include "nccl_engine.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/hash.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/process.hpp>
#include <p3d/comm/nccl.hpp>
#include <p3d/comm/wait.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "internal.hpp"
#include "parts.hpp"

namespace p3d::comm {

namespace detail {

namespace {

using State = NcclApi::State;

std::shared_ptr<NcclApi>& given_api() {
  static std::shared_ptr<NcclApi> api;
  return api;
}

std::vector<NcclEngine*>& engines() {
  static auto& all = *new std::vector<NcclEngine*>;  // communicators may outlive statics
  return all;
}

/// Shares of the same length in the order of ranks, which NCCL knows.
bool even(Work const& work) {
  for (int s = 1; s + 1 < static_cast<int>(work.bounds.size()); ++s) {
    if (work.share(s) != work.share(0)) return false;
  }
  return true;
}

}  // namespace

NcclApi::~NcclApi() = default;

std::shared_ptr<NcclApi> nccl_api() { return given_api() ? given_api() : nccl_library(); }
void set_nccl_api(std::shared_ptr<NcclApi> api) { given_api() = std::move(api); }

NcclEngine::NcclEngine(Communicator& comm, std::shared_ptr<NcclApi> api)
    : api_(std::move(api)),
      mpi_(comm.mpi()),
      name_(comm.name()),
      rank_(comm.rank()),
      size_(comm.size()),
      exceptions_(std::uncaught_exceptions()) {
  NcclApi::Id id{};
  Result made;
  if (rank_ == 0) made = api_->new_id(id);
  // The others learn of a failure here too, instead of waiting for rank 0.
  std::int32_t failed = made.state == State::failed ? 1 : 0;
  comm.broadcast(&failed, 1, Type::int32, 0).wait();
  if (failed != 0) {
    if (rank_ != 0) made = {State::failed, "so says rank 0 of the communicator"};
    check(made, "ncclGetUniqueId");
  }
  comm.broadcast(id.data(), static_cast<std::int64_t>(id.size()), Type::byte, 0).wait();
  engines().push_back(this);
  try {
    check(api_->new_stream(stream_), "a stream for NCCL");
    auto const begun = api_->init(group_, size_, id, rank_);
    change("ncclCommInitRank", begun);
  } catch (...) {
    abort();
    std::erase(engines(), this);
    throw;
  }
}

NcclEngine::~NcclEngine() {
  bool const in_order =
      group_ != nullptr && !stopped() && idle() && mpi_runs() && std::uncaught_exceptions() <= exceptions_;
  if (in_order) {
    try {
      change("ncclCommFinalize", api_->finalize(group_));
      auto const group = std::exchange(group_, nullptr);
      check(blocking("ncclCommDestroy", name_, [&] { return api_->destroy(group); }), "ncclCommDestroy");
    } catch (std::exception const& e) {
      base::error_here(e.what());
    }
  }
  bool const aborted = group_ != nullptr;
  abort();
  std::erase(engines(), this);
  for (auto event : events_) api_->free_event(event);
  if (stream_ != nullptr && !aborted) api_->free_stream(stream_);  // may wait for what was aborted
}

void NcclEngine::abort() noexcept {
  if (auto const group = std::exchange(group_, nullptr); group != nullptr) (void)api_->abort(group);
  waiting_.clear();
  launched_.clear();
  launching_ = false;
  changing_ = nullptr;
}

/// The communicator begins or ends: a call that all ranks make, watched like any other wait.
void NcclEngine::change(char const* operation, Result const& result) {
  check(result, operation);
  if (result.state == State::done) return;
  call_ = operation;
  Pending pending;
  pending.comm = std::make_shared<CommRecord>(mpi_, name_, false);
  pending.operation = operation;
  pending.engine = this;
  changing_ = &pending.work;
  start(pending.work);
  wait(pending);
}

void NcclEngine::check(Result const& result, char const* call) {
  if (result.state != State::failed) return;
  base::Error const error(
      {.expected = fmt::format("{} to succeed", call),
       .found = result.text,
       .where = fmt::format("rank {} of {}, communicator '{}' ({})", base::log_rank(), base::log_num_ranks(), name_,
                            api_->version()),
       .fix = "see the text; NCCL_DEBUG=WARN makes the library say more; when another rank failed first, its message "
              "is the one to read. comm.backend = \"mpi\" does without NCCL"});
  abort();
  stop();
  throw error;
}

NcclApi::Event NcclEngine::event() {
  if (free_events_.empty()) {
    NcclApi::Event made = nullptr;
    check(api_->new_event(made), "an event for NCCL");
    events_.push_back(made);
    return made;
  }
  auto const last = free_events_.back();
  free_events_.pop_back();
  return last;
}

void NcclEngine::enqueue(Work& work) {
  if (&work == changing_) return;
  auto const ready = event();
  check(api_->record(ready, work.stream), "an event of the caller's stream");
  waiting_.push_back({&work, ready, nullptr});
}

bool NcclEngine::advance() {
  if (group_ == nullptr) return false;
  auto const state = api_->state(group_);
  check(state, call_);
  bool moved = false;
  if (changing_ != nullptr) {
    if (state.state == State::open) return false;
    std::exchange(changing_, nullptr)->done = true;
    return true;
  }
  // Nothing may follow before the last call is on the stream.
  bool free = state.state == State::done;
  while (free && !waiting_.empty()) {
    if (!launching_) launch(waiting_.front());
    free = !launching_;
    if (!free) {
      auto const now = api_->state(group_);
      check(now, call_);
      free = now.state == State::done;
    }
    if (!free) break;
    launching_ = false;
    auto open = waiting_.front();
    waiting_.pop_front();
    free_events_.push_back(open.ready);
    open.done = event();
    check(api_->record(open.done, stream_), "an event after a collective");
    launched_.push_back(open);
    moved = true;
  }
  while (!launched_.empty()) {
    auto const& first = launched_.front();
    auto const reached = api_->query(first.done);
    check(reached, call_);
    if (reached.state == State::open) break;
    free_events_.push_back(first.done);
    first.work->done = moved = true;
    launched_.pop_front();
  }
  return moved;
}

void NcclEngine::launch(Open const& open) {
  check(api_->wait(stream_, open.ready), "a stream after an event");
  check(api_->begin(), "ncclGroupStart");
  auto const called = call(*open.work);
  auto const ended = api_->end(group_);  // also where a call failed: no group stays open
  check(called, call_);
  check(ended, call_);
  launching_ = ended.state == State::open;
}

/// The calls of one group.
NcclEngine::Result NcclEngine::call(Work& work) {
  switch (work.kind) {
    case Collective::all_reduce:
      call_ = "ncclAllReduce";
      work.sent += work.bytes(even_traffic(work.count, rank_, size_));
      return api_->all_reduce(work.data, work.count, work.type, work.op, group_, stream_);
    case Collective::reduce_scatter: return reduce_scatter(work);
    case Collective::all_gather: return all_gather(work);
    case Collective::broadcast:
      call_ = "ncclBroadcast";
      if (rank_ == work.root) work.sent += work.bytes(work.count) * (size_ - 1);
      return api_->broadcast(work.data, work.count, work.type, work.root, group_, stream_);
    case Collective::exchange: return exchange(work);
  }
  return {};
}

NcclEngine::Result NcclEngine::reduce_scatter(Work& work) {
  work.sent += work.bytes(work.count - work.share(rank_));
  auto const at = [&](int s) { return work.at(work.bounds[static_cast<std::size_t>(s)]); };
  if (even(work)) {
    call_ = "ncclReduceScatter";
    return api_->reduce_scatter(work.data, at(rank_), work.share(0), work.type, work.op, group_, stream_);
  }
  call_ = "ncclReduce";
  for (int s = 0; s < size_; ++s) {
    if (work.share(s) == 0) continue;
    if (auto r = api_->reduce(at(s), work.share(s), work.type, work.op, s, group_, stream_); r.state == State::failed)
      return r;
  }
  return {};
}

NcclEngine::Result NcclEngine::all_gather(Work& work) {
  work.sent += work.bytes(work.share(rank_)) * (size_ - 1);
  auto const at = [&](int s) { return work.at(work.bounds[static_cast<std::size_t>(s)]); };
  if (even(work)) {
    call_ = "ncclAllGather";
    return api_->all_gather(at(rank_), work.data, work.share(0), work.type, group_, stream_);
  }
  call_ = "ncclBroadcast";
  for (int s = 0; s < size_; ++s) {
    if (work.share(s) == 0) continue;
    if (auto r = api_->broadcast(at(s), work.share(s), work.type, s, group_, stream_); r.state == State::failed)
      return r;
  }
  return {};
}

NcclEngine::Result NcclEngine::exchange(Work& work) {
  for (auto const& m : work.receives) {
    call_ = "ncclRecv";
    if (auto r = api_->recv(m.data, m.count, work.type, m.peer, group_, stream_); r.state == State::failed) return r;
  }
  for (auto const& m : work.sends) {
    call_ = "ncclSend";
    work.sent += work.bytes(m.count);
    if (auto r = api_->send(m.data, m.count, work.type, m.peer, group_, stream_); r.state == State::failed) return r;
  }
  return {};
}

void abort_nccl() noexcept {
  for (auto* engine : engines()) engine->abort();
}

}  // namespace detail

bool has_nccl() { return detail::nccl_api() != nullptr; }

std::string nccl_version() {
  auto const api = detail::nccl_api();
  return api ? api->version() : "";
}

bool one_gpu_each(Communicator& world) {
  auto const own = base::fnv1a(base::host_name() + ' ' + detail::nccl_api()->gpu());
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), 1, Type::uint64).wait();
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) == all.end();
}

}  // namespace p3d::comm
