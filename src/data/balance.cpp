// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/balance.hpp>

#include <p3d/base/error.hpp>

#include <algorithm>
#include <numeric>

namespace p3d::data {

std::int64_t document_work(std::span<int const> documents, std::int64_t window) {
  std::int64_t work = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    auto const seen = static_cast<std::int64_t>(i) - documents[i] + 1;
    work += window > 0 ? std::min(seen, window) : seen;
  }
  return work;
}

std::vector<std::int64_t> balance_microbatches(std::span<double const> work, std::int64_t replicas) {
  P3D_REQUIRE(replicas > 0 && std::ssize(work) % replicas == 0, "each replica has equally many microbatches");
  auto const room = static_cast<std::size_t>(std::ssize(work) / replicas);
  std::vector<std::int64_t> longest(work.size());
  std::iota(longest.begin(), longest.end(), std::int64_t{0});
  auto const work_of = [&](std::int64_t i) { return work[static_cast<std::size_t>(i)]; };
  std::stable_sort(longest.begin(), longest.end(), [&](auto a, auto b) { return work_of(a) > work_of(b); });

  struct Replica {
    double work = 0.0;
    std::vector<std::int64_t> taken;
  };
  std::vector<Replica> all(static_cast<std::size_t>(replicas));
  // A full replica is never the least one, whatever its work.
  for (auto const i : longest) {
    auto const least = std::min_element(all.begin(), all.end(), [&](auto const& a, auto const& b) {
      bool const full_a = a.taken.size() == room, full_b = b.taken.size() == room;
      return full_a != full_b ? full_b : a.work < b.work;
    });
    least->work += work_of(i);
    least->taken.push_back(i);
  }
  std::vector<std::int64_t> out;
  for (auto& replica : all) {
    std::sort(replica.taken.begin(), replica.taken.end());
    out.insert(out.end(), replica.taken.begin(), replica.taken.end());
  }
  return out;
}

}  // namespace p3d::data
