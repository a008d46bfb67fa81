// SPDX-License-Identifier: Apache-2.0
#pragma once
// An interpreter of complete programs, independent of the validator: it moves values instead of counting, and tries
// every order in which the ranks can go on (or random ones, for programs with too many states).

#include <p3d/schedule/schedule.hpp>

#include <string>

namespace p3d::test {

enum class Outcome { fine, deadlock, misuse, wrong_result };

struct Report {
  Outcome outcome = Outcome::fine;
  std::string why;
};

/// Follows every interleaving; the outcome of the worst. Only for small programs: (actions per rank)^ranks states.
Report interpret_all_orders(schedule::Program const& program, schedule::Execution execution,
                            schedule::Pass pass = schedule::Pass::training);

/// Follows one interleaving, drawn from `seed`.
Report interpret_one_order(schedule::Program const& program, schedule::Execution execution, unsigned seed,
                           schedule::Pass pass = schedule::Pass::training);

}  // namespace p3d::test
