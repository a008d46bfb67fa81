// SPDX-License-Identifier: Apache-2.0
// The validator's checks of order: what can be seen in the list of one rank alone. A slot belongs to one microbatch at
// a time, an action comes after those of its rank whose results it reads, and nothing that is still to be read is
// overwritten. No time passes here: what a rank waits for says the graph, and progress.cpp follows it.

#include "channels.hpp"
#include "validator.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/vocabulary.hpp>

#include <fmt/format.h>

#include <array>
#include <tuple>

namespace p3d::schedule {
namespace {

class OrderCheck {
public:
  OrderCheck(Program const& program, Pass pass)
      : program_(program),
        training_(pass == Pass::training),
        stages_of_(static_cast<std::size_t>(program.num_ranks), 0),
        owner_(static_cast<std::size_t>(program.num_stages)),
        unfinished_(static_cast<std::size_t>(program.num_stages), program.num_microbatches),
        lent_(static_cast<std::size_t>(program.num_stages), false),
        reductions_(static_cast<std::size_t>(program.num_stages), 0),
        done_(static_cast<std::size_t>(program.num_stages) * static_cast<std::size_t>(program.num_microbatches), 0),
        offloaded_(done_.size(), false) {
    for (int rank : program.stage_rank) ++stages_of_[static_cast<std::size_t>(rank)];
    for (std::size_t s = 0; s < owner_.size(); ++s) {
      if (int const lent = lender(program, static_cast<int>(s)); lent >= 0) {
        unfinished_[static_cast<std::size_t>(lent)] += program.num_microbatches;
        lent_[static_cast<std::size_t>(lent)] = true;
      }
      owner_[s].assign(static_cast<std::size_t>(program.num_slots[s]), -1);
    }
  }

  /// The first error of each rank.
  std::vector<Violation> check() {
    for (rank_ = 0; rank_ < program_.num_ranks && found_.size() < max_violations; ++rank_) {
      unreduced_ = stages_of_[static_cast<std::size_t>(rank_)];
      vocabulary_done_ = {};
      auto const& actions = program_.ranks[static_cast<std::size_t>(rank_)];
      for (index_ = 0; index_ < static_cast<int>(actions.size()); ++index_)
        if (!follow(actions[static_cast<std::size_t>(index_)])) break;
    }
    return std::move(found_);
  }

private:
  template <class... Args>
  bool error(fmt::format_string<Args...> text, Args&&... args) {
    found_.push_back({rank_, index_, fmt::format(text, std::forward<Args>(args)...)});
    return false;
  }

  OpSet& done(int stage, int microbatch) { return done_[cell(program_, stage, microbatch)]; }
  bool ran(Op op, int stage, int microbatch) { return (done(stage, microbatch) & bit(op)) != 0; }
  bool has_input_gradient(int stage, int microbatch) {
    return ran(Op::backward, stage, microbatch) || ran(Op::backward_input, stage, microbatch);
  }
  bool has_weight_gradient(int stage, int microbatch) {
    return ran(Op::backward, stage, microbatch) || ran(Op::backward_weight, stage, microbatch);
  }

  /// False: an error was found.
  bool follow(Action const& a) {
    if (a.op == Op::optimizer_step) return unreduced_ == 0 || error("STEP before every stage is reduced");
    if (reduces(a.op)) return reduce(a);
    if (is_vocabulary(a.op)) return vocabulary(a);
    if (!has_microbatch(a.op)) return true;  // check_weights() follows the others
    int& owner = owner_[static_cast<std::size_t>(a.stage)][static_cast<std::size_t>(a.slot)];
    if (a.op == Op::reload_activations) return reload(a, owner);
    if (takes_slot(program_, a)) {
      if (a.op == Op::forward && !takes_over(a)) return false;
      if (a.op == Op::forward && a.stage > 0 && !ran(Op::forward, a.stage - 1, a.microbatch))
        return error("runs before {}F{} on the same rank", a.stage - 1, a.microbatch);
      if (!is_free(a, owner)) return false;
      owner = a.microbatch;
    } else if (owner != a.microbatch) {
      return error("slot {} of stage {} {}, not microbatch {}", a.slot, a.stage,
                   owner < 0 ? std::string("is empty") : fmt::format("holds microbatch {}", owner), a.microbatch);
    }
    if (a.op == Op::offload_activations) return offload(a, owner);
    P3D_REQUIRE(is_compute(a.op) || is_message(a.op), "every operation has its rule of order");
    if (!(is_recv(a.op) || (is_send(a.op) ? send(a) : compute(a) && hands_over(a)))) return false;
    done(a.stage, a.microbatch) |= bit(a.op);
    if (makes_weight_gradient(a.op))
      for (int stage : {a.stage, lender(program_, a.stage)})
        if (stage >= 0) --unfinished_[static_cast<std::size_t>(stage)];
    return true;
  }

