// SPDX-License-Identifier: Apache-2.0
// Every layout of up to 64 ranks against the definition: two mixed-radix numbers of the same rank. Where the program
// says that a layout has no refinement, all sequences of atoms are tried.

#include <p3d/base/error.hpp>
#include <p3d/layout/axes.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace {
using namespace p3d;
using namespace p3d::layout;

/// A size and the axis it belongs to, fastest first: one way to count ranks.
using Radix = std::vector<std::pair<Axis, int>>;

/// Both ways to count, as README and DESIGN define them: pp has its digit in the dense number alone; in the experts'
/// one etp stands where tp does, ep and edp where dp does.
struct Layout {
  Radix dense, stage, experts;
  Layout(PerAxis const& s, std::vector<Axis> const& order) {
    int const edp = s.tp * s.cp * s.dp / (s.etp * s.ep);
    for (auto a : order) {
      dense.push_back({a, s[a]});
      if (a != Axis::pp) stage.push_back({a, s[a]});
      if (a == Axis::tp) experts.push_back({Axis::etp, s.etp});
      if (a == Axis::dp) {
        experts.push_back({Axis::ep, s.ep});
        experts.push_back({Axis::edp, edp});
      }
    }
  }
};

void digits(Radix const& radix, int number, PerAxis& out) {
  for (auto const& [axis, size] : radix) {
    out[axis] = number % size;
    number /= size;
  }
}

PerAxis by_definition(Layout const& layout, int rank) {
  auto out = PerAxis::all(0);
  digits(layout.dense, rank, out);
  int in_stage = 0, step = 1;
  for (auto const& [axis, size] : layout.stage) {
    in_stage += out[axis] * step;
    step *= size;
  }
  digits(layout.experts, in_stage, out);
  return out;
}

/// Groups of an axis: the ranks that agree in all other digits of the number that the axis is a digit of; those of
/// experts lie in one stage.
std::vector<std::vector<int>> groups_by_definition(std::vector<PerAxis> const& at, Layout const& layout, Axis axis) {
  bool const expert = expert_axes.has(axis);
  std::map<std::int64_t, std::vector<int>> groups;
  for (std::size_t r = 0; r < at.size(); ++r) {
    std::int64_t key = expert ? at[r].pp : 0;
    for (auto const& [a, size] : expert ? layout.experts : layout.dense) key = key * 64 + (a == axis ? 0 : at[r][a]);
    groups[key].push_back(static_cast<int>(r));
  }
  std::vector<std::vector<int>> out;
  for (auto& [key, members] : groups) {
    std::sort(members.begin(), members.end(), [&](int a, int b) {
      return at[static_cast<std::size_t>(a)][axis] < at[static_cast<std::size_t>(b)][axis];
    });
    out.push_back(members);
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Whether some sequence of atoms with this product has all of `wanted` among its partial products: tries every one.
bool some_sequence(int product, int total, std::vector<int>& partial, std::vector<int> const& wanted) {
  if (product == total)
    return std::all_of(wanted.begin(), wanted.end(),
                       [&](int w) { return std::find(partial.begin(), partial.end(), w) != partial.end(); });
  for (int atom = 2; product * atom <= total; ++atom) {
    if (total % (product * atom) != 0) continue;
    partial.push_back(product * atom);
    bool const found = some_sequence(product * atom, total, partial, wanted);
    partial.pop_back();
    if (found) return true;
  }
  return false;
}

bool refinement_exists(Layout const& layout) {
  std::vector<int> wanted;
  int total = 1;
  for (auto const* radix : {&layout.stage, &layout.experts}) {
    total = 1;
    for (auto const& [axis, size] : *radix) wanted.push_back(total *= size);
  }
  std::vector<int> partial{1};
  return some_sequence(1, total, partial, wanted);
}

struct Count {
  int accepted = 0, refused = 0;
};

void check(PerAxis const& sizes, std::vector<Axis> const& order, Count& count) {
  Layout const layout(sizes, order);
  auto const text = [&] {
    std::string out = config::to_text(order);
    for (auto a : all_axes) out += std::string(" ") + name(a) + "=" + std::to_string(sizes[a]);
    return out;
  };
  bool const exists = refinement_exists(layout);
  ASSERT_EQ(config::refine(sizes, order).has_value(), exists) << text();
  if (!exists) {
    ++count.refused;
    return;
  }
  ++count.accepted;
  RankGrid const grid(sizes, order);
  std::vector<PerAxis> at;
  for (int r = 0; r < grid.num_ranks(); ++r) {
    at.push_back(by_definition(layout, r));
    ASSERT_EQ(grid.coordinates(r), at.back()) << text() << " rank " << r;
    ASSERT_EQ(grid.rank(at.back()), r) << text();
  }
  for (auto axis : all_axes) {
    auto const wanted = groups_by_definition(at, layout, axis);
    ASSERT_EQ(grid.groups(axis), wanted) << text() << " groups of " << name(axis);
    for (std::size_t g = 0; g < wanted.size(); ++g) {
      for (std::size_t i = 0; i < wanted[g].size(); ++i) {
        ASSERT_EQ(grid.place(axis, wanted[g][i]), static_cast<int>(i)) << text();
        ASSERT_EQ(grid.number_of_group(axis, wanted[g][i]), static_cast<int>(g)) << text();
      }
    }
  }
}

template <class Body>
void for_divisors(int n, Body const& body) {
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) body(d);
  }
}

