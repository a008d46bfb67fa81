// SPDX-License-Identifier: Apache-2.0
#include "config/divide.hpp"
#include "config/limits.hpp"
#include "config/rules.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <limits>
#include <numeric>

namespace p3d::config {

namespace {

std::string start(std::vector<std::int64_t> const& ranks) {
  return fmt::format("start {0} {2} (srun -n {1} p3d ... or mpiexec -n {1} p3d ...)", one_of(ranks), ranks.back(),
                     ranks.back() == 1 ? "rank" : "ranks");
}

/// Those of the keys that were written.
std::vector<std::string_view> given(Check const& c, std::initializer_list<std::string_view> keys) {
  std::vector<std::string_view> out;
  for (auto key : keys) {
    if (c.sources.given(key)) out.push_back(key);
  }
  return out;
}

std::string smaller_groups(std::int64_t below, int num_ranks) {
  return fmt::format("choose parallel.tp and parallel.pp so that tp x pp divides {}: for example {}", num_ranks,
                     one_of(nearest_divisors(below, num_ranks)));
}

void check_mesh(Check const& c) {
  if (!c.known({"parallel.tp", "parallel.pp"})) return;
  auto const& p = c.config.parallel;
  std::int64_t const below = std::int64_t{p.tp} * p.pp;
  if (!c.known({"parallel.dp"})) {
    if (c.sources.lost("parallel.dp")) return;  // else it would follow from the others, but they do not let it
    c.fault(
        given(c, {"parallel.tp", "parallel.pp"}), "a number of ranks divisible by tp x pp; the quotient is dp",
        fmt::format("tp {} x pp {} = {}, but the run has {}", p.tp, p.pp, below, base::counted(c.num_ranks, "rank")),
        start(nearest_multiples(c.num_ranks, below)) + ", or " + smaller_groups(below, c.num_ranks));
    return;
  }
  std::int64_t const product = p.dp * below;
  auto const product_text = fmt::format("dp {} x tp {} x pp {} = {}", p.dp, p.tp, p.pp, base::counted(product, "rank"));
  auto const where = given(c, {"parallel.dp", "parallel.tp", "parallel.pp"});
  if (product > std::numeric_limits<int>::max()) {
    c.fault(where, "at most 2147483647 ranks", product_text, "choose smaller sizes");
  } else if (c.num_ranks > 0 && product != c.num_ranks) {
    auto fix = start({product});
    if (c.num_ranks % below == 0) {
      fix += fmt::format(", or set parallel.dp to {} (without parallel.dp it follows the number of ranks)",
                         c.num_ranks / below);
    } else {
      fix += ", or remove parallel.dp and " + smaller_groups(below, c.num_ranks);
    }
    c.fault(where, "dp x tp x pp equal to the number of ranks",
            fmt::format("{}, but the run has {}", product_text, c.num_ranks), fix);
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
  check_batch(check);
  check_all_reduce(check);
}

}  // namespace p3d::config
