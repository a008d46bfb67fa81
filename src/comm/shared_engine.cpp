// SPDX-License-Identifier: Apache-2.0
// Collectives through the memory of a node. Each member of the team owns a region: counters, then for each slot a head
// and room for a segment. A member writes its own region, the counters `gone`, and its part of the sum into buffers
// that lie in the node's memory; it reads the counters of the others with acquire loads, so no lock is needed.
// advance() calls the stages in turn (post, reduce, settle, collect, finish; shared_engine.hpp says what they do) until
// none of them can move.
#include "shared_engine.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>

#include "bell.hpp"
#include "combine.hpp"
#include "node_memory.hpp"
#include "parts.hpp"

namespace p3d::comm::detail {

namespace {
constexpr std::size_t line = 64;       ///< bytes of a cache line
constexpr std::size_t apart = 128;     ///< distance of counters: processors fetch two lines at a time
constexpr int passes_per_advance = 8;  ///< a limit, so that a test returns soon
}  // namespace

/// Counters at the beginning of a region. The owner of the region alone writes them, apart from `gone`.
struct SharedEngine::Counters {
  alignas(apart) std::atomic<std::uint64_t> reduced;    ///< number of segments whose part of the owner is final
  alignas(apart) std::atomic<std::uint64_t> collected;  ///< number of segments that the owner reads no more
  alignas(apart) std::atomic<std::uint32_t> gone;       ///< number of other members that have left this region
};

/// The head of a slot: that it is posted, and the elements of a short buffer, so that one cache line carries all.
struct SharedEngine::Head {
  alignas(apart) std::atomic<std::uint64_t> posted;  ///< number of the segment in the slot, plus one
  std::uint64_t collected;                           ///< the owner's `collected` at that time
  std::uint64_t place;  ///< offset of the work's buffer in the owner's memory; 0: the elements are in the slot
  std::byte inlined[line - 24];
};

namespace {
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "ranks share counters");
}

std::size_t SharedEngine::region_bytes(SharedSizes const& sizes) {
  return sizeof(Counters) + num_slots * (sizeof(Head) + sizes.slot);
}

std::atomic<std::uint32_t> const* SharedEngine::users(std::byte* region) {
  return &reinterpret_cast<Counters*>(region)->gone;
}

SharedEngine::SharedEngine(Team team, SharedSizes sizes, std::unique_ptr<Engine> between)
    : team_(std::move(team)), sizes_(sizes), between_(std::move(between)), released_(team_.regions.size()) {
  inputs_.resize(team_.regions.size());
  outputs_.reserve(team_.regions.size() + 1);
}

SharedEngine::~SharedEngine() {
  if (!node_memory_is_open()) return;
  for (int m = 0; m < static_cast<int>(team_.regions.size()); ++m) {
    if (m != team_.me) counters(m).gone.fetch_add(1, std::memory_order_release);
  }
}

SharedEngine::Counters& SharedEngine::counters(int member) const {
  return *reinterpret_cast<Counters*>(team_.regions[static_cast<std::size_t>(member)]);
}
SharedEngine::Head& SharedEngine::head(int member, int slot) const {
  return reinterpret_cast<Head*>(team_.regions[static_cast<std::size_t>(member)] + sizeof(Counters))[slot];
}
std::byte* SharedEngine::data(int member, int slot) const {
  return team_.regions[static_cast<std::size_t>(member)] + sizeof(Counters) + num_slots * sizeof(Head) +
         static_cast<std::size_t>(slot) * sizes_.slot;
}

std::byte* SharedEngine::element(int member, int slot, Work const& work, std::int64_t in_buffer,
                                 std::int64_t in_slot) const {
  auto const place = head(member, slot).place;
  return place == 0 ? data(member, slot) + work.bytes(in_slot)
                    : team_.memories[static_cast<std::size_t>(member)] + place + work.bytes(in_buffer);
}

bool SharedEngine::collects(int member, int slot) const { return team_.several_nodes || head(member, slot).place == 0; }

