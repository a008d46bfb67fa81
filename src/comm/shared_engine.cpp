// SPDX-License-Identifier: Apache-2.0
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
constexpr std::size_t line = 64;       ///< of the cache
constexpr std::size_t apart = 128;     ///< two lines are fetched together
constexpr int passes_per_advance = 8;  ///< so that a test returns soon
}  // namespace

/// Each is written by the owner of the region alone, but for `gone`.
struct SharedEngine::Counters {
  alignas(apart) std::atomic<std::uint64_t> reduced;    ///< segments of which the owner's part is final
  alignas(apart) std::atomic<std::uint64_t> collected;  ///< segments that the owner reads no more
  alignas(apart) std::atomic<std::uint32_t> gone;       ///< others that have left this region
};

/// Before each slot: that it is posted, and short buffers themselves, so that one line of the cache carries all.
struct SharedEngine::Head {
  alignas(apart) std::atomic<std::uint64_t> posted;  ///< number of the segment in the slot, plus one
  std::uint64_t collected;                           ///< what the owner had collected then
  std::uint64_t place;                               ///< in the owner's memory, of the segment; 0: it is in the slot
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

std::byte* SharedEngine::elements(int member, int slot) const {
  auto const place = head(member, slot).place;
  return place == 0 ? data(member, slot) : team_.memories[static_cast<std::size_t>(member)] + place;
}

bool SharedEngine::collects(int member, int slot) const { return team_.several_nodes || head(member, slot).place == 0; }

SharedEngine::Range SharedEngine::part(Segment const& segment, int member) const {
  if (member >= team_.lanes) return {0, 0};
  auto const in_line = static_cast<std::int64_t>(line / size_of(segment.work->type));
  std::int64_t const each = (segment.count + team_.lanes - 1) / team_.lanes;
  std::int64_t const rounded = (each + in_line - 1) / in_line * in_line;
  std::int64_t const begin = std::min(segment.count, member * rounded);
  return {begin, std::min(segment.count - begin, rounded)};
}

void SharedEngine::enqueue(AllReduceWork& work) { works_.push_back(&work); }

bool SharedEngine::advance() {
  bool moved = false;
  for (int pass = 0; pass < passes_per_advance; ++pass) {
    bool any = false;
    // What others wait for first: the parts, then the inputs.
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
  if (posting_ == works_.size() || posted_ == finished_ + num_slots) return false;
  if (posted_ >= num_slots && !all_released(posted_ + 1 - num_slots)) return false;
  int const slot = static_cast<int>(posted_ % num_slots);
  auto& segment = segments_[slot];
  auto& work = *works_[posting_];
  auto const size = static_cast<std::int64_t>(size_of(work.type));
  std::int64_t const left = work.count - work.started;
  std::int64_t const most = std::min(static_cast<std::int64_t>(sizes_.slot) / size, elements_per_call(size));
  segment.work = &work;
  segment.begin = work.started;
  segment.count = std::min(left, most);
  segment.direct = !team_.several_nodes && work.count * size <= static_cast<std::int64_t>(sizes_.direct);
  work.started += segment.count;
  if (work.started == work.count) ++posting_;

  auto& own = head(team_.me, slot);
  auto const bytes = static_cast<std::size_t>(segment.count * size);
  auto* const begin = work.at(segment.begin);
  auto* const memory = team_.memories[static_cast<std::size_t>(team_.me)];
  segment.in_place =
      !segment.direct && std::less_equal<>()(memory, begin) && std::less<>()(begin, memory + team_.own_bytes);
  own.place = segment.in_place ? static_cast<std::uint64_t>(begin - memory) : 0;
  if (segment.in_place) {
    // nothing to copy
  } else if (segment.direct) {
    std::memcpy(bytes <= sizeof(own.inlined) ? own.inlined : data(team_.me, slot), work.at(segment.begin), bytes);
  } else {
    // All but this rank's own part, which nobody else needs.
    auto const mine = part(segment, team_.me);
    auto* const to = data(team_.me, slot);
    std::memcpy(to, work.at(segment.begin), static_cast<std::size_t>(mine.begin * size));
    std::int64_t const after = mine.begin + mine.count;
    std::memcpy(to + after * size, work.at(segment.begin + after),
                static_cast<std::size_t>((segment.count - after) * size));
  }
  own.collected = collected_;
  own.posted.store(++posted_, std::memory_order_release);
  return true;
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
  segment.direct ? reduce_direct(segment, slot) : reduce_part(segment, slot);
  ++reduced_;
  return true;
}

void SharedEngine::reduce_direct(Segment& segment, int slot) {
  auto& work = *segment.work;
  bool const inlined = static_cast<std::size_t>(segment.count) * size_of(work.type) <= sizeof(Head::inlined);
  for (std::size_t m = 0; m < inputs_.size(); ++m) {
    int const member = static_cast<int>(m);
    inputs_[m] = inlined ? head(member, slot).inlined : data(member, slot);
  }
  std::byte* const out[] = {work.at(segment.begin)};
  combine(work.type, work.op, out, inputs_, segment.count);
}

void SharedEngine::reduce_part(Segment& segment, int slot) {
  auto& work = *segment.work;
  auto const mine = part(segment, team_.me);
  segment.travels = {};
  segment.lent = false;
  if (mine.count == 0) return;
  std::int64_t const offset = mine.begin * static_cast<std::int64_t>(size_of(work.type));
  auto* const own = work.at(segment.begin + mine.begin);
  auto* const result = elements(team_.me, slot) + offset;
  outputs_ = {result};
  if (!team_.several_nodes && !segment.in_place) outputs_.push_back(own);
  for (std::size_t m = 0; m < inputs_.size(); ++m) {
    int const member = static_cast<int>(m);
    auto* const theirs = elements(member, slot) + offset;
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
  if (!segment.direct) {
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
  auto const size = static_cast<std::int64_t>(size_of(work.type));
  for (int lane = 0; lane < team_.lanes; ++lane) {
    int const member = (team_.me + lane) % team_.lanes;                   // not all from the same one at once
    if (member == team_.me && (segment.in_place || !between_)) continue;  // it is there already
    auto const range = part(segment, member);
    std::memcpy(work.at(segment.begin + range.begin), elements(member, slot) + range.begin * size,
                static_cast<std::size_t>(range.count * size));
  }
}

bool SharedEngine::finish() {
  bool moved = false;
  for (; finished_ < collected_; ++finished_) {
    auto const& segment = segments_[finished_ % num_slots];
    if (segment.lent && !all_released(finished_ + 1)) break;
    auto& work = *segment.work;
    work.finished += segment.count;
    moved = true;
    if (work.finished < work.count) continue;
    work.done = true;
    works_.erase(works_.begin());
    --posting_;
  }
  return moved;
}

}  // namespace p3d::comm::detail
