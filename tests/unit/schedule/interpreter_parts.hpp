// SPDX-License-Identifier: Apache-2.0
#pragma once
// Two parts of the interpreter: the weights of every stage, and the vocabulary that is divided over the ranks. Each is
// written from the definitions in weights.hpp and vocabulary.hpp, and from nothing that the validator has.

#include "interpreter.hpp"

#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace p3d::test {

/// What the interpreter throws where a program does something wrong.
struct Error {
  Outcome outcome;
  std::string why;
};

/// The versions of the weights of every stage and where they are, and what was added to their gradients.
class InterpretedWeights {
public:
  explicit InterpretedWeights(schedule::Program const& program);

  /// F, B, I, W, E, S, T or G: it reads a version of its stage's weights, and maybe of those of stage 0 too.
  void compute(schedule::Action const& a);
  /// GATHER, RELEASE, OFFLOAD or RELOAD.
  void move(schedule::Action const& a);
  /// REDUCE or REDUCE_SCATTER.
  void reduce(schedule::Action const& a);
  /// The STEP of one stage, at a place in the list of its rank.
  void step_stage(schedule::Action const& a, std::size_t place);
  /// The STEP of a rank.
  void step_rank(int rank);
  /// The program may be run again, and every gradient was used.
  void check_end(bool forward_only) const;

private:
  enum class Home { resident, sharded, offloaded };
  /// What is added to a gradient: by B or W of the stage, of the last stage to shared weights, by T, by G.
  enum Source { own, tied, head, embedding };
  using Addends = std::multiset<std::pair<Source, int>>;
  struct Stage {
    Home home = Home::resident;
    bool steps_alone = false;
    int newest = 0;
    std::set<int> whole, elsewhere;  ///< versions
    Addends waiting, reduced, used;  ///< not reduced yet; reduced and not used for an update; used
    std::set<schedule::Op> reductions;
  };
  Stage& at(int stage) { return stages_[static_cast<std::size_t>(stage)]; }
  int home_rank(int stage) const { return program_->stage_rank[static_cast<std::size_t>(stage)]; }
  void read(int stage, int version);
  bool newest_is_home(Stage const& s) const;
  bool complete(int stage, Addends const& sum) const;

  schedule::Program const* program_;
  std::vector<Stage> stages_;
  std::map<std::pair<int, int>, int> version_of_;  ///< by (stage, microbatch): that of its F
};

/// The buffers of E, of S and T, and of G on every rank, and the exchanges that fill them.
class InterpretedVocabulary {
public:
  InterpretedVocabulary(schedule::Program const& program, bool forward_only);

  /// E, S, T or G. False: it must wait.
  bool act(int rank, schedule::Action const& a);
  /// Before F of the first stage, and B or I of the last: takes what the ranks share. False: it must wait.
  bool takes(int rank, schedule::Action const& a);
  /// After F of the last stage, and B or I of the first: gives to all ranks.
  void gives(int rank, schedule::Action const& a);
  /// False: STEP must wait.
  bool over() const;
  void check_end() const;

private:
  enum Kind { sum, output, parts, input_gradient, gradient, kinds };
  static constexpr int buffers = 2;  ///< of each kind, used in turn
  /// A buffer, which microbatch's data is in it, and whether somebody on the rank has yet to read them.
  struct Buffer {
    int holds = -1;
    bool unread = false;
  };
  struct Rank {
    std::array<int, kinds> calls{};  ///< the exchanges that the rank has called for, in the order of the microbatches
    int embeds = 0, heads = 0, head_gradients = 0, embed_gradients = 0;
    std::array<Buffer, buffers> embedded, outputs, logits, input_gradients, gradients;
  };
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  bool has_first(int rank) const { return program_->stage_rank.front() == rank; }
  bool has_last(int rank) const { return program_->stage_rank.back() == rank; }
  void call(int rank, Kind kind, int microbatch);
  void ask(int rank, Kind kind, int microbatch);
  /// An exchange ends when all ranks have called for it; those before the first microbatch have.
  bool ended(Kind kind, int microbatch) const;
  static void next(int& count, int microbatch);

  schedule::Program const* program_;
  bool forward_only_;
  std::vector<Rank> ranks_;
};

}  // namespace p3d::test
