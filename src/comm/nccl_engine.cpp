// SPDX-License-Identifier: Apache-2.0
// The engine for device memory. A work waits in the queue of the process until it is first there and the last call is
// on its stream; then its calls are made between begin() and end() on the engine's stream, after an event of the
// caller's stream. An event behind the last call tells that the work is over. Every result of a call is checked: the
// first failure aborts NCCL's communicator, and every later wait on this engine throws it.
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

/// The object that a test has set; null: none.
std::shared_ptr<NcclApi>& given_api() {
  static std::shared_ptr<NcclApi> api;
  return api;
}

/// The additions that set_device_sums() has set. They are never destroyed, as communicators may outlive statics.
std::shared_ptr<DeviceSums>& given_sums() {
  static auto& sums = *new std::shared_ptr<DeviceSums>;
  return sums;
}
std::shared_ptr<DeviceSums> device_sums() { return given_sums(); }

std::vector<NcclEngine*>& engines() {
  static auto& all = *new std::vector<NcclEngine*>;  // communicators may outlive statics
  return all;
}

}  // namespace

NcclApi::~NcclApi() = default;

std::shared_ptr<NcclApi> nccl_api() { return given_api() ? given_api() : nccl_library(); }
void set_nccl_api(std::shared_ptr<NcclApi> api) { given_api() = std::move(api); }

NcclEngine::OwnStream::~OwnStream() {
  if (stream == nullptr) return;
  if (sums) sums->forget(stream);
  api->free_stream(stream);
}

NcclEngine::NcclEngine(Communicator& comm, std::shared_ptr<NcclApi> api, bool fixed_order)
    : api_(std::move(api)),
      mpi_(comm.mpi()),
      name_(comm.name()),
      rank_(comm.rank()),
      size_(comm.size()),
      exceptions_(std::uncaught_exceptions()) {
  if (fixed_order) {
    sums_ = device_sums();
    P3D_REQUIRE(sums_ != nullptr, "whoever wants sums in a fixed order has called set_device_sums()");
    workspace_ = sums_->allocate(sums_->workspace());
  }
  NcclApi::Id id{};
  Result made;
  if (rank_ == 0) made = api_->new_id(id);
  // A failure is told to the other ranks too, so that they do not wait for rank 0.
  std::int32_t failed = made.state == State::failed ? 1 : 0;
  comm.broadcast(&failed, 1, Type::int32, 0).wait();
  if (failed != 0) {
    if (rank_ != 0) made = {State::failed, "so says rank 0 of the communicator"};
    check(made, "ncclGetUniqueId");
  }
  comm.broadcast(id.data(), static_cast<std::int64_t>(id.size()), Type::byte, 0).wait();
  engines().push_back(this);
  try {
    static auto& of_all = *new std::weak_ptr<OwnStream>;
    if (api_->one_at_a_time()) own_stream_ = of_all.lock();
    if (!own_stream_) {
      own_stream_ = std::make_shared<OwnStream>(api_);
      check(api_->new_stream(own_stream_->stream), "a stream for NCCL");
      if (api_->one_at_a_time()) of_all = own_stream_;
    }
    if (sums_) own_stream_->sums = sums_;
    stream_ = own_stream_->stream;
    auto const begun = api_->init(group_, size_, id, rank_);
    change("ncclCommInitRank", begun);
  } catch (...) {
    abort();
    release();
    throw;
  }
}

NcclEngine::~NcclEngine() {
  auto const in_order = [&] {
    return group_ != nullptr && !stopped() && mpi_runs() && std::uncaught_exceptions() <= exceptions_;
  };
  if (in_order()) {
    try {
      settle();
      if (in_order() && idle()) {
        change("ncclCommFinalize", api_->finalize(group_));
        auto const group = std::exchange(group_, nullptr);
        check(blocking("ncclCommDestroy", name_, [&] { return api_->destroy(group); }), "ncclCommDestroy");
      }
    } catch (std::exception const& e) {
      base::error_here(e.what());
    }
  }
  abort();
  release();
}

void NcclEngine::release() noexcept {
  std::erase(engines(), this);
  for (auto event : events_) api_->free_event(event);
  own_stream_.reset();
}

void NcclEngine::abort() noexcept {
  if (auto const group = std::exchange(group_, nullptr); group != nullptr) (void)api_->abort(group);
  std::erase_if(queue(), [this](Waiting const& w) { return w.engine == this; });
  queued_ = 0;
  launched_.clear();
  changing_ = settling_ = nullptr;
}