// Parts are whole cache lines, so that no two members write to one line.
Range SharedEngine::part(Segment const& segment, int member) const {
  if (member >= team_.lanes) return {0, 0};
  auto const in_line = static_cast<std::int64_t>(line / size_of(segment.work->type));
  std::int64_t const each = (segment.count + team_.lanes - 1) / team_.lanes;
  std::int64_t const rounded = (each + in_line - 1) / in_line * in_line;
  std::int64_t const begin = std::min(segment.count, member * rounded);
  return {begin, std::min(segment.count - begin, rounded)};
}

template <class Body>
void SharedEngine::for_each_run(Segment const& segment, int member, Body&& body) const {
  auto const& work = *segment.work;
  auto [range, packed] = segment.pieces[static_cast<std::size_t>(member)];
  for (int const share : team_.shares[static_cast<std::size_t>(member)]) {
    if (range.count == 0) return;
    auto const length = work.share(share);
    if (range.begin >= length) {
      range.begin -= length;
      continue;
    }
    auto const n = std::min(length - range.begin, range.count);
    body(work.share_begin(share) + range.begin, n, packed);
    packed += n;
    range = {0, range.count - n};
  }
}

/// The most elements of a segment. Where there are shares, it leaves room in a slot for pieces of whole cache lines.
std::int64_t SharedEngine::most(Work const& work) const {
  auto bytes = sizes_.slot;
  if (!work.begins.empty()) bytes -= std::min(bytes / 2, 2 * line * team_.regions.size());
  auto const size = static_cast<std::int64_t>(size_of(work.type));
  return std::min(static_cast<std::int64_t>(bytes) / size, elements_per_call(size));
}

void SharedEngine::enqueue(Work& work) {
  work.segments = (work.count + most(work) - 1) / most(work);
  works_.push_back(&work);
}

/// Decides which elements belong to the next segment of its work.
void SharedEngine::cut(Segment& segment) const {
  auto const& work = *segment.work;
  segment.pieces.clear();
  if (work.begins.empty()) {
    segment.begin = work.started * most(work);
    segment.count = std::min(work.count - segment.begin, most(work));
    return;
  }
  auto const in_line = static_cast<std::int64_t>(line / size_of(work.type));
  segment.count = 0;
  for (auto const& shares : team_.shares) {
    std::int64_t length = 0;
    for (int const share : shares) length += work.share(share);
    auto const range = piece_of(length, work.started, work.segments, in_line);
    segment.pieces.push_back({range, segment.count});
    segment.count += range.count;
  }
}

bool SharedEngine::advance() {
  bool moved = false;
  for (int pass = 0; pass < passes_per_advance; ++pass) {
    bool any = false;
    // The order is by what others wait for: first the parts, then the inputs.
    for (auto const stage : {&SharedEngine::reduce, &SharedEngine::settle, &SharedEngine::post, &SharedEngine::collect,
                             &SharedEngine::finish}) {
      if ((this->*stage)()) any = true;
    }
    if (!any) break;
    ring_bells(team_.bells);
    moved = true;
  }
  return moved;
}

bool SharedEngine::all_released(std::uint64_t number) {
  for (std::size_t m = 0; m < released_.size(); ++m) {
    if (released_[m] >= number) continue;
    released_[m] = counters(static_cast<int>(m)).collected.load(std::memory_order_acquire);
    if (released_[m] < number) return false;
  }
  return true;
}

bool SharedEngine::post() {
  if (posting_ == works_.size() || works_[posting_]->held || posted_ == finished_ + num_slots) return false;
  if (posted_ >= num_slots && !all_released(posted_ + 1 - num_slots)) return false;
  int const slot = static_cast<int>(posted_ % num_slots);
  auto& segment = segments_[slot];
  auto& work = *works_[posting_];
  segment.work = &work;
  cut(segment);
  segment.direct = work.kind == Collective::all_reduce && !team_.several_nodes &&
                   work.bytes(work.count) <= static_cast<std::int64_t>(sizes_.direct);
  segment.lent = false;
  segment.travels = {};
  if (++work.started == work.segments) ++posting_;

  auto& own = head(team_.me, slot);
  auto* const memory = team_.memories[static_cast<std::size_t>(team_.me)];
  segment.in_place =
      !segment.direct && std::less_equal<>()(memory, work.data) && std::less<>()(work.data, memory + team_.own_bytes);
  own.place = segment.in_place ? static_cast<std::uint64_t>(work.data - memory) : 0;
  if (!segment.in_place) {
    bool const inlined = segment.direct && work.bytes(segment.count) <= static_cast<std::int64_t>(sizeof(own.inlined));
    fill_slot(segment, inlined ? own.inlined : data(team_.me, slot));
  }
  own.collected = collected_;
  own.posted.store(++posted_, std::memory_order_release);
  return true;
}

