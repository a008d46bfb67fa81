// SPDX-License-Identifier: Apache-2.0
// The order of slots by expert, queues with a capacity, and the rows' way to the experts and back: against loops.

#include "support.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/memory_sizes.hpp>
#include <p3d/kernels/expert_rows.hpp>
#include <p3d/kernels/routing.hpp>

#include <support/errors.hpp>

#include <numeric>

using namespace p3d::test;
namespace kernels = p3d::kernels;
using kernels::SampleRows;
using kernels::Store;

namespace routing_order_test {

Owned2<int> choice_of(std::int64_t tokens, std::vector<int> const& v) {
  return matrix_of<int>(tokens, tokens == 0 ? 2 : static_cast<std::int64_t>(v.size()) / tokens,
                        Vec(v.begin(), v.end()));
}

/// top_k different experts for each token; every `drop`-th slot is -1.
std::vector<int> random_choice(std::int64_t tokens, int experts, int top_k, int drop = 0) {
  std::vector<int> choice;
  auto const key = p3d::base::random_key(11, "choice");
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<int> all(experts);
    std::iota(all.begin(), all.end(), 0);
    for (int k = 0; k < top_k; ++k) {
      auto const word = p3d::base::random_word(key, 0, static_cast<std::uint64_t>(t * top_k + k));
      std::swap(all[k], all[k + static_cast<int>(word % static_cast<unsigned>(experts - k))]);
      choice.push_back(drop > 0 && choice.size() % drop == 0 ? -1 : all[k]);
    }
  }
  return choice;
}

struct Order {
  Vec offsets, slots, place;
};
Order sort(std::int64_t tokens, int experts, std::vector<int> const& choice) {
  auto const c = choice_of(tokens, choice);
  Owned1<int> const offsets("p3d::test::offsets", experts + 1), slots("p3d::test::slots", choice.size()),
      workspace("p3d::test::workspace", p3d::base::sort_workspace(tokens, experts, kernels::have_device_form()));
  Owned2<int> const place("p3d::test::place", c.extent(0), c.extent(1));
  kernels::sort_by_expert(ExecSpace(), c, offsets, slots, place, workspace);
  return {host(offsets), host(slots), host(place)};
}
Order plain_sort(int experts, std::vector<int> const& choice) {
  Order o{Vec(experts + 1, 0.0), Vec(choice.size(), -1.0), Vec(choice.size(), -1.0)};
  int n = 0;
  for (int e = 0; e < experts; ++e) {
    for (std::size_t i = 0; i < choice.size(); ++i)
      if (choice[i] == e) {
        o.place[i] = n;
        o.slots[n++] = static_cast<double>(i);
      }
    o.offsets[e + 1] = n;
  }
  return o;
}
void check_sort(std::int64_t tokens, int experts, std::vector<int> const& choice) {
  SCOPED_TRACE(std::to_string(tokens) + " tokens, " + std::to_string(experts) + " experts");
  auto const found = sort(tokens, experts, choice), expected = plain_sort(experts, choice);
  EXPECT_EQ(found.offsets, expected.offsets);
  EXPECT_EQ(found.slots, expected.slots);
  EXPECT_EQ(found.place, expected.place);
}

TEST(SortByExpert, IsAStableSort) {
  for (std::int64_t const tokens : {1, 15, 16, 17, 100, 1024, 2500})
    for (auto [experts, top_k] : {std::pair{8, 2}, {3, 3}, {60, 4}, {1, 1}})
      for (int const drop : {0, 3}) check_sort(tokens, experts, random_choice(tokens, experts, top_k, drop));
}
TEST(SortByExpert, OfOneExpertOfNoneAndOfNoTokens) {
  check_sort(2100, 5, std::vector<int>(2100, 3));
  check_sort(2100, 5, std::vector<int>(2100, 4));
  check_sort(40, 5, std::vector<int>(40, -1));
  check_sort(0, 5, {});
}
TEST(SortByExpert, ShapesThatDoNotFitAreRefused) {
  auto const c = choice_of(4, std::vector<int>(8, 0));
  Owned1<int> const offsets("p3d::test::offsets", 3), slots("p3d::test::slots", 7), workspace("p3d::test::w", 3);
  Owned2<int> const place("p3d::test::place", 4, 2);
  expect_error([&] { kernels::sort_by_expert(ExecSpace(), c, offsets, slots, place, workspace); }, "do not fit");
}