/// Waits for `until_done`, a work of no collective, which advance() sets done. The watchdog sees the wait as any other.
void NcclEngine::watch(char const* operation, Work*& until_done) {
  Pending pending;
  pending.comm = std::make_shared<CommRecord>(mpi_, name_, false);
  pending.operation = operation;
  pending.engine = this;
  until_done = &pending.work;
  start(pending.work);
  wait(pending);
}

/// Waits until NCCL's communicator has begun or ended, by a call that all ranks have made.
void NcclEngine::change(char const* operation, Result const& result) {
  check(result, operation);
  if (result.state == State::done) return;
  call_ = operation;
  watch(operation, changing_);
}

bool NcclEngine::streams_wait() const {
  return std::any_of(launched_.begin(), launched_.end(), [](Launched const& l) { return l.awaited; });
}

void NcclEngine::settle() {
  if (group_ != nullptr && !stopped() && streams_wait()) watch(call_, settling_);
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
  failure_ = error;
  abort();
  stop();
  throw error;
}

void NcclEngine::require_working() const {
  if (failure_) throw *failure_;
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
  if (&work == changing_ || &work == settling_) return;
  auto const ready = event();
  check(api_->record(ready, work.stream), "an event of the caller's stream");
  queue().push_back({this, &work, ready});
  ++queued_;
}

void NcclEngine::make_wait(void* stream, Work const& work) {
  if (work.done) return;
  auto const mine = std::find_if(launched_.begin(), launched_.end(), [&](auto const& l) { return l.work == &work; });
  P3D_REQUIRE(mine != launched_.end(), "a stream waits for what is launched");
  check(api_->wait(stream, mine->done), "a stream after a collective");
  mine->awaited = true;
}

bool NcclEngine::advance() {
  if (group_ == nullptr) return false;
  auto const state = api_->state(group_);
  check(state, call_);
  if (changing_ != nullptr) {
    if (state.state == State::open) return false;
    std::exchange(changing_, nullptr)->done = true;
    return true;
  }
  bool moved = advance_queue();
  while (!launched_.empty()) {
    auto const& first = launched_.front();
    auto const reached = api_->query(first.done);
    check(reached, call_);
    if (reached.state == State::open) break;
    free_events_.push_back(first.done);
    first.work->done = moved = true;
    launched_.pop_front();
  }
  if (settling_ != nullptr && !streams_wait()) {
    std::exchange(settling_, nullptr)->done = true;
    moved = true;
  }
  return moved;
}

std::deque<NcclEngine::Waiting>& NcclEngine::queue() {
  static auto& all = *new std::deque<Waiting>;  // communicators may outlive statics
  return all;
}

/// Launches the works that may be launched, in the order of the queue. The next call must wait until the last one is on
/// its stream.
bool NcclEngine::advance_queue() {
  bool moved = false;
  while (!queue().empty()) {
    auto& engine = *queue().front().engine;
    if (engine.stopped()) {  // its peers wait in vain, but works of other engines may go on
      queue().pop_front();
      --engine.queued_;
      continue;
    }
    auto const state = engine.api_->state(engine.group_);
    engine.check(state, engine.call_);
    if (state.state == State::open) break;
    auto& first = queue().front();
    moved = true;
    if (!first.open) {
      engine.launch(first);
      continue;
    }
    first.open = false;
    if (engine.sums_here(*first.work)) engine.add_segment(*first.work, first.step);
    if (++first.step < engine.launches(*first.work)) continue;
    auto const last = first;
    queue().pop_front();
    --engine.queued_;
    engine.free_events_.push_back(last.ready);
    auto const done = engine.event();
    engine.check(engine.api_->record(done, engine.stream_), "an event after a collective");
    engine.launched_.push_back({last.work, done});
    last.work->launched = true;
  }
  return moved;
}

void NcclEngine::launch(Waiting& first) {
  if (first.step == 0) check(api_->wait(stream_, first.ready), "a stream after an event");
  check(api_->begin(), "ncclGroupStart");
  auto const called = call(*first.work, first.step);
  auto const ended = api_->end(group_);  // also where a call failed, so that no group stays open
  check(called, call_);
  check(ended, call_);
  first.open = true;
}

void abort_nccl() noexcept {
  for (auto* engine : engines()) engine->abort();
}

}  // namespace detail

DeviceSums::~DeviceSums() = default;
void set_device_sums(std::shared_ptr<DeviceSums> sums) { detail::given_sums() = std::move(sums); }

bool has_device_sums() { return detail::device_sums() != nullptr; }

void settle() {
  for (auto* engine : detail::engines()) engine->settle();
}

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