/// Copies the elements that others need into a slot: those that they sum, or this rank's own piece of an all-gather.
void SharedEngine::fill_slot(Segment const& segment, std::byte* slot) const {
  auto const& work = *segment.work;
  auto const copy = [&](std::int64_t in_buffer, std::int64_t count, std::int64_t in_slot) {
    std::memcpy(slot + work.bytes(in_slot), work.at(in_buffer), static_cast<std::size_t>(work.bytes(count)));
  };
  if (work.kind == Collective::all_reduce) {
    auto const own = segment.direct ? Range{0, 0} : part(segment, team_.me);
    auto const after = own.begin + own.count;
    copy(segment.begin, own.begin, 0);
    copy(segment.begin + after, segment.count - after, after);
    return;
  }
  for (int m = 0; m < static_cast<int>(team_.regions.size()); ++m) {
    if ((m == team_.me) == (work.kind == Collective::all_gather)) for_each_run(segment, m, copy);
  }
}

bool SharedEngine::reduce() {
  if (reduced_ == posted_) return false;
  int const slot = static_cast<int>(reduced_ % num_slots);
  int const members = static_cast<int>(team_.regions.size());
  for (; seen_posts_ < members; ++seen_posts_) {
    auto const& other = head(seen_posts_, slot);
    if (other.posted.load(std::memory_order_acquire) != reduced_ + 1) return false;
    auto& released = released_[static_cast<std::size_t>(seen_posts_)];
    released = std::max(released, other.collected);
  }
  seen_posts_ = 0;
  auto& segment = segments_[slot];
  switch (segment.work->kind) {
    case Collective::all_reduce: segment.direct ? reduce_direct(segment, slot) : reduce_part(segment, slot); break;
    case Collective::reduce_scatter: reduce_piece(segment, slot); break;
    case Collective::all_gather: fetch_pieces(segment, slot); break;
    case Collective::broadcast:
    case Collective::exchange: break;  // no work of this engine
  }
  ++reduced_;
  return true;
}

void SharedEngine::reduce_piece(Segment& segment, int slot) {
  auto& work = *segment.work;
  work.sent += work.bytes(segment.count - segment.pieces[static_cast<std::size_t>(team_.me)].range.count);
  segment.lent = segment.in_place;
  for_each_run(segment, team_.me, [&](std::int64_t in_buffer, std::int64_t count, std::int64_t in_slot) {
    auto* const own = work.at(in_buffer);
    for (std::size_t m = 0; m < inputs_.size(); ++m) {
      int const member = static_cast<int>(m);
      inputs_[m] = member == team_.me ? own : element(member, slot, work, in_buffer, in_slot);
    }
    combine(work.type, work.op, std::span(&own, 1), inputs_, count);
  });
}

void SharedEngine::fetch_pieces(Segment& segment, int slot) {
  auto& work = *segment.work;
  int const members = static_cast<int>(team_.regions.size());
  work.sent += work.bytes(segment.pieces[static_cast<std::size_t>(team_.me)].range.count) * (members - 1);
  segment.lent = segment.in_place;
  for (int i = 1; i < members; ++i) {
    int const member = (team_.me + i) % members;  // the members begin with different ones
    for_each_run(segment, member, [&](std::int64_t in_buffer, std::int64_t count, std::int64_t in_slot) {
      std::memcpy(work.at(in_buffer), element(member, slot, work, in_buffer, in_slot),
                  static_cast<std::size_t>(work.bytes(count)));
    });
  }
}

