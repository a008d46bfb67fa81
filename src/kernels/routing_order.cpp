// SPDX-License-Identifier: Apache-2.0
// The order of slots by expert and their positions in the experts' queues. All of it is integer arithmetic, so the
// results do not depend on the number of threads.
#include <p3d/kernels/routing.hpp>

#include <p3d/base/memory_sizes.hpp>

#include "launch.hpp"

namespace p3d::kernels {

namespace {

/// Tokens that one thread counts, and later places, one after the other.
constexpr std::int64_t block_tokens = base::sorted_tokens(!on_host);

std::int64_t blocks_of(std::int64_t tokens) { return (tokens + block_tokens - 1) / block_tokens; }

/// Access to the slots of one block of tokens, in order.
struct Block {
  View2<int const> choice;
  template <class F>
  KOKKOS_INLINE_FUNCTION void each_slot(std::int64_t block, F const& f) const {
    auto const tokens = static_cast<std::int64_t>(choice.extent(0));
    auto const top_k = static_cast<int>(choice.extent(1));
    std::int64_t const begin = block * block_tokens,
                       end = begin + block_tokens < tokens ? begin + block_tokens : tokens;
    for (std::int64_t t = begin; t < end; ++t)
      for (int k = 0; k < top_k; ++k) f(t, k, choice(t, k));
  }
};

/// Turns counts into places: count[i] = the sum of the counts before it; count[n] = the sum of all.
void sum_up(ExecSpace const& exec, std::int64_t n, View1<int> count) {
  device::launch_scan(
      "p3d::kernels::sort_offsets", FlatRange(exec, 0, n), KOKKOS_LAMBDA(std::int64_t i, int& sum, bool last) {
        int const x = count(i);
        if (last) count(i) = sum;
        sum += x;
        if (last && i + 1 == n) count(n) = sum;
      });
}

}  // namespace

void count_choices(ExecSpace const& exec, View2<int const> choice, SampleRows rows, View2<std::int64_t> counts) {
  auto const top_k = static_cast<std::int64_t>(choice.extent(1)), experts = static_cast<std::int64_t>(counts.extent(1));
  launch_kernel(
      "p3d::kernels::clear_counts", FlatRange(exec, 0, counts.extent(0) * experts),
      KOKKOS_LAMBDA(std::int64_t i) { counts(i / experts, i % experts) = 0; });
  // Sums of integers are the same in any order, so atomics do no harm.
  launch_kernel(
      "p3d::kernels::count_choices", FlatRange(exec, 0, choice.extent(0) * top_k), KOKKOS_LAMBDA(std::int64_t i) {
        std::int64_t const t = i / top_k;
        int const e = choice(t, i - t * top_k);
        if (e >= 0) Kokkos::atomic_add(&counts(rows.sample(t), e), std::int64_t(1));
      });
}

void sort_by_expert(ExecSpace const& exec, View2<int const> choice, View1<int> offsets, View1<int> slots,
                    View2<int> place, View1<int> workspace) {
  auto const tokens = static_cast<std::int64_t>(choice.extent(0)), top_k = static_cast<std::int64_t>(choice.extent(1));
  auto const experts = static_cast<int>(offsets.extent(0)) - 1;
  std::int64_t const blocks = blocks_of(tokens), counts = blocks * experts;
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  P3D_REQUIRE(tokens * top_k <= most && counts < most, "too many tokens to sort by expert: a smaller microbatch fits");
  P3D_REQUIRE(experts >= 1 && static_cast<std::int64_t>(slots.extent(0)) == tokens * top_k &&
                  place.extent(0) == choice.extent(0) && place.extent(1) == choice.extent(1) &&
                  static_cast<std::int64_t>(workspace.extent(0)) > counts,
              "shapes of a sort by expert do not fit");
  Block const block{choice};
  // count(e * blocks + b) is the number of slots of expert e in block b and, after sum_up, the place where they begin.
  auto const count = workspace;
  launch_kernel(
      "p3d::kernels::sort_count", FlatRange(exec, 0, blocks), KOKKOS_LAMBDA(std::int64_t b) {
        for (int e = 0; e < experts; ++e) count(e * blocks + b) = 0;
        block.each_slot(b, [&](std::int64_t, int, int e) {
          if (e >= 0) ++count(e * blocks + b);
        });
      });
  sum_up(exec, counts, count);
  launch_kernel(
      "p3d::kernels::sort_ends", FlatRange(exec, 0, experts + 1),
      KOKKOS_LAMBDA(std::int64_t e) { offsets(e) = counts == 0 ? 0 : count(e * blocks); });
  launch_kernel(
      "p3d::kernels::sort_rest", FlatRange(exec, 0, tokens * top_k), KOKKOS_LAMBDA(std::int64_t i) {
        if (i >= offsets(experts)) slots(i) = -1;
      });
  launch_kernel(
      "p3d::kernels::sort_place", FlatRange(exec, 0, blocks), KOKKOS_LAMBDA(std::int64_t b) {
        block.each_slot(b, [&](std::int64_t t, int k, int e) {
          // A block's count of an expert begins at its first place and advances with each slot, so that slots keep
          // their order.
          int const i = e < 0 ? -1 : count(e * blocks + b)++;
          place(t, k) = i;
          if (i >= 0) slots(i) = static_cast<int>(t * top_k + k);
        });
      });
}

void position_in_queue(ExecSpace const& exec, View2<int const> choice, SampleRows rows, int experts,
                       View2<std::int64_t const> start, View2<int> position) {
  auto const tokens = static_cast<std::int64_t>(choice.extent(0));
  auto const top_k = static_cast<int>(choice.extent(1));
  if (tokens == 0) return;
  std::int64_t const samples = rows.sample(tokens - 1) + 1;
  bool const given = start.extent(0) > 0;
  // One thread takes each queue, and one more the slots that are in none. Every thread reads all choices of its sample:
  // they are few and in cache.
  int const queues = experts + 1;
  launch_kernel(
      "p3d::kernels::position_in_queue", FlatRange(exec, 0, samples * queues), KOKKOS_LAMBDA(std::int64_t i) {
        std::int64_t const sample = i / queues;
        int const e = static_cast<int>(i % queues) - 1;
        int next = given && e >= 0 ? static_cast<int>(start(sample, e)) : 0;
        std::int64_t const end = rows.begin(sample + 1, tokens);
        for (std::int64_t t = rows.begin(sample, tokens); t < end; ++t)
          for (int k = 0; k < top_k; ++k)
            if (choice(t, k) == e) position(t, k) = e < 0 ? -1 : next++;
      });
}

template <class A>
void drop_beyond(ExecSpace const& exec, View2<int const> position, std::int64_t capacity, View2<int const> choice,
                 View2<int> kept, Given<View2<A>> gates) {
  auto const top_k = static_cast<std::int64_t>(choice.extent(1));
  launch_kernel(
      "p3d::kernels::drop_beyond", FlatRange(exec, 0, choice.extent(0) * top_k), KOKKOS_LAMBDA(std::int64_t i) {
        std::int64_t const t = i / top_k, k = i - t * top_k;
        bool const keep = choice(t, k) >= 0 && position(t, k) < capacity;
        kept(t, k) = keep ? choice(t, k) : -1;
        if (!keep) gates(t, k) = 0;
      });
}

template void drop_beyond<float>(ExecSpace const&, View2<int const>, std::int64_t, View2<int const>, View2<int>,
                                 View2<float>);
template void drop_beyond<double>(ExecSpace const&, View2<int const>, std::int64_t, View2<int const>, View2<int>,
                                  View2<double>);

}  // namespace p3d::kernels