  /// Whether the gradient of a stage's input went on: as a message, or into all that comes before it in the row.
  bool gradient_passed_on(int stage, int microbatch) {
    bool passed_on = !input_is_remote(program_, stage) || ran(Op::send_gradient, stage, microbatch);
    for (int s = stage; input_is_local(program_, s); --s)
      passed_on = passed_on && has_input_gradient(s - 1, microbatch);
    return passed_on;
  }
  /// In a program without backwards: whether its output did.
  bool output_passed_on(int stage, int microbatch) {
    bool passed_on = !output_is_remote(program_, stage) || ran(Op::send_activation, stage, microbatch);
    for (int s = stage; output_is_local(program_, s); ++s) passed_on = passed_on && ran(Op::forward, s + 1, microbatch);
    return passed_on;
  }

  /// Whether the last user of a slot is finished.
  bool is_free(Action const& a, int old) {
    if (old < 0) return true;
    bool finished = ran(Op::forward, a.stage, old) && output_passed_on(a.stage, old);
    if (training_)
      finished =
          has_input_gradient(a.stage, old) && has_weight_gradient(a.stage, old) && gradient_passed_on(a.stage, old);
    return finished || error("takes slot {} of stage {} while microbatch {} still needs it", a.slot, a.stage, old);
  }

  bool is_offloaded(int stage, int microbatch) const { return offloaded_[cell(program_, stage, microbatch)]; }

  /// The slot is another microbatch's from now on.
  bool offload(Action const& a, int& owner) {
    if (!ran(Op::forward, a.stage, a.microbatch)) return error("runs before {}F{}", a.stage, a.microbatch);
    if (has_weight_gradient(a.stage, a.microbatch) && gradient_passed_on(a.stage, a.microbatch))
      return error("nothing needs these activations any more");
    if (ran(Op::recv_gradient, a.stage, a.microbatch) && !has_input_gradient(a.stage, a.microbatch))
      return error("the gradient of its output is on its way into the slot");
    for (auto [remote, made, sent] :
         {std::tuple(output_is_remote(program_, a.stage), true, Op::send_activation),
          std::tuple(input_is_remote(program_, a.stage), has_input_gradient(a.stage, a.microbatch), Op::send_gradient)})
      if (remote && made && !ran(sent, a.stage, a.microbatch))
        return error("runs before {}", to_string({sent, a.stage, a.microbatch}));
    offloaded_[cell(program_, a.stage, a.microbatch)] = true;
    owner = -1;
    return true;
  }
  bool reload(Action const& a, int& owner) {
    if (!is_offloaded(a.stage, a.microbatch))
      return error("the activations of microbatch {} on stage {} are not offloaded", a.microbatch, a.stage);
    if (!is_free(a, owner)) return false;
    offloaded_[cell(program_, a.stage, a.microbatch)] = false;
    owner = a.microbatch;
    return true;
  }

  bool send(Action const& a) {
    bool const gradient = a.op == Op::send_gradient;
    bool const made = gradient ? has_input_gradient(a.stage, a.microbatch) : ran(Op::forward, a.stage, a.microbatch);
    return made || error("sends before {}{}{}", a.stage, gradient ? "B" : "F", a.microbatch);
  }

  bool compute(Action const& a) {
    int offloaded = -1;
    for_slots_in_use(program_, a, [&](int stage) {
      if (is_offloaded(stage, a.microbatch)) offloaded = stage;
    });
    if (offloaded >= 0)
      return error("uses slots of stage {}, whose activations are offloaded: {} has to come first", offloaded,
                   to_string({Op::reload_activations, offloaded, a.microbatch}));
    if (a.op == Op::forward)
      return !input_is_remote(program_, a.stage) || ran(Op::recv_activation, a.stage, a.microbatch) ||
             error("needs its input before its receive is posted");
    if (a.op == Op::backward_weight) return has_input_gradient(a.stage, a.microbatch) || error("W runs before I");
    if (!takes_over(a)) return false;
    if (!ran(Op::forward, a.stage, a.microbatch)) return error("runs before {}F{}", a.stage, a.microbatch);
    if (output_is_remote(program_, a.stage) && !ran(Op::recv_gradient, a.stage, a.microbatch))
      return error("needs its output's gradient before its receive is posted");
    if (output_is_local(program_, a.stage) && !has_input_gradient(a.stage + 1, a.microbatch))
      return error("runs before {}B{} on the same rank", a.stage + 1, a.microbatch);
    return true;
  }

