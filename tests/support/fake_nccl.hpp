// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL and a device in host memory, over MPI, for tests of the engine that drives them. As strict as NCCL is: calls
// stand in groups, none follows one that is still open, streams run in order and on their own, late. What breaks the
// rules is reported by failures().

#include <comm/combine.hpp>
#include <comm/mpi_types.hpp>
#include <comm/nccl_api.hpp>
#include <p3d/base/float16.hpp>
#include <p3d/comm/nccl.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <set>
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
  bool shares_gpu = false;         ///< with all other ranks
  bool one_stream = false;         ///< collectives of two communicators may not be on the GPU at once
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
  std::string gpu() const override { return "GPU " + std::to_string(shares_gpu ? 0 : rank_); }
  bool one_at_a_time() const override { return one_stream; }
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
    auto* const made = new FakeGroup;
    MPI_Comm_dup(comm_, &made->comm);
    made->open = never_starts ? 1 << 30 : calls_stay_open + 1;
    groups_.insert(made);
    group = made;
    return fail_call == "init" ? result("init") : Result{State::open, {}};
  }
  Result state(Group group) override {
    require(groups_.contains(as_group(group)), "a group that lives");
    run();
    if (fail_after >= 0 && fail_after-- == 0) return {State::failed, "unhandled system error: a cable was pulled"};
    auto& g = *as_group(group);
    if (g.open > 0 && --g.open > 0) return {State::open, {}};
    flush(g);
    return {};
  }
  Result finalize(Group group) override {
    note("finalize");
    require_free(*as_group(group));
    as_group(group)->open = calls_stay_open + 1;
    return {State::open, {}};
  }
  Result destroy(Group group) override {
    note("destroy");
    require_free(*as_group(group));
    MPI_Comm_free(&as_group(group)->comm);
    forget(group);
    return result("destroy");
  }
  Result abort(Group group) override {
    note("abort");
    ++aborts;
    forget(group);
    if (on_abort) on_abort();
    return {};
  }

  Result begin() override {
    note("begin");
    require(!in_group_, "groups do not nest");
    for (auto const* g : groups_)
      require(g->open == 0, "no launch follows one that is not on its stream yet, of whichever communicator");
    in_group_ = fail_call != "begin";
    return result("begin");
  }
  Result end(Group group) override {
    note("end");
    require(in_group_, "a group ends after it began");
    in_group_ = false;
    if (fail_call == "end") return result("end");
    auto& g = *as_group(group);
    g.open = calls_stay_open;
    if (g.open > 0) return {State::open, {}};
    flush(g);
    return {};
  }
  Result all_reduce(void* inout, std::int64_t n, ElementType type, Reduction op, Group group, Stream stream) override {
    return add("all_reduce", group, stream, [=, this](MPI_Comm comm, MPI_Request* r) {
      MPI_Iallreduce(MPI_IN_PLACE, inout, count(n), carrier(type), mpi(type, op), comm, r);
    });
  }
  Result reduce(void* inout, std::int64_t n, ElementType type, Reduction op, int root, Group group,
                Stream stream) override {
    return add("reduce", group, stream, [=, this](MPI_Comm comm, MPI_Request* r) {
      bool const mine = root == rank_;
      MPI_Ireduce(mine ? MPI_IN_PLACE : inout, mine ? inout : nullptr, count(n), carrier(type), mpi(type, op), root,
                  comm, r);
    });
  }
  Result reduce_scatter(void const* in, void* out, std::int64_t each, ElementType type, Reduction op, Group group,
                        Stream stream) override {
    auto const place = static_cast<std::byte const*>(in) + rank_ * each * bytes(type);
    require(out == place, "a reduce-scatter in place");
    auto const sum = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(each * bytes(type)));
    return add(
        "reduce_scatter", group, stream,
        [=, this](MPI_Comm comm, MPI_Request* r) {
          MPI_Ireduce_scatter_block(in, sum->data(), count(each), carrier(type), mpi(type, op), comm, r);
        },
        [=] {
          if (!sum->empty()) std::memcpy(out, sum->data(), sum->size());
        });
  }
  Result all_gather(void const* in, void* out, std::int64_t each, ElementType type, Group group,
                    Stream stream) override {
    require(in == static_cast<std::byte*>(out) + rank_ * each * bytes(type), "an all-gather in place");
    return add("all_gather", group, stream, [=, this](MPI_Comm comm, MPI_Request* r) {
      MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, count(each), carrier(type), comm, r);
    });
  }
  Result broadcast(void* inout, std::int64_t n, ElementType type, int root, Group group, Stream stream) override {
    return add("broadcast", group, stream,
               [=, this](MPI_Comm comm, MPI_Request* r) { MPI_Ibcast(inout, count(n), carrier(type), root, comm, r); });
  }
  Result send(void const* buffer, std::int64_t n, ElementType type, int peer, Group group, Stream stream) override {
    return add("send", group, stream, [=, this](MPI_Comm comm, MPI_Request* r) {
      MPI_Issend(buffer, count(n), carrier(type), peer, 1, comm, r);
    });
  }
  Result recv(void* buffer, std::int64_t n, ElementType type, int peer, Group group, Stream stream) override {
    return add("recv", group, stream, [=, this](MPI_Comm comm, MPI_Request* r) {
      MPI_Irecv(buffer, count(n), carrier(type), peer, 1, comm, r);
    });
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
  // A wait is for what was recorded last before it. A host's kernels, of no stream, are over.
  Result record(Event event, Stream stream) override {
    auto const reached = *as_flag(event) = std::make_shared<bool>(stream == nullptr);
    if (stream != nullptr) as_queue(stream)->push_back([reached] { return *reached = true; });
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
  struct FakeGroup {
    MPI_Comm comm = MPI_COMM_NULL;
    int open = 0;  ///< looks at its state until the last call is over
    Stream stream = nullptr;
    std::vector<Call> calls;
  };
  static FakeGroup* as_group(Group group) { return static_cast<FakeGroup*>(group); }
  static Queue* as_queue(Stream stream) { return static_cast<Queue*>(stream); }
  static Flag* as_flag(Event event) { return static_cast<Flag*>(event); }
  static int count(std::int64_t n) { return static_cast<int>(n); }
  static std::int64_t bytes(ElementType type) { return static_cast<std::int64_t>(size_of(type)); }
  static MPI_Datatype carrier(ElementType type) { return comm::detail::carrier(type); }
  using Values = std::uint16_t;
  template <float (*value)(Values), Values (*bits)(float), Reduction op>
  static void combine(void* in, void* inout, int* n, MPI_Datatype* /*type*/) {
    for (int i = 0; i < *n; ++i) {
      float const a = value(static_cast<Values*>(in)[i]), b = value(static_cast<Values*>(inout)[i]);
      static_cast<Values*>(inout)[i] = bits(op == Reduction::sum   ? a + b
                                            : op == Reduction::max ? std::max(a, b)
                                                                   : std::min(a, b));
    }
  }
  /// What MPI has no reduction of is combined here.
  template <float (*value)(Values), Values (*bits)(float)>
  static MPI_Op op16(Reduction op) {
    static auto const ops = [] {
      std::array<MPI_Op, 3> made{};
      MPI_Op_create(combine<value, bits, Reduction::sum>, 1, &made[0]);
      MPI_Op_create(combine<value, bits, Reduction::max>, 1, &made[1]);
      MPI_Op_create(combine<value, bits, Reduction::min>, 1, &made[2]);
      return made;
    }();
    return ops[op == Reduction::sum ? 0 : op == Reduction::max ? 1 : 2];
  }
  static MPI_Op mpi(ElementType type, Reduction op) {
    if (type.mpi()) return comm::detail::mpi_op(op);
    return *type.float16() == comm::Float16Type::bfloat16 ? op16<base::bfloat16_value, base::bfloat16_bits>(op)
                                                          : op16<base::float16_value, base::float16_bits>(op);
  }

  void note(char const* call) { log.emplace_back(call); }
  Result result(std::string const& call) const {
    return call == fail_call ? Result{State::failed, "the fake was asked to fail in " + call} : Result{};
  }
  void require(bool holds, char const* rule) {
    if (!holds) failures_.emplace_back(rule);
  }
  void require_free(FakeGroup const& g) { require(g.open == 0, "no call follows one that is still open"); }
  void forget(Group group) {
    --groups;
    groups_.erase(as_group(group));
    delete as_group(group);
  }

  using Start = std::function<void(MPI_Comm, MPI_Request*)>;
  Result add(char const* name, Group group, Stream stream, Start start, std::function<void()> finish = {}) {
    note(name);
    auto& g = *as_group(group);
    require(in_group_, "a call stands in a group");
    require_free(g);
    require(g.calls.empty() || stream == g.stream, "a group has one stream");
    g.stream = stream;
    g.calls.push_back(
        {[start = std::move(start), comm = g.comm](MPI_Request* r) { start(comm, r); }, std::move(finish)});
    auto const out = result(name);
    if (out.state == State::failed) g.calls.clear();  // nothing of the group is launched
    return out;
  }

  /// The group's calls, all at once, as one step of their stream.
  void flush(FakeGroup& g) {
    if (g.calls.empty()) return;
    auto const calls = std::make_shared<std::vector<Call>>(std::exchange(g.calls, {}));
    auto const requests = std::make_shared<std::vector<MPI_Request>>(calls->size(), MPI_REQUEST_NULL);
    as_queue(g.stream)->push_back([this, calls, requests, started = false]() mutable {
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
  bool in_group_ = false;
  std::set<FakeGroup*> groups_;
  std::vector<Queue*> queues_;
  std::vector<std::string> failures_;
};

/// Adds in the order of ranks, on the fake's streams.
class FakeSums final : public comm::DeviceSums {
public:
  explicit FakeSums(std::shared_ptr<FakeNccl> fake, std::int64_t bytes = std::int64_t{1} << 12)
      : fake_(std::move(fake)), bytes_(bytes) {}
  std::int64_t workspace() const override { return bytes_; }
  std::shared_ptr<std::byte> allocate(std::int64_t bytes) override {
    auto const memory = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes));
    return {memory, memory->data()};
  }
  void add(Terms const& t) override {
    ++additions;
    fake_->run_on(t.stream, 2, [t] {
      std::vector<std::byte const*> in;
      for (int r = 0, k = 0; r < t.ranks; ++r) in.push_back(r == t.rank ? t.inout : t.others + t.stride * k++);
      std::byte* const out[] = {t.inout};
      comm::detail::combine(t.type, t.op, out, in, t.count);
    });
  }
  void forget(void* /*stream*/) override {}
  int additions = 0;

private:
  std::shared_ptr<FakeNccl> fake_;
  std::int64_t bytes_;
};

}  // namespace p3d::test