TEST(CountChoices, OfSamplesThatBeginElsewhere) {
  constexpr std::int64_t tokens = 23, per_sample = 7, first_row = 4, experts = 6;
  auto const choice = random_choice(tokens, experts, 3, 5);
  Vec expected(4 * experts, 0.0);
  for (std::size_t i = 0; i < choice.size(); ++i)
    if (choice[i] >= 0) ++expected[(first_row + i / 3) / per_sample * experts + choice[i]];
  Owned2<std::int64_t> const counts("p3d::test::counts", 4, experts);
  for (int twice = 0; twice < 2; ++twice) {
    kernels::count_choices(ExecSpace(), choice_of(tokens, choice), SampleRows{per_sample, first_row}, counts);
    EXPECT_EQ(host(counts), expected);
  }
}

Vec positions(std::vector<int> const& choice, std::int64_t tokens, int experts, SampleRows rows, Vec const& start) {
  auto const c = choice_of(tokens, choice);
  Owned2<int> const position("p3d::test::position", c.extent(0), c.extent(1));
  auto const s = start.empty()
                     ? Owned2<std::int64_t>()
                     : matrix_of<std::int64_t>(static_cast<std::int64_t>(start.size()) / experts, experts, start);
  kernels::position_in_queue(ExecSpace(), c, rows, experts, s, position);
  return host(position);
}
Vec plain_positions(std::vector<int> const& choice, int top_k, std::int64_t per_sample) {
  Vec p;
  for (std::size_t i = 0; i < choice.size(); ++i) {
    auto const sample = i / top_k / per_sample;
    p.push_back(choice[i] < 0 ? -1.0
                              : static_cast<double>(std::count(choice.begin() + sample * per_sample * top_k,
                                                               choice.begin() + i, choice[i])));
  }
  return p;
}

TEST(PositionInQueue, CountsTheTokensBefore) {
  auto const choice = random_choice(60, 5, 2, 7);
  for (std::int64_t const per_sample : {1, 20, 60})
    EXPECT_EQ(positions(choice, 60, 5, {per_sample}, {}), plain_positions(choice, 2, per_sample)) << per_sample;
  EXPECT_EQ(positions(std::vector<int>(4, 2), 4, 3, {4}, {}), (Vec{0, 1, 2, 3}));
}

// Ranks that hold pieces of the samples find what one rank with all tokens finds.
TEST(PositionInQueue, OfPiecesIsThatOfTheWhole) {
  constexpr std::int64_t tokens = 60, per_sample = 20, experts = 5, top_k = 2;
  auto const choice = random_choice(tokens, experts, top_k);
  auto const whole = plain_positions(choice, top_k, per_sample);
  for (std::int64_t const cut : {7, 20, 33}) {
    std::vector<int> const head(choice.begin(), choice.begin() + cut * top_k),
        tail(choice.begin() + cut * top_k, choice.end());
    auto found = positions(head, cut, experts, {per_sample}, {});
    std::int64_t const first_row = cut % per_sample, samples = (tokens - cut + first_row) / per_sample;
    Vec start(samples * experts, 0.0);
    for (std::int64_t i = (cut - first_row) * top_k; i < cut * top_k; ++i) ++start[choice[i]];
    auto const rest = positions(tail, tokens - cut, experts, {per_sample, first_row}, start);
    found.insert(found.end(), rest.begin(), rest.end());
    EXPECT_EQ(found, whole) << cut;
  }
}

TEST(DropBeyond, KeepsTheFirstOfEachQueue) {
  constexpr std::int64_t tokens = 40, per_sample = 20;
  auto const choice = random_choice(tokens, 4, 2, 9);
  auto const position = plain_positions(choice, 2, per_sample), gate = random_values("gates", tokens * 2);
  for (std::int64_t const capacity : {0, 3, 20}) {
    auto const c = choice_of(tokens, choice), kept = choice_of(tokens, choice);
    auto const gates = matrix_of<double>(tokens, 2, gate);
    kernels::drop_beyond<double>(ExecSpace(), matrix_of<int>(tokens, 2, position), capacity, c, kept, gates);
    Vec expected, expected_gates;
    for (std::size_t i = 0; i < choice.size(); ++i) {
      bool const keep = choice[i] >= 0 && position[i] < static_cast<double>(capacity);
      expected.push_back(keep ? choice[i] : -1);
      expected_gates.push_back(keep ? gate[i] : 0.0);
    }
    EXPECT_EQ(host(kept), expected);
    EXPECT_EQ(host(gates), expected_gates);
    kernels::drop_beyond<double>(ExecSpace(), matrix_of<int>(tokens, 2, position), capacity, c, c, gates);
    EXPECT_EQ(host(c), expected) << "in place";
  }
}

