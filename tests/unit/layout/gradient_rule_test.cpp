// Brute force of the gradient rule. Every rank of a small mesh works out, element by element, the gradient of the
// tokens it sees for the elements it holds. Then every possible set of axes is tried for the reduction: the sets that
// make each held element the sum over all tokens must be those that the parameter table names.

#include "tiny_models.hpp"

#include <p3d/layout/params.hpp>

#include <gtest/gtest.h>

#include <map>

namespace {
using namespace p3d;
using namespace p3d::layout;

constexpr int num_tokens = 12;  // divisible by dp = 1, 2, 3

// An arbitrary contribution of one token to one global element; integers, so sums are exact.
std::int64_t contribution(int token, std::int64_t element) {
  return (token + 1) * (7 * element + 3) % 1009 + token * token;
}

std::vector<std::int64_t> local_values(LocalParam const& p, int first_token, int step) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(p.size()));
  for (std::int64_t r = 0; r < p.valid_rows; ++r) {
    for (std::int64_t k = 0; k < p.cols; ++k) {
      auto const element = (p.row_begin + r) * p.spec->cols + p.col_begin + k;
      auto& sum = out[static_cast<std::size_t>(r * p.cols + k)];
      for (int t = first_token; t < num_tokens; t += step) sum += contribution(t, element);
    }
  }
  return out;
}

TEST(GradientRule, AgreesWithBruteForceOnSmallMeshes) {
  int wrong_sets_seen = 0;
  for (auto const& c : test::tiny_configs()) {
    SCOPED_TRACE(test::describe(c));
    RankGrid const grid({c.parallel.dp, c.parallel.tp, c.parallel.pp}, parse_order(c.parallel.order));
    auto const table = make_param_table(c);
    auto const stages = make_stage_map(c);
    std::map<std::string, std::map<int, std::vector<std::int64_t>>> gradient, wanted;  // by parameter and rank
    for (int rank = 0; rank < grid.num_ranks(); ++rank) {
      auto const at = grid.coordinates(rank);
      StageParams const params(table, stages, at.pp, grid.sizes(), at);
      for (auto const& p : params.items()) {
        // The batch is dealt over dp; the ranks of one tensor group see the same tokens.
        gradient[p.spec->name][rank] = local_values(p, at.dp, grid.sizes().dp);
        wanted[p.spec->name][rank] = local_values(p, 0, 1);
      }
    }
    for (auto const& s : table.specs()) {
      for (AxisSet const set : {AxisSet{}, AxisSet{Axis::dp}, AxisSet{Axis::tp}, AxisSet{Axis::dp, Axis::tp}}) {
        bool right = true;
        for (auto const& [rank, mine] : gradient[s.name]) {
          std::vector<std::int64_t> sum(mine.size());
          for (auto const& [other, theirs] : gradient[s.name]) {
            auto const a = grid.coordinates(rank), b = grid.coordinates(other);
            bool const together =
                a.pp == b.pp && (a.dp == b.dp || set.has(Axis::dp)) && (a.tp == b.tp || set.has(Axis::tp));
            for (std::size_t i = 0; together && i < sum.size(); ++i) sum[i] += theirs[i];
          }
          right = right && sum == wanted[s.name][rank];
        }
        // An axis with one rank makes no difference.
        auto const rule = s.gradient_axes();
        bool const named = (grid.sizes().dp == 1 || set.has(Axis::dp) == rule.has(Axis::dp)) &&
                           (grid.sizes().tp == 1 || set.has(Axis::tp) == rule.has(Axis::tp));
        EXPECT_EQ(right, named) << s.name << " reduced over" << (set.has(Axis::dp) ? " dp" : "")
                                << (set.has(Axis::tp) ? " tp" : "");
        wrong_sets_seen += !right;
      }
    }
  }
  EXPECT_GT(wrong_sets_seen, 0);
}

}  // namespace