void all_layouts(int ranks, std::vector<Axis> const& order, Count& count) {
  for_divisors(ranks, [&](int tp) {
    for_divisors(ranks / tp, [&](int cp) {
      for_divisors(ranks / tp / cp, [&](int pp) {
        int const stage = ranks / pp;
        for_divisors(stage, [&](int etp) {
          for_divisors(stage / etp, [&](int ep) {
            PerAxis const sizes{.tp = tp, .cp = cp, .pp = pp, .dp = stage / tp / cp, .etp = etp, .ep = ep};
            check(sizes, order, count);
          });
        });
      });
    });
  });
}

TEST(Refinement, EveryLayoutOfUpTo64Ranks) {
  Count count;
  auto const order = dense_axes.list();
  for (int ranks = 1; ranks <= 64 && !HasFatalFailure(); ++ranks) all_layouts(ranks, order, count);
  RecordProperty("accepted", count.accepted);
  RecordProperty("refused", count.refused);
  std::printf("%d layouts accepted, %d refused\n", count.accepted, count.refused);
  EXPECT_GT(count.accepted, 10000);
  EXPECT_GT(count.refused, 1000);
}

TEST(Refinement, EveryOrderOfSmallMeshes) {
  auto order = dense_axes.list();
  std::sort(order.begin(), order.end());
  Count count;
  do {
    for (int ranks : {1, 2, 6, 8, 12, 16, 24}) all_layouts(ranks, order, count);
  } while (std::next_permutation(order.begin(), order.end()) && !HasFatalFailure());
  EXPECT_GT(count.refused, 100);
}

TEST(Refinement, GroupsAlongSeveralAxes) {
  RankGrid const grid({.tp = 2, .pp = 2, .dp = 4, .ep = 4}, parse_order("tp-pp-dp"));
  EXPECT_EQ(grid.group({Axis::tp, Axis::dp}, 0), (std::vector<int>{0, 1, 4, 5, 8, 9, 12, 13}));
  EXPECT_EQ(grid.group(Axis::ep, 0), (std::vector<int>{0, 1, 4, 5}));  // tp, and the inner half of dp
  EXPECT_EQ(grid.group({Axis::ep, Axis::edp}, 2), grid.group(stage_axes, 2));
  EXPECT_EQ(grid.group({Axis::tp, Axis::ep}, 9), grid.group(Axis::ep, 9));
  EXPECT_EQ(grid.num_groups({Axis::tp, Axis::pp}), 4);
  EXPECT_EQ(grid.group({}, 7), std::vector<int>{7});
}

TEST(Refinement, AGridWithoutOneSaysWhatWorks) {
  try {
    RankGrid({.tp = 6, .dp = 4, .ep = 4}, parse_order("tp-dp"));
    ADD_FAILURE() << "a grid was made";
  } catch (base::Error const& e) {
    EXPECT_EQ(e.code(), base::ExitCode::bad_input);
    EXPECT_NE(e.text().fix.find("parallel.ep to 3 or 6"), std::string::npos) << e.what();
  }
}

}  // namespace
