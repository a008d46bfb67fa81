// SPDX-License-Identifier: Apache-2.0
#include <p3d/plan/pool.hpp>

#include <algorithm>
#include <utility>

namespace p3d::plan {

namespace {

constexpr std::int64_t alignment = 64;

}  // namespace

Pool make_pool(std::vector<int> const& stages, std::map<int, std::int64_t> const& bytes,
               std::vector<std::vector<std::vector<schedule::LiveInterval>>> const& programs) {
  auto order = stages;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return bytes.at(a) > bytes.at(b); });
  Pool pool;
  for (int stage : order) {
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;  // by buffers that are there at the same time
    for (auto const& [other, offset] : pool.offsets) {
      bool const together = std::any_of(programs.begin(), programs.end(), [&, o = other](auto const& intervals) {
        return schedule::meet(intervals[static_cast<std::size_t>(stage)], intervals[static_cast<std::size_t>(o)]);
      });
      if (together) taken.emplace_back(offset, offset + bytes.at(other));
    }
    std::sort(taken.begin(), taken.end());
    std::int64_t place = 0;
    for (auto const& [begin, end] : taken) {
      if (place + bytes.at(stage) <= begin) break;
      place = std::max(place, (end + alignment - 1) / alignment * alignment);
    }
    pool.offsets[stage] = place;
    pool.bytes = std::max(pool.bytes, place + bytes.at(stage));
  }
  return pool;
}

}  // namespace p3d::plan
