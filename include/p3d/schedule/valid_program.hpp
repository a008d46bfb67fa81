// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one door to the executor: a program that was proved to run to its end.

#include <p3d/schedule/p2p.hpp>
#include <p3d/schedule/schedule.hpp>

#include <cstdint>

namespace p3d::schedule {

/// A complete program together with the proof. There is no other way to make one than to validate it, and the executor
/// takes nothing else, so that no program runs that was not proved.
class ValidProgram {
public:
  /// Throws base::Error (bad_input) as require_valid() does, and where P2p::ring is asked for and the program has no
  /// rounds. `execution`: the rules that it is proved for.
  ValidProgram(Program program, Execution execution, Pass pass = Pass::training);

  Program const& program() const { return program_; }
  operator Program const&() const { return program_; }
  Program const* operator->() const { return &program_; }
  Execution execution() const { return execution_; }
  Pass pass() const { return pass_; }
  /// The rounds of each pipeline rank with P2p::ring; else none.
  Rounds const& rounds() const { return rounds_; }
  /// Numbers proofs: copies have the same one, and no other program has it, whatever its address.
  std::uint64_t number() const { return number_; }

private:
  Program program_;
  Execution execution_;
  Pass pass_;
  Rounds rounds_;
  std::uint64_t number_;
};

/// The program that runs the first `microbatches` forwards of `training` and nothing else (evaluation, sampling). The
/// proof of `training` says nothing about it: without the backwards a slot is free earlier, so that ranks can wait for
/// each other in a circle where training cannot. It is therefore proved by itself: in the order of training's forwards
/// if that can run with no more slots than training has, otherwise in the order of forward_by_microbatch().
ValidProgram forward_only(ValidProgram const& training, int microbatches);

/// All forwards, one microbatch after the other through all of a rank's stages, with one slot per stage. It runs to its
/// end for every placement and every execution: of the forwards that have not run, take the first in the order
/// (microbatch, stage). Its rank has nothing else left to do before it, its input has been sent, and what its slot sent
/// last has been asked for, as both belong to forwards that come earlier in that order.
Program forward_by_microbatch(std::vector<int> const& stage_rank, int num_ranks, int microbatches,
                              bool divides_vocabulary = false);

}  // namespace p3d::schedule
