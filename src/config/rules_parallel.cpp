// SPDX-License-Identifier: Apache-2.0
#include "config/divide.hpp"
#include "config/limits.hpp"
#include "config/rules.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace p3d::config {

namespace {

std::string start(std::vector<std::int64_t> const& ranks) {
  return fmt::format("start {0} {2} (srun -n {1} p3d ... or mpiexec -n {1} p3d ...)", one_of(ranks), ranks.back(),
                     ranks.back() == 1 ? "rank" : "ranks");
}

/// Those of the axes that were written.
std::vector<std::string_view> given(Check const& c, std::vector<Axis> const& axes) {
  std::vector<std::string_view> out;
  for (auto a : axes) {
    if (c.sources.given(row_of(a).key)) out.emplace_back(row_of(a).key);
  }
  return out;
}

/// The dense axes as messages show them: first the one that follows from the others; no axis that p3d does not train
/// with yet, unless it was set.
std::vector<Axis> shown(Check const& c, bool with_dp) {
  std::vector<Axis> out;
  if (with_dp) out.push_back(Axis::dp);
  for (auto a : dense_axes.minus({Axis::dp}).list()) {
    if (row_of(a).trained || c.sources.given(row_of(a).key)) out.push_back(a);
  }
  return out;
}

/// "dp x tp x pp", and with sizes "dp 2 x tp 2 x pp 1".
std::string factors(std::vector<Axis> const& axes, PerAxis const* sizes = nullptr) {
  std::vector<std::string> parts;
  for (auto a : axes) parts.push_back(sizes ? fmt::format("{} {}", name(a), (*sizes)[a]) : name(a));
  return base::join(parts, " x ");
}

std::string smaller_groups(Check const& c, std::int64_t below) {
  auto const axes = shown(c, false);
  std::vector<std::string> keys;
  for (auto a : axes) keys.emplace_back(row_of(a).key);
  return fmt::format("choose {} so that {} divides {}: for example {}", base::join(keys, " and "), factors(axes),
                     c.num_ranks, one_of(nearest_divisors(below, c.num_ranks)));
}

void check_mesh(Check const& c) {
  auto const others = dense_axes.minus({Axis::dp});
  if (!c.known(axis_keys(others))) return;
  auto const& p = c.config.parallel;
  auto const below = p.product(others);
  if (!c.known({"parallel.dp"})) {
    if (c.sources.lost("parallel.dp")) return;  // else it would follow from the others, but they do not let it
    auto const axes = shown(c, false);
    c.fault(given(c, axes), fmt::format("a number of ranks divisible by {}; the quotient is dp", factors(axes)),
            fmt::format("{} = {}, but the run has {}", factors(axes, &p), below, base::counted(c.num_ranks, "rank")),
            start(nearest_multiples(c.num_ranks, below)) + ", or " + smaller_groups(c, below));
    return;
  }
  auto const axes = shown(c, true);
  auto const product = p.product(dense_axes);
  auto const product_text = fmt::format("{} = {}", factors(axes, &p), base::counted(product, "rank"));
  auto const where = given(c, axes);
  if (product > std::numeric_limits<int>::max()) {
    c.fault(where, "at most 2147483647 ranks", product_text, "choose smaller sizes");
  } else if (c.num_ranks > 0 && product != c.num_ranks) {
    auto fix = start({product});
    if (c.num_ranks % below == 0) {
      fix += fmt::format(", or set parallel.dp to {} (without parallel.dp it follows the number of ranks)",
                         c.num_ranks / below);
    } else {
      fix += ", or remove parallel.dp and " + smaller_groups(c, below);
    }
    c.fault(where, factors(axes) + " equal to the number of ranks",
            fmt::format("{}, but the run has {}", product_text, c.num_ranks), fix);
  }
}

/// Axes of one rank have no place in the mesh: any order may leave them out.
void check_order(Check const& c) {
  if (!c.known({"parallel.order"})) return;
  auto const& p = c.config.parallel;
  auto const order = read_order(p.order).axes;
  for (auto a : dense_axes.list()) {
    if (!c.known({row_of(a).key}) || p[a] == 1 || std::find(order.begin(), order.end(), a) != order.end()) continue;
    c.fault({"parallel.order", row_of(a).key}, "an order of the mesh that names every axis with more than one rank",
            fmt::format("\"{}\" without {}, which has {} ranks", p.order, name(a), p[a]),
            fmt::format("set parallel.order to \"{}\"", to_text(complete_order(order))));
    return;
  }
}

void check_batch(Check const& c) {
  if (!c.known({"batch.micro", "parallel.dp", "batch.global"})) return;
  auto const& b = c.config.batch;
  std::int64_t const dp = c.config.parallel.dp;
  std::int64_t const step = b.micro * dp;
  if (c.sources.given("batch.global") && b.global % step != 0) {
    auto fix = "set batch.global to " + one_of(nearest_multiples(b.global, step));
    if (b.global % dp == 0 && b.global / dp <= limits::axis * limits::axis) {
      fix += ", or batch.micro to " + one_of(nearest_divisors(b.micro, b.global / dp));
    }
    c.fault({"batch.global", "batch.micro", "parallel.dp"}, "batch.global divisible by batch.micro x parallel.dp",
            fmt::format("global {}, micro {} x dp {} = {}: remainder {}", b.global, b.micro, dp, step, b.global % step),
            fix);
  } else if (c.known({"batch.microbatches"}) && b.global != step * b.microbatches) {
    auto fix = fmt::format("remove one of the two, or set batch.global to {}", step * b.microbatches);
    if (b.global % step == 0) fix += fmt::format(" or batch.microbatches to {}", b.global / step);
    c.fault({"batch.global", "batch.microbatches", "batch.micro", "parallel.dp"},
            "batch.global equal to micro x microbatches x dp, since both are given",
            fmt::format("global {}, but micro {} x microbatches {} x dp {} = {}", b.global, b.micro, b.microbatches, dp,
                        step * b.microbatches),
            fix);
  } else if (c.known({"batch.microbatches"}) && b.microbatches > limits::axis) {
    c.fault({"batch.global", "batch.micro", "parallel.dp"}, fmt::format("at most {} microbatches", limits::axis),
            fmt::format("global {} / (micro {} x dp {}) = {}", b.global, b.micro, dp, b.microbatches),
            "choose a smaller batch.global");
  }
}

void check_all_reduce(Check const& c) {
  if (!c.known({"comm.allreduce", "run.deterministic"})) return;
  if (c.config.comm.allreduce != AllReduce::mpi || !c.config.run.deterministic) return;
  c.fault({"comm.allreduce", "run.deterministic"},
          "an all-reduce with a fixed order of summation, as run.deterministic asks",
          "allreduce \"mpi\": the order is the library's affair",
          "set run.deterministic to false, or comm.allreduce to \"auto\" or any other value");
}

}  // namespace

void check_parallel(Check const& check) {
  check_mesh(check);
  check_order(check);
  check_batch(check);
  check_all_reduce(check);
}

}  // namespace p3d::config
