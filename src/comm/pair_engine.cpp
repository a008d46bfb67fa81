// SPDX-License-Identifier: Apache-2.0
// Pairwise exchange. Every share of a buffer is cut into the same number of pieces, and run k carries piece k of all
// shares: it receives the givers' summands of the own piece, adds them, and sends the sum to the givers. Example: 3
// ranks reduce 9 elements; rank 1 gets elements 3 to 5 of ranks 0 and 2, adds them in the order 0, 1, 2, and sends the
// sums back.
#include "pair_engine.hpp"

#include <algorithm>
#include <utility>

#include "combine.hpp"
#include "internal.hpp"
#include "message_engine.hpp"
#include "mpi_types.hpp"

namespace p3d::comm::detail {

PairEngine::PairEngine(MPI_Comm comm, std::string name, Pairs pairs, Order order, std::size_t piece_bytes, int family)
    : comm_(comm),
      name_(std::move(name)),
      pairs_(std::move(pairs)),
      order_(order),
      piece_bytes_(piece_bytes),
      first_tag_(family * tags_of_a_family),
      runs_(runs_at_once) {}

/// Even shares where the work has none of its own.
Range PairEngine::share_of(Work const& work, int share) const {
  if (work.begins.empty()) return piece_of(work.count, share, pairs_.shares);
  return {work.share_begin(share), work.share(share)};
}

void PairEngine::enqueue(Work& work) {
  auto const size = static_cast<std::int64_t>(size_of(work.type));
  std::int64_t const most =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(piece_bytes_) / size, 1, elements_per_call(size));
  std::int64_t longest = 1;
  for (int share = 0; share < pairs_.shares; ++share) {
    longest = std::max(longest, share_of(work, share).count);
  }
  work.segments = (longest + most - 1) / most;
  works_.push_back(&work);
}

bool PairEngine::advance() {
  bool moved = false;
  for (auto& run : runs_) {
    if (run.work == nullptr && !open(run)) continue;
    moved = move(run) || moved;
  }
  std::erase_if(works_, [](Work const* work) { return work->done; });
  return moved;
}

/// Gives a free run the next segment, if there is one. Returns whether there was.
bool PairEngine::open(Run& run) {
  auto const next =
      std::find_if(works_.begin(), works_.end(), [](Work const* work) { return work->started < work->segments; });
  if (next == works_.end()) return false;
  run.work = *next;
  run.number = run.work->started++;
  run.tag = first_tag_ + static_cast<int>(segments_++ % tags_of_a_family);
  run.phase = Phase::starts;
  return true;
}

Range PairEngine::piece(Run const& run, int share) const {
  auto const whole = share_of(*run.work, share);
  auto const part = piece_of(whole.count, run.number, run.work->segments);
  return {whole.begin + part.begin, part.count};
}

// Pieces of a short share may be empty. They are empty on both sides, so neither sends.

void PairEngine::send(Run& run, Range piece, int to) {
  auto& work = *run.work;
  if (piece.count == 0) return;
  check(MPI_Isend(work.at(piece.begin), static_cast<int>(piece.count), carrier(work.type), to, run.tag, comm_,
                  &run.requests.emplace_back(MPI_REQUEST_NULL)),
        "MPI_Isend", name_);
  work.sent += work.bytes(piece.count);
}

void PairEngine::receive(Run& run, std::byte* to, std::int64_t count, int from) {
  if (count == 0) return;
  check(MPI_Irecv(to, static_cast<int>(count), carrier(run.work->type), from, run.tag, comm_,
                  &run.requests.emplace_back(MPI_REQUEST_NULL)),
        "MPI_Irecv", name_);
}

void PairEngine::scatter(Run& run) {
  auto const own = piece(run, pairs_.own_share);
  auto const bytes = static_cast<std::size_t>(run.work->bytes(own.count));
  run.arrived.resize(bytes * pairs_.givers.size());
  auto* to = run.arrived.data();
  for (int const giver : pairs_.givers) {
    receive(run, to, own.count, giver);
    to += bytes;
  }
  for (auto const& owner : pairs_.owners) send(run, piece(run, owner.share), owner.rank);
}

void PairEngine::add(Run& run) {
  auto const& work = *run.work;
  auto const own = piece(run, pairs_.own_share);
  if (own.count == 0 || pairs_.givers.empty()) return;
  auto* const result = work.at(own.begin);
  summands_.clear();
  for (std::size_t i = 0; i < pairs_.givers.size(); ++i) {
    summands_.push_back(run.arrived.data() + i * static_cast<std::size_t>(work.bytes(own.count)));
  }
  summands_.insert(summands_.begin() + pairs_.place, result);
  std::size_t const n = summands_.size();
  if (order_ == Order::ranks) {
    combine(work.type, work.op, std::span(&result, 1),
            std::vector<std::byte const*>(summands_.begin(), summands_.end()), own.count);
    return;
  }
  for (std::size_t width = 1; width < n; width *= 2) {
    for (std::size_t i = 0; i + width < n; i += 2 * width) {
      std::byte const* const in[] = {summands_[i], summands_[i + width]};
      std::byte* const out[] = {2 * width < n ? summands_[i] : result};
      combine(work.type, work.op, out, in, own.count);
    }
  }
}

void PairEngine::gather(Run& run) {
  for (auto const& owner : pairs_.owners) {
    auto const theirs = piece(run, owner.share);
    receive(run, run.work->at(theirs.begin), theirs.count, owner.rank);
  }
  for (int const giver : pairs_.givers) send(run, piece(run, pairs_.own_share), giver);
}

/// Advances a run until it waits for a message. True when anything moved.
bool PairEngine::move(Run& run) {
  bool moved = false;
  auto const kind = run.work->kind;
  if (run.phase == Phase::starts) {
    run.phase = kind == Collective::all_gather ? Phase::gathers : Phase::scatters;
    run.phase == Phase::gathers ? gather(run) : scatter(run);
    moved = true;
  }
  for (;;) {
    int done = 0;
    check(MPI_Testall(static_cast<int>(run.requests.size()), run.requests.data(), &done, MPI_STATUSES_IGNORE),
          "MPI_Testall", name_);
    if (!done) return moved;
    moved = true;
    run.requests.clear();
    if (run.phase == Phase::scatters) add(run);
    if (run.phase == Phase::gathers || kind == Collective::reduce_scatter) break;
    run.phase = Phase::gathers;
    gather(run);
  }
  auto& work = *std::exchange(run.work, nullptr);
  work.done = ++work.finished == work.segments;
  return true;
}

}  // namespace p3d::comm::detail