/// Rows of one order, with a hidden size beyond one chunk of columns.
struct Rows {
  static constexpr std::int64_t tokens = 19, hidden = 133;
  static constexpr int experts = 6, top_k = 3;
  Order order = sort(tokens, experts, random_choice(tokens, experts, top_k, 4));
  std::int64_t rows = static_cast<std::int64_t>(order.offsets.back());
  Vec x = random_values("x", tokens*hidden), dy = random_values("dy", tokens*hidden),
      out = random_values("out", rows*hidden), gate = random_values("gate", tokens*top_k);

  /// sum over k of weight[t, k] values[place[t, k]].
  Vec combined(Vec const& values, Vec const& weight, Vec const& before) const {
    Vec y(tokens * hidden, 0.0);
    for (std::int64_t i = 0; i < tokens * top_k; ++i)
      for (std::int64_t c = 0; order.place[i] >= 0 && c < hidden; ++c)
        y[i / top_k * hidden + c] += weight[i] * values[static_cast<std::int64_t>(order.place[i]) * hidden + c];
    return before.empty() ? y : plus(y, before);
  }
  Owned2<int> place() const { return matrix_of<int>(tokens, top_k, order.place); }
};

TEST(PermuteRows, TakesTheRowsOfAnyRangeOfSlots) {
  Rows const r;
  for (auto [begin, end] :
       {std::pair<std::int64_t, std::int64_t>{0, r.rows}, {5, 9}, {7, 7}, {r.rows - 2, r.rows + 1}}) {
    Vec slots(r.order.slots.begin() + begin, r.order.slots.begin() + end), expected;
    for (double slot : slots)
      for (std::int64_t c = 0; c < Rows::hidden; ++c)
        expected.push_back(slot < 0 ? 0.0 : r.x[static_cast<std::int64_t>(slot) / Rows::top_k * Rows::hidden + c]);
    Owned2<double> const out("p3d::test::out", end - begin, Rows::hidden);
    Kokkos::deep_copy(out, 7.0);
    kernels::permute_rows<double>(ExecSpace(), matrix_of<double>(Rows::tokens, Rows::hidden, r.x),
                                  vector_of<int>(slots), Rows::top_k, out);
    EXPECT_EQ(host(out), expected);
  }
}

TEST(PermuteRows, BackwardSumsOverTheSlots) {
  Rows const r;
  auto const d = matrix_of<double>(r.rows, Rows::hidden, r.out);
  auto const dx = matrix_of<double>(Rows::tokens, Rows::hidden, r.x);
  Vec const ones(Rows::tokens * Rows::top_k, 1.0);
  kernels::permute_rows_backward<double>(ExecSpace(), d, r.place(), Store::overwrite, dx);
  expect_close(host(dx), r.combined(r.out, ones, {}), 1e-15, "overwritten");
  auto const before = host(dx);
  kernels::permute_rows_backward<double>(ExecSpace(), d, r.place(), Store::add, dx);
  expect_close(host(dx), r.combined(r.out, ones, before), 1e-15, "added");
}

template <class T>
void check_combine(double tolerance) {
  Rows const r;
  auto const out = matrix_of<T>(r.rows, Rows::hidden, r.out);
  auto const gates = matrix_of<T>(Rows::tokens, Rows::top_k, r.gate);
  auto const y = matrix_of<T>(Rows::tokens, Rows::hidden, r.x);
  kernels::combine<T>(ExecSpace(), out, r.place(), gates, Store::add, y);
  expect_close(host(y), r.combined(r.out, r.gate, r.x), tolerance, "added");
  kernels::combine<T>(ExecSpace(), out, r.place(), gates, Store::overwrite, y);
  expect_close(host(y), r.combined(r.out, r.gate, {}), tolerance, "overwritten");
}
TEST(Combine, SumsOverTheSlots) {
  check_combine<double>(1e-15);
  check_combine<float>(1e-6);
}