void SharedEngine::reduce_direct(Segment& segment, int slot) {
  auto& work = *segment.work;
  bool const inlined = work.bytes(segment.count) <= static_cast<std::int64_t>(sizeof(Head::inlined));
  for (std::size_t m = 0; m < inputs_.size(); ++m) {
    int const member = static_cast<int>(m);
    inputs_[m] = inlined ? head(member, slot).inlined : data(member, slot);
  }
  std::byte* const out[] = {work.at(segment.begin)};
  combine(work.type, work.op, out, inputs_, segment.count);
  work.sent += work.bytes(even_traffic(segment.count, team_.me, static_cast<int>(inputs_.size())));
}

void SharedEngine::reduce_part(Segment& segment, int slot) {
  auto& work = *segment.work;
  auto const mine = part(segment, team_.me);
  auto const others = static_cast<std::int64_t>(inputs_.size()) - 1;
  work.sent += work.bytes(segment.count - mine.count + mine.count * others);
  if (mine.count == 0) return;
  std::int64_t const in_buffer = segment.begin + mine.begin;
  auto* const own = work.at(in_buffer);
  auto* const result = element(team_.me, slot, work, in_buffer, mine.begin);
  outputs_ = {result};
  if (!team_.several_nodes && !segment.in_place) outputs_.push_back(own);
  for (std::size_t m = 0; m < inputs_.size(); ++m) {
    int const member = static_cast<int>(m);
    auto* const theirs = element(member, slot, work, in_buffer, mine.begin);
    inputs_[m] = member == team_.me ? own : theirs;
    if (member == team_.me) continue;
    if (collects(member, slot)) {
      segment.lent = segment.in_place;
    } else {
      outputs_.push_back(theirs);
    }
  }
  combine(work.type, work.op, outputs_, inputs_, mine.count);
  if (between_) {
    segment.travels = {.data = result, .count = mine.count, .type = work.type, .op = work.op};
    between_->enqueue(segment.travels);
  }
}

bool SharedEngine::settle() {
  bool moved = between_ && !between_->idle() && between_->advance();
  while (settled_ < reduced_) {
    auto const& travels = segments_[settled_ % num_slots].travels;
    if (travels.data != nullptr && !travels.done) break;
    segments_[settled_ % num_slots].work->sent += travels.sent;
    ++settled_;
    moved = true;
  }
  if (moved) counters(team_.me).reduced.store(settled_, std::memory_order_release);
  return moved;
}

bool SharedEngine::collect() {
  if (collected_ == settled_) return false;
  int const slot = static_cast<int>(collected_ % num_slots);
  auto const& segment = segments_[slot];
  if (segment.work->kind == Collective::all_reduce && !segment.direct) {
    for (; seen_reductions_ < team_.lanes; ++seen_reductions_) {
      if (counters(seen_reductions_).reduced.load(std::memory_order_acquire) <= collected_) return false;
    }
    seen_reductions_ = 0;
    if (collects(team_.me, slot)) fetch_parts(segment, slot);
  }
  counters(team_.me).collected.store(++collected_, std::memory_order_release);
  return true;
}

void SharedEngine::fetch_parts(Segment const& segment, int slot) {
  auto& work = *segment.work;
  for (int lane = 0; lane < team_.lanes; ++lane) {
    int const member = (team_.me + lane) % team_.lanes;                   // the members begin with different ones
    if (member == team_.me && (segment.in_place || !between_)) continue;  // it is in the buffer already
    auto const range = part(segment, member);
    auto const in_buffer = segment.begin + range.begin;
    std::memcpy(work.at(in_buffer), element(member, slot, work, in_buffer, range.begin),
                static_cast<std::size_t>(work.bytes(range.count)));
  }
}

bool SharedEngine::finish() {
  bool moved = false;
  for (; finished_ < collected_; ++finished_) {
    auto const& segment = segments_[finished_ % num_slots];
    if (segment.lent && !all_released(finished_ + 1)) break;
    auto& work = *segment.work;
    moved = true;
    if (++work.finished < work.segments) continue;
    work.done = true;
    works_.erase(works_.begin());
    --posting_;
  }
  return moved;
}

}  // namespace p3d::comm::detail
