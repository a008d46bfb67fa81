// SPDX-License-Identifier: Apache-2.0
#include "message_engine.hpp"

#include <algorithm>
#include <utility>

#include "combine.hpp"
#include "internal.hpp"
#include "mpi_types.hpp"
#include "parts.hpp"

namespace p3d::comm::detail {

namespace {
constexpr int runs_at_once = 4;
constexpr int tags = 1 << 14;  // of a family; MPI has 2^15 at least
}  // namespace

MessageEngine::MessageEngine(MPI_Comm comm, std::string name, Steps steps, std::size_t segment_bytes, int family)
    : comm_(comm),
      name_(std::move(name)),
      steps_(std::move(steps)),
      segment_bytes_(segment_bytes),
      first_tag_(family * tags),
      runs_(runs_at_once) {}

void MessageEngine::enqueue(AllReduceWork& work) { works_.push_back(&work); }

bool MessageEngine::advance() {
  bool moved = false;
  for (auto& run : runs_) {
    if (run.work == nullptr && !open(run)) continue;
    moved = move(run) || moved;
  }
  auto const done = [](AllReduceWork const* work) { return work->done; };
  std::erase_if(works_, done);
  return moved;
}

/// Gives a free run the next segment, if there is one.
bool MessageEngine::open(SegmentRun& run) {
  auto const next =
      std::find_if(works_.begin(), works_.end(), [](AllReduceWork const* work) { return work->started < work->count; });
  if (next == works_.end()) return false;
  auto& work = **next;
  auto const size = static_cast<std::int64_t>(size_of(work.type));
  std::int64_t const most =
      std::min(std::max<std::int64_t>(1, static_cast<std::int64_t>(segment_bytes_) / size), elements_per_call(size));
  run.work = &work;
  run.begin = work.started;
  run.count = std::min(work.count - work.started, most);
  run.tag = first_tag_ + static_cast<int>(segments_++ % tags);
  run.step = 0;
  run.exchanging = false;
  work.started += run.count;
  return true;
}

void MessageEngine::begin_exchange(SegmentRun& run, Step const& step) {
  auto const& work = *run.work;
  auto const length = [&](int chunk) {
    return static_cast<int>(chunk_begin(run, chunk + 1) - chunk_begin(run, chunk));
  };
  auto const place = [&](int chunk) { return work.at(run.begin + chunk_begin(run, chunk)); };
  // Chunks of a short buffer may be empty: on both sides, so neither sends.
  if (int const n = length(step.receive_chunk); step.receive_from >= 0 && n > 0) {
    if (step.adds) run.arrived.resize(static_cast<std::size_t>(n) * size_of(work.type));
    auto* const to = step.adds ? run.arrived.data() : place(step.receive_chunk);
    check(MPI_Irecv(to, n, carrier(work.type), step.receive_from, run.tag, comm_, &run.requests[0]), "MPI_Irecv",
          name_);
  }
  if (int const n = length(step.send_chunk); step.send_to >= 0 && n > 0) {
    check(MPI_Isend(place(step.send_chunk), n, carrier(work.type), step.send_to, run.tag, comm_, &run.requests[1]),
          "MPI_Isend", name_);
  }
  run.exchanging = true;
}

/// Goes on until a message is awaited; true when anything moved.
bool MessageEngine::move(SegmentRun& run) {
  bool moved = false;
  for (; run.step < steps_.steps.size(); ++run.step) {
    auto const& step = steps_.steps[run.step];
    if (!run.exchanging) {
      begin_exchange(run, step);
      moved = true;
    }
    int done = 0;
    check(MPI_Testall(2, run.requests, &done, MPI_STATUSES_IGNORE), "MPI_Testall", name_);
    if (!done) return moved;
    moved = true;
    run.exchanging = false;
    auto const begin = chunk_begin(run, step.receive_chunk);
    auto const count = chunk_begin(run, step.receive_chunk + 1) - begin;
    if (step.adds && count > 0) {
      auto* const own = run.work->at(run.begin + begin);
      std::byte* const out[] = {own};
      std::byte const* const in[] = {own, run.arrived.data()};
      combine(run.work->type, run.work->op, out, in, count);
    }
  }
  auto& work = *std::exchange(run.work, nullptr);
  work.finished += run.count;
  work.done = work.finished == work.count;
  return true;
}

void MpiEngine::enqueue(AllReduceWork& work) {
  auto const type = work.type.mpi();
  if (!type) return float16_->enqueue(work);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallreduce(MPI_IN_PLACE, work.data, static_cast<int>(work.count), mpi_type(*type), mpi_op(work.op), comm_,
                       &request),
        "MPI_Iallreduce", name_);
  open_.emplace_back(&work, request);
}

bool MpiEngine::advance() {
  bool moved = !float16_->idle() && float16_->advance();
  for (auto& [work, request] : open_) {
    if (work->done) continue;
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test", name_);
    if (done) work->done = moved = true;
  }
  while (!open_.empty() && open_.front().first->done) open_.pop_front();
  return moved;
}

}  // namespace p3d::comm::detail
