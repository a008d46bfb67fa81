// SPDX-License-Identifier: Apache-2.0
#include "message_engine.hpp"

#include <algorithm>
#include <utility>

#include "combine.hpp"
#include "internal.hpp"
#include "mpi_types.hpp"
#include "parts.hpp"

namespace p3d::comm::detail {

MessageEngine::MessageEngine(MPI_Comm comm, std::string name, std::vector<Step> steps, int parts,
                             std::size_t segment_bytes, int family)
    : comm_(comm),
      name_(std::move(name)),
      steps_(std::move(steps)),
      parts_(parts),
      segment_bytes_(segment_bytes),
      first_tag_(family * tags_of_a_family),
      runs_(runs_at_once) {}

/// The most elements of a segment.
std::int64_t MessageEngine::most(Work const& work) const {
  auto const size = static_cast<std::int64_t>(size_of(work.type));
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(segment_bytes_) / size, 1, elements_per_call(size));
}

void MessageEngine::enqueue(Work& work) {
  work.segments = (work.count + most(work) - 1) / most(work);
  works_.push_back(&work);
}

bool MessageEngine::advance() {
  bool moved = false;
  for (auto& run : runs_) {
    if (run.work == nullptr && !open(run)) continue;
    moved = move(run) || moved;
  }
  auto const done = [](Work const* work) { return work->done; };
  std::erase_if(works_, done);
  return moved;
}

/// Gives a free run the next segment, if there is one. Returns whether there was.
bool MessageEngine::open(SegmentRun& run) {
  auto const next =
      std::find_if(works_.begin(), works_.end(), [](Work const* work) { return work->started < work->segments; });
  if (next == works_.end()) return false;
  auto& work = **next;
  run.work = &work;
  run.begin = work.started++ * most(work);
  run.count = std::min(work.count - run.begin, most(work));
  run.tag = first_tag_ + static_cast<int>(segments_++ % tags_of_a_family);
  run.step = 0;
  run.exchanging = false;
  return true;
}

Range MessageEngine::elements(SegmentRun const& run, Parts parts) const {
  auto const begin = piece_of(run.count, parts.begin, parts_).begin;
  auto const end = piece_of(run.count, parts.end - 1, parts_);
  return {run.begin + begin, end.begin + end.count - begin};
}

void MessageEngine::begin_exchange(SegmentRun& run, Step const& step) {
  auto& work = *run.work;
  auto const in = elements(run, step.receives), out = elements(run, step.sends);
  if (step.receive_from >= 0 && in.count > 0) {
    if (step.adds) run.arrived.resize(static_cast<std::size_t>(work.bytes(in.count)));
    check(MPI_Irecv(step.adds ? run.arrived.data() : work.at(in.begin), static_cast<int>(in.count), carrier(work.type),
                    step.receive_from, run.tag, comm_, &run.requests[0]),
          "MPI_Irecv", name_);
  }
  if (step.send_to >= 0 && out.count > 0) {
    check(MPI_Isend(work.at(out.begin), static_cast<int>(out.count), carrier(work.type), step.send_to, run.tag, comm_,
                    &run.requests[1]),
          "MPI_Isend", name_);
    work.sent += work.bytes(out.count);
  }
  run.exchanging = true;
}

/// Advances a run until it waits for a message. True when anything moved.
bool MessageEngine::move(SegmentRun& run) {
  bool moved = false;
  for (; run.step < steps_.size(); ++run.step) {
    auto const& step = steps_[run.step];
    if (!run.exchanging) {
      begin_exchange(run, step);
      moved = true;
    }
    int done = 0;
    check(MPI_Testall(2, run.requests, &done, MPI_STATUSES_IGNORE), "MPI_Testall", name_);
    if (!done) return moved;
    moved = true;
    run.exchanging = false;
    if (step.adds) {
      auto const range = elements(run, step.receives);
      auto* const own = run.work->at(range.begin);
      std::byte* const out[] = {own};
      std::byte const* in[] = {own, run.arrived.data()};
      if (step.first) std::swap(in[0], in[1]);
      if (range.count > 0) combine(run.work->type, run.work->op, out, in, range.count);
    }
  }
  auto& work = *std::exchange(run.work, nullptr);
  work.done = ++work.finished == work.segments;
  return true;
}

bool LengthEngine::advance() {
  bool const moved = !shorter_->idle() && shorter_->advance();
  return (!longer_->idle() && longer_->advance()) || moved;
}

}  // namespace p3d::comm::detail
