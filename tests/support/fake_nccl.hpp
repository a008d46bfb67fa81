// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL and a device in host memory, over MPI, for tests of the engine that drives them. As strict as NCCL is: calls
// stand in groups, none follows one that is still open, streams run in order and on their own, late. What breaks the
// rules is reported by failures().

#include <comm/mpi_types.hpp>
#include <comm/nccl_api.hpp>

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace p3d::test {

/// Groups must be made of all ranks of `comm`, which carries nothing else.
class FakeNccl final : public comm::detail::NcclApi {
public:
  using ElementType = comm::ElementType;
  using Reduction = comm::Reduction;

  explicit FakeNccl(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_rank(comm, &rank_);
    MPI_Comm_size(comm, &size_);
  }

  // What a test asks for.
  int calls_stay_open = 0;         ///< looks at the state before a call is on its stream
  int fail_after = -1;             ///< looks at the state before it is an error; -1: never
  std::string fail_call;           ///< this call fails: "init", "end", "all_reduce"
  bool loses_work = false;         ///< nothing on a stream of NCCL is ever done
  bool never_starts = false;       ///< init stays open
  std::function<void()> on_abort;  ///< called by each abort

  // What a test looks at.
  std::vector<std::string> log;  ///< calls, groups as "begin" and "end"
  int groups = 0, streams = 0, events = 0, aborts = 0, ids = 0;
  std::vector<std::string> const& failures() const { return failures_; }

  /// A stream of the caller, on which work runs after `late` looks at any event.
  Stream caller_stream() {
    Stream out = nullptr;
    new_stream(out);
    return out;
  }
  void run_on(Stream stream, int late, std::function<void()> work) {
    as_queue(stream)->push_back([late, work = std::move(work)]() mutable {
      if (late-- > 0) return false;
      work();
      return true;
    });
  }
  /// Looks at all streams once.
  void run() {
    for (auto* queue : queues_) {
      if (!queue->empty() && queue->front()()) queue->pop_front();
    }
  }

  std::string version() const override { return "fake NCCL"; }
  Result new_id(Id& id) override {
    note("id");
    ++ids;
    for (std::size_t i = 0; i < id.size(); ++i) id[i] = static_cast<std::byte>(7 * i + 3);
    return result("id");
  }
  Result init(Group& group, int size, Id const& id, int rank) override {
    note("init");
    require(size == size_ && rank == rank_, "init knows the ranks");
    for (std::size_t i = 0; i < id.size(); ++i) require(id[i] == static_cast<std::byte>(7 * i + 3), "rank 0's id");
    ++groups;
    group = &group_;
    open_ = never_starts ? 1 << 30 : calls_stay_open + 1;
    return fail_call == "init" ? result("init") : Result{State::open, {}};
  }
  Result state(Group group) override {
    require(group == &group_ && groups == 1, "a group that lives");
    run();
    if (fail_after >= 0 && fail_after-- == 0) return {State::failed, "unhandled system error: a cable was pulled"};
    if (open_ > 0 && --open_ > 0) return {State::open, {}};
    flush();
    return {};
  }
  Result finalize(Group) override {
    note("finalize");
    require_free();
    open_ = calls_stay_open + 1;
    return {State::open, {}};
  }
  Result destroy(Group) override {
    note("destroy");
    require_free();
    --groups;
    return result("destroy");
  }
  Result abort(Group) override {
    note("abort");
    ++aborts;
    --groups;
    if (on_abort) on_abort();
    return {};
  }

  Result begin() override {
    note("begin");
    require_free();
    require(!in_group_, "groups do not nest");
    in_group_ = fail_call != "begin";
    return result("begin");
  }
  Result end(Group) override {
    note("end");
    require(in_group_, "a group ends after it began");
    in_group_ = false;
    if (fail_call == "end") return result("end");
    open_ = calls_stay_open;
    if (open_ > 0) return {State::open, {}};
    flush();
    return {};
  }
  Result all_reduce(void* inout, std::int64_t n, ElementType type, Reduction op, Group, Stream stream) override {
    return add("all_reduce", stream, [=, this](MPI_Request* r) {
      MPI_Iallreduce(MPI_IN_PLACE, inout, count(n), mpi(type), comm::detail::mpi_op(op), comm_, r);
    });
  }
  Result reduce(void* inout, std::int64_t n, ElementType type, Reduction op, int root, Group, Stream stream) override {
    return add("reduce", stream, [=, this](MPI_Request* r) {
      bool const mine = root == rank_;
      MPI_Ireduce(mine ? MPI_IN_PLACE : inout, mine ? inout : nullptr, count(n), mpi(type), comm::detail::mpi_op(op),
                  root, comm_, r);
    });
  }
  Result reduce_scatter(void const* in, void* out, std::int64_t each, ElementType type, Reduction op, Group,
                        Stream stream) override {
    auto const place = static_cast<std::byte const*>(in) + rank_ * each * bytes(type);
    require(out == place, "a reduce-scatter in place");
    auto const sum = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(each * bytes(type)));
    return add(
        "reduce_scatter", stream,
        [=, this](MPI_Request* r) {
          MPI_Ireduce_scatter_block(in, sum->data(), count(each), mpi(type), comm::detail::mpi_op(op), comm_, r);
        },
        [=] {
          if (!sum->empty()) std::memcpy(out, sum->data(), sum->size());
        });
  }
  Result all_gather(void const* in, void* out, std::int64_t each, ElementType type, Group, Stream stream) override {
    require(in == static_cast<std::byte*>(out) + rank_ * each * bytes(type), "an all-gather in place");
    return add("all_gather", stream, [=, this](MPI_Request* r) {
      MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, count(each), carrier(type), comm_, r);
    });
  }
  Result broadcast(void* inout, std::int64_t n, ElementType type, int root, Group, Stream stream) override {
    return add("broadcast", stream,
               [=, this](MPI_Request* r) { MPI_Ibcast(inout, count(n), carrier(type), root, comm_, r); });
  }
  Result send(void const* buffer, std::int64_t n, ElementType type, int peer, Group, Stream stream) override {
    return add("send", stream,
               [=, this](MPI_Request* r) { MPI_Issend(buffer, count(n), carrier(type), peer, 1, comm_, r); });
  }
  Result recv(void* buffer, std::int64_t n, ElementType type, int peer, Group, Stream stream) override {
    return add("recv", stream,
               [=, this](MPI_Request* r) { MPI_Irecv(buffer, count(n), carrier(type), peer, 1, comm_, r); });
  }

  Result new_stream(Stream& stream) override {
    ++streams;
    queues_.push_back(new Queue);
    stream = queues_.back();
    return result("new_stream");
  }
  void free_stream(Stream stream) override {
    --streams;
    std::erase(queues_, as_queue(stream));
    delete as_queue(stream);
  }
  Result new_event(Event& event) override {
    ++events;
    event = new Flag;
    return result("new_event");
  }
  void free_event(Event event) override {
    --events;
    delete as_flag(event);
  }
  // As in CUDA: a wait is for what was recorded last before it.
  Result record(Event event, Stream stream) override {
    auto const reached = *as_flag(event) = std::make_shared<bool>(false);
    as_queue(stream)->push_back([reached] { return *reached = true; });
    return result("record");
  }
  Result wait(Stream stream, Event event) override {
    as_queue(stream)->push_back([reached = *as_flag(event)] { return *reached; });
    return result("wait");
  }
  Result query(Event event) override {
    run();
    return **as_flag(event) ? Result{} : Result{State::open, {}};
  }