  // --- vocabulary.hpp: buffers are used in turn, and each is read before it is written again.

  int& vocabulary_done(Op op) { return vocabulary_done_[static_cast<std::size_t>(op)]; }
  bool vocabulary(Action const& a) {
    int const m = a.microbatch, last = program_.num_stages - 1;
    if (a.op == Op::embed_forward) {
      int const before = m - vocabulary_slots.embed;
      if (before >= 0 && rank_of(program_, 0) == rank_ && !ran(Op::forward, 0, before))
        return error("overwrites what 0F{} has not read", before);
    }
    if (a.op == Op::head_backward) {
      if (vocabulary_done(Op::head_forward) <= m) return error("T runs before S");
      int const before = m - vocabulary_slots.head;
      if (training_ && before >= 0 && rank_of(program_, last) == rank_ && !has_input_gradient(last, before))
        return error("overwrites what {}B{} has not read", last, before);
    }
    vocabulary_done(a.op) = m + 1;
    return true;
  }
  /// F of the first stage, and B or I of the last one, read what all ranks have made of the microbatch.
  bool takes_over(Action const& a) {
    if (!program_.divides_vocabulary) return true;
    if (a.op == Op::forward && a.stage == 0 && vocabulary_done(Op::embed_forward) <= a.microbatch)
      return error("runs before the rank's part of the embedding, E{}", a.microbatch);
    if (makes_input_gradient(a.op) && a.stage + 1 == program_.num_stages &&
        vocabulary_done(Op::head_backward) <= a.microbatch)
      return error("runs before the rank's part of its gradient, T{}", a.microbatch);
    return true;
  }
  /// F of the last stage, and B or I of the first one, fill a buffer that all ranks read.
  bool hands_over(Action const& a) {
    if (!program_.divides_vocabulary) return true;
    if (a.op == Op::forward && a.stage + 1 == program_.num_stages &&
        a.microbatch - vocabulary_done(Op::head_backward) >= vocabulary_slots.head)
      return error("overwrites what T{} has not read", a.microbatch - vocabulary_slots.head);
    if (makes_input_gradient(a.op) && a.stage == 0 &&
        a.microbatch - vocabulary_done(Op::embed_backward) >= vocabulary_slots.gradient)
      return error("overwrites what G{} has not read", a.microbatch - vocabulary_slots.gradient);
    return true;
  }

  /// A stage that the rank's STEP updates has all of its gradients; with several workers, those of one more of them.
  bool reduce(Action const& a) {
    auto const at = static_cast<std::size_t>(a.stage);
    std::int64_t const microbatches = program_.num_microbatches, workers = program_.workers,
                       reduced = ++reductions_[at];
    std::int64_t const all = microbatches * (lent_[at] ? 2 : 1);
    bool finished = unfinished_[at] == 0, ends = (all - unfinished_[at]) * workers == all * reduced;
    if (program_.divides_vocabulary && first_stage_of(program_, rank_) == a.stage)
      for (Op op : {Op::head_backward, Op::embed_backward}) {
        finished = finished && vocabulary_done(op) == microbatches;
        ends = ends && vocabulary_done(op) * workers == microbatches * reduced;
      }
    if (finished) --unreduced_;
    if (workers > 1 && !ends)
      return error("reduces stage {}, and not behind the last gradient of worker {} of {}", a.stage, reduced, workers);
    if (!finished && workers == 1 && a.op == Op::reduce_gradients &&
        program_.ranks[static_cast<std::size_t>(rank_)].back().op == Op::optimizer_step)
      return error("reduces stage {} before the last of its backward actions", a.stage);
    return true;
  }

  Program const& program_;
  bool training_;
  std::vector<int> stages_of_;           ///< how many stages each rank has
  std::vector<std::vector<int>> owner_;  ///< the microbatch that has each slot of each stage, -1: none
  std::vector<int> unfinished_;          ///< gradients of microbatches that are still to be added, of each stage
  std::vector<bool> lent_;               ///< another stage adds to its gradients
  std::vector<int> reductions_;          ///< numbers of reductions that ran, of each stage
  std::vector<OpSet> done_;              ///< the actions of each cell that ran
  std::vector<bool> offloaded_;          ///< cells whose activations are offloaded
  // The rank that is followed:
  int rank_ = 0, index_ = 0;
  int unreduced_ = 0;                           ///< stages
  std::array<int, num_ops> vocabulary_done_{};  ///< number of E, S, T, G that ran, by operation
  std::vector<Violation> found_;
};

}  // namespace

std::vector<Violation> check_order(Program const& program, Pass pass) { return OrderCheck(program, pass).check(); }

}  // namespace p3d::schedule
