// SPDX-License-Identifier: Apache-2.0
#pragma once
// The comparison of the validator with the interpreter on mutated programs.

#include "interpreter.hpp"

#include <p3d/schedule/valid_program.hpp>

#include <gtest/gtest.h>

#include <iostream>

namespace p3d::test {

/// The outcomes of mutants, by the interpreter, and how many of them the validator accepted.
struct MutantCount {
  int mutants = 0, accepted = 0, deadlocks = 0, misuses = 0, wrong_results = 0;
};

/// Expects that the validator accepts a program exactly when the interpreter found nothing wrong with it (`truth`).
inline void compare(schedule::Program const& program, schedule::Execution how, Report const& truth, MutantCount& count,
                    schedule::Pass pass = schedule::Pass::training) {
  auto const found = validate(program, how, pass);
  ++count.mutants;
  count.accepted += found.empty();
  count.deadlocks += truth.outcome == Outcome::deadlock;
  count.misuses += truth.outcome == Outcome::misuse;
  count.wrong_results += truth.outcome == Outcome::wrong_result;
  ASSERT_EQ(found.empty(), truth.outcome == Outcome::fine)
      << "interpreter: " << truth.why << "\nvalidator: " << (found.empty() ? "valid" : found.front().message)
      << "\nrendezvous " << how.rendezvous << ", in flight " << how.sends_in_flight << ", pairs " << how.pairs << '\n'
      << to_text(program);
}

/// Prints the counts, and expects outcomes of every kind that mutants of any actions have: the comparison means
/// something only if they are met.
inline void expect_outcomes(MutantCount const& c) {
  std::cout << c.mutants << " mutants: " << c.accepted << " accepted, " << c.deadlocks << " deadlocks, " << c.misuses
            << " misuses, " << c.wrong_results << " wrong results\n";
  EXPECT_GT(c.accepted, c.mutants / 20);
  EXPECT_GT(c.misuses, c.mutants / 20);
  EXPECT_GT(c.wrong_results, c.mutants / 100);
}

}  // namespace p3d::test