private:
  using Queue = std::deque<std::function<bool()>>;
  using Flag = std::shared_ptr<bool>;
  struct Call {
    std::function<void(MPI_Request*)> start;
    std::function<void()> finish;
  };
  static Queue* as_queue(Stream stream) { return static_cast<Queue*>(stream); }
  static Flag* as_flag(Event event) { return static_cast<Flag*>(event); }
  static int count(std::int64_t n) { return static_cast<int>(n); }
  static std::int64_t bytes(ElementType type) { return static_cast<std::int64_t>(size_of(type)); }
  static MPI_Datatype carrier(ElementType type) { return comm::detail::carrier(type); }
  MPI_Datatype mpi(ElementType type) {
    require(type.mpi().has_value(), "the fake adds no 16-bit numbers");
    return carrier(type);
  }

  void note(char const* call) { log.emplace_back(call); }
  Result result(std::string const& call) const {
    return call == fail_call ? Result{State::failed, "the fake was asked to fail in " + call} : Result{};
  }
  void require(bool holds, char const* rule) {
    if (!holds) failures_.emplace_back(rule);
  }
  void require_free() { require(open_ == 0 && calls_.empty(), "no call follows one that is still open"); }

  Result add(char const* name, Stream stream, std::function<void(MPI_Request*)> start,
             std::function<void()> finish = {}) {
    note(name);
    require(in_group_, "a call stands in a group");
    require(open_ == 0, "no call follows one that is still open");
    require(calls_.empty() || stream == stream_, "a group has one stream");
    stream_ = stream;
    calls_.push_back({std::move(start), std::move(finish)});
    return result(name);
  }

  /// The group's calls, all at once, as one step of their stream.
  void flush() {
    if (calls_.empty()) return;
    auto const calls = std::make_shared<std::vector<Call>>(std::exchange(calls_, {}));
    auto const requests = std::make_shared<std::vector<MPI_Request>>(calls->size(), MPI_REQUEST_NULL);
    as_queue(stream_)->push_back([this, calls, requests, started = false]() mutable {
      if (loses_work) return false;
      for (std::size_t i = 0; !started && i < calls->size(); ++i) (*calls)[i].start(&(*requests)[i]);
      started = true;
      int done = 0;
      MPI_Testall(static_cast<int>(requests->size()), requests->data(), &done, MPI_STATUSES_IGNORE);
      if (!done) return false;
      for (auto const& call : *calls) {
        if (call.finish) call.finish();
      }
      return true;
    });
  }

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  int group_ = 0;  ///< its address is the group
  int open_ = 0;
  bool in_group_ = false;
  Stream stream_ = nullptr;
  std::vector<Call> calls_;
  std::vector<Queue*> queues_;
  std::vector<std::string> failures_;
};

}  // namespace p3d::test