TEST(Combine, BackwardMatchesLoopsAndMayOverwriteItsInput) {
  Rows const r;
  Vec d_out(r.rows * Rows::hidden, 0.0), d_gates(Rows::tokens * Rows::top_k, 0.0);
  for (std::int64_t i = 0; i < Rows::tokens * Rows::top_k; ++i)
    for (std::int64_t c = 0; r.order.place[i] >= 0 && c < Rows::hidden; ++c) {
      auto const at = static_cast<std::int64_t>(r.order.place[i]) * Rows::hidden + c;
      double const g = r.dy[i / Rows::top_k * Rows::hidden + c];
      d_out[at] = r.gate[i] * g;
      d_gates[i] += g * r.out[at];
    }
  auto const out = matrix_of<double>(r.rows, Rows::hidden, r.out);
  auto const dy = matrix_of<double>(Rows::tokens, Rows::hidden, r.dy);
  auto const gates = matrix_of<double>(Rows::tokens, Rows::top_k, r.gate);
  for (auto const& to : {Owned2<double>("p3d::test::d_out", r.rows, Rows::hidden), out}) {
    auto const dg = matrix_of<double>(Rows::tokens, Rows::top_k, r.gate);
    kernels::combine_backward<double>(ExecSpace(), out, r.place(), gates, dy, to, dg);
    expect_close(host(to), d_out, 1e-15, "d_expert_out");
    expect_close(host(dg), d_gates, 1e-14, "d_gates");
  }
}

template <class S>
void check_16_bits() {
  Rows r;
  r.out = rounded<S>(r.out);
  r.dy = rounded<S>(r.dy);
  r.gate = rounded<float>(r.gate);
  auto const out = matrix_of<S>(r.rows, Rows::hidden, r.out), dy = matrix_of<S>(Rows::tokens, Rows::hidden, r.dy);
  auto const gates = matrix_of<float>(Rows::tokens, Rows::top_k, r.gate);
  Owned2<S> const y("p3d::test::y", Rows::tokens, Rows::hidden), permuted("p3d::test::p", r.rows, Rows::hidden);
  kernels::combine<S>(ExecSpace(), out, r.place(), gates, Store::overwrite, y);
  expect_rounded<S>(host(y), r.combined(r.out, r.gate, {}), "y");
  Vec const slots(r.order.slots.begin(), r.order.slots.begin() + r.rows);
  kernels::permute_rows<S>(ExecSpace(), dy, vector_of<int>(slots), Rows::top_k, permuted);
  auto const exact = matrix_of<double>(r.rows, Rows::hidden, r.out);
  kernels::permute_rows<double>(ExecSpace(), matrix_of<double>(Rows::tokens, Rows::hidden, r.dy), vector_of<int>(slots),
                                Rows::top_k, exact);
  EXPECT_EQ(host(permuted), host(exact));
  auto const dg = matrix_of<float>(Rows::tokens, Rows::top_k, r.gate);
  auto const dg64 = matrix_of<double>(Rows::tokens, Rows::top_k, r.gate);
  kernels::combine_backward<S>(ExecSpace(), out, r.place(), gates, dy, permuted, dg);
  kernels::combine_backward<double>(ExecSpace(), matrix_of<double>(r.rows, Rows::hidden, r.out), r.place(),
                                    matrix_of<double>(Rows::tokens, Rows::top_k, r.gate),
                                    matrix_of<double>(Rows::tokens, Rows::hidden, r.dy), exact, dg64);
  expect_rounded<S>(host(permuted), host(exact), "d_expert_out");
  expect_close(host(dg), host(dg64), 4e-6, "d_gates");
}
TEST(Combine, In16BitsIsTheOneInDoubleRoundedOnce) {
  check_16_bits<bfloat16>();
  check_16_bits<float16>();
}

// Blocks of 5 rows, of which 3 are asked for.
TEST(SumBlocks, AddsTheRowsOfAllBlocksInOrder) {
  constexpr std::int64_t each = 5, rows = 3, columns = 4;
  for (int count : {1, 2, 7}) {
    auto const blocks = random_values("blocks", count * each * columns), before = random_values("out", rows * columns);
    for (auto store : {Store::overwrite, Store::add}) {
      auto const out = matrix_of<double>(rows, columns, before);
      kernels::sum_blocks<double>(ExecSpace(), matrix_of<double>(count * each, columns, blocks), count, store, out);
      Vec expected(before.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        for (int b = 0; b < count; ++b) expected[i] += blocks[static_cast<std::size_t>(b * each * columns) + i];
        if (store == Store::add) expected[i] += before[i];
      }
      EXPECT_EQ(host(out), expected) << count;
      auto const narrow = matrix_of<float>(rows, columns, before);
      kernels::sum_blocks<float>(ExecSpace(), matrix_of<float>(count * each, columns, blocks), count, store, narrow);
      expect_close(host(narrow), expected, 2e-6, "fp32");
    }
  }
}

}  // namespace routing_order_test
