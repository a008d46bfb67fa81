// SPDX-License-Identifier: Apache-2.0
// The validator's second half: runs the program with counters in place of data. Every wait of the executor is for a
// count that only grows (sends started, receives posted), so the outcome does not depend on which rank runs first and
// each rank may run until it blocks: each action is tried once, and once more each time what it waits for has happened.

#include "channels.hpp"
#include "validator.hpp"

#include <p3d/schedule/query.hpp>
#include <p3d/schedule/vocabulary.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <tuple>

namespace p3d::schedule {
namespace {

/// One end of a message, as posted.
struct PostedEnd {
  int stage;
  int microbatch;
  int index;  ///< in the list of its rank
};

/// Counters of a channel and the messages of the side that is ahead.
struct ChannelState {
  int sent = 0;
  int received = 0;
  std::deque<PostedEnd> ahead;
};

/// A slot: who has it, and which messages of its channels are its own (-1: none).
struct SlotState {
  int owner = -1;
  int activation_in = -1, activation_out = -1, gradient_in = -1, gradient_out = -1;
};

/// What a blocked rank waits for: `count` sends started (or receives posted) on a channel; or that all ranks take part
/// in an exchange of microbatch `count`.
struct RankWait {
  int channel = -1;
  bool for_sends = false;
  int count = 0;
  int exchange = -1;
};

class ProgramRun {
public:
  ProgramRun(Program const& program, Execution execution, Pass pass)
      : program_(program),
        execution_(execution),
        training_(pass == Pass::training),
        channels_(program),
        lines_(channels_.all.size()),
        waits_(program.ranks.size()),
        next_(program.ranks.size(), 0),
        started_(program.ranks.size(), false),
        outgoing_(program.ranks.size()),
        slots_(static_cast<std::size_t>(program.num_stages)),
        unfinished_(static_cast<std::size_t>(program.num_stages), program.num_microbatches),
        unreduced_(program.ranks.size(), 0),
        done_(static_cast<std::size_t>(program.num_stages) * static_cast<std::size_t>(program.num_microbatches), 0),
        away_(done_.size(), false) {
    for (std::size_t c = 0; c < channels_.all.size(); ++c)
      outgoing_[static_cast<std::size_t>(channels_.all[c].source)].push_back(static_cast<int>(c));
    if (program.divides_vocabulary) {
      for (auto& ranks : joined_) ranks.assign(static_cast<std::size_t>(program.num_microbatches), 0);
      for (auto& done : vocabulary_done_) done.assign(program.ranks.size(), 0);
    }
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (int const lent = lender(program, static_cast<int>(s)); lent >= 0)
        unfinished_[static_cast<std::size_t>(lent)] += program.num_microbatches;
      slots_[s].resize(static_cast<std::size_t>(program.num_slots[s]));
      ++unreduced_[static_cast<std::size_t>(program.stage_rank[s])];
    }
  }

  std::vector<Violation> check() {
    for (int rank = program_.num_ranks - 1; rank >= 0; --rank) ready_.push_back(rank);
    ask_for_broadcasts();
    while (!ready_.empty() && found_.empty()) {
      int const rank = ready_.back();
      ready_.pop_back();
      auto const r = static_cast<std::size_t>(rank);
      while (next_[r] < program_.ranks[r].size() && found_.empty() && execute(rank)) ++next_[r];
    }
    if (found_.empty()) deadlock();
    return found_;
  }

private:
  template <class... Args>
  bool error(int rank, int index, fmt::format_string<Args...> text, Args&&... args) {
    found_.push_back({rank, index, fmt::format(text, std::forward<Args>(args)...)});
    return false;
  }
  template <class... Args>
  bool error_here(int rank, fmt::format_string<Args...> text, Args&&... args) {
    return error(rank, static_cast<int>(next_[static_cast<std::size_t>(rank)]), text, std::forward<Args>(args)...);
  }

  ChannelState& line(int channel) { return lines_[static_cast<std::size_t>(channel)]; }
  unsigned char& done(int stage, int microbatch) { return done_[cell(program_, stage, microbatch)]; }
  bool has_input_gradient(int stage, int microbatch) {
    return (done(stage, microbatch) & (bit(Op::backward) | bit(Op::backward_input))) != 0;
  }
  bool has_weight_gradient(int stage, int microbatch) {
    return (done(stage, microbatch) & (bit(Op::backward) | bit(Op::backward_weight))) != 0;
  }

  /// True when the count is reached; otherwise the rank sleeps on it.
  bool reached(int rank, RankWait wait) {
    ChannelState const& l = line(wait.channel);
    bool const yes = (wait.for_sends ? l.sent : l.received) >= wait.count;
    waits_[static_cast<std::size_t>(rank)] = yes ? RankWait{} : wait;
    return yes;
  }
  bool send_complete(int rank, int channel, int number) {
    return !execution_.rendezvous || number < 0 || reached(rank, {channel, false, number + 1});
  }
  void wake(int rank, int channel, bool sends) {
    RankWait& wait = waits_[static_cast<std::size_t>(rank)];
    if (wait.channel != channel || wait.for_sends != sends) return;
    if ((sends ? line(channel).sent : line(channel).received) < wait.count) return;
    wait = {};
    ready_.push_back(rank);
  }

  /// Posts one end of a message and matches it with the other end if that is there. False: they do not belong together.
  bool post(int rank, Action const& a, int channel) {
    ChannelState& l = line(channel);
    bool const sends = is_send(a.op);
    bool const match = sends ? l.received > l.sent : l.sent > l.received;
    ++(sends ? l.sent : l.received);
    int const index = static_cast<int>(next_[static_cast<std::size_t>(rank)]);
    Channel const& c = channels_.all[static_cast<std::size_t>(channel)];
    if (match) {
      PostedEnd const other = l.ahead.front();
      l.ahead.pop_front();
      if (other.stage != peer_stage(a) || other.microbatch != a.microbatch) {
        Op const op = sends ? (c.gradient ? Op::recv_gradient : Op::recv_activation)
                            : (c.gradient ? Op::send_gradient : Op::send_activation);
        return error(rank, index, "message {} from rank {} to rank {}: {} meets {} (action {} of rank {})",
                     sends ? l.sent : l.received, c.source, c.destination, to_string(a),
                     to_string({op, other.stage, other.microbatch}), other.index, sends ? c.destination : c.source);
      }
    } else {
      l.ahead.push_back({a.stage, a.microbatch, index});
    }
    wake(sends ? c.destination : c.source, channel, sends);
    return true;
  }

  /// One action of a rank; false: it has to wait, or an error was found.
  bool execute(int rank) {
    auto const r = static_cast<std::size_t>(rank);
    Action const& a = program_.ranks[r][next_[r]];
    if (a.op == Op::optimizer_step) return step(rank);
    if (reduces(a.op)) return reduce(rank, a);
    if (is_vocabulary(a.op)) return vocabulary(rank, a);
    if (!has_microbatch(a.op)) return true;  // check_weights() follows the others, which wait for no other stage
    SlotState& slot = slots_[static_cast<std::size_t>(a.stage)][static_cast<std::size_t>(a.slot)];
    bool const takes = a.op == Op::recv_activation || (a.op == Op::forward && !input_is_remote(program_, a.stage));
    if (a.op == Op::reload_activations) return reload(rank, a, slot);
    if (takes) {
      if (a.op == Op::forward && !takes_over(rank, a)) return false;
      if (a.op == Op::forward && a.stage > 0 && !(done(a.stage - 1, a.microbatch) & bit(Op::forward)))
        return error_here(rank, "runs before {}F{} on the same rank", a.stage - 1, a.microbatch);
      if (!take(rank, a, slot)) return false;
    } else if (slot.owner != a.microbatch) {
      return error_here(rank, "slot {} of stage {} {}, not microbatch {}", a.slot, a.stage,
                        slot.owner < 0 ? std::string("is empty") : fmt::format("holds microbatch {}", slot.owner),
                        a.microbatch);
    }
    if (a.op == Op::offload_activations) return offload(rank, a, slot);
    if (!(is_message(a.op) ? message(rank, a, slot) : compute(rank, a, slot) && hands_over(rank, a))) return false;
    done(a.stage, a.microbatch) = static_cast<unsigned char>(done(a.stage, a.microbatch) | bit(a.op));
    if (makes_weight_gradient(a.op))
      for (int stage : {a.stage, lender(program_, a.stage)})
        if (stage >= 0) --unfinished_[static_cast<std::size_t>(stage)];
    return true;
  }

  /// Whether the gradient of a stage's input went on: as a message, or into all that comes before it in the row.
  bool gradient_passed_on(int stage, int microbatch) {
    bool passed_on = !input_is_remote(program_, stage) || (done(stage, microbatch) & bit(Op::send_gradient)) != 0;
    for (int s = stage; input_is_local(program_, s); --s)
      passed_on = passed_on && has_input_gradient(s - 1, microbatch);
    return passed_on;
  }

  /// Whether the last user of a slot is finished.
  bool is_free(int rank, Action const& a, SlotState const& slot) {
    int const old = slot.owner;
    if (old >= 0 && !training_) {
      bool passed_on = !output_is_remote(program_, a.stage) || slot.activation_out >= 0;
      for (int s = a.stage; output_is_local(program_, s); ++s)
        passed_on = passed_on && (done(s + 1, old) & bit(Op::forward)) != 0;
      if (!(done(a.stage, old) & bit(Op::forward)) || !passed_on)
        return error_here(rank, "takes slot {} of stage {} while microbatch {} still needs it", a.slot, a.stage, old);
    } else if (old >= 0) {
      if (!has_input_gradient(a.stage, old) || !has_weight_gradient(a.stage, old) || !gradient_passed_on(a.stage, old))
        return error_here(rank, "takes slot {} of stage {} while microbatch {} still needs it", a.slot, a.stage, old);
    }
    return true;
  }
  bool activation_sent(int rank, int stage, SlotState const& slot) {
    return send_complete(rank, channels_.activation_out[static_cast<std::size_t>(stage)], slot.activation_out);
  }
  bool gradient_sent(int rank, int stage, SlotState const& slot) {
    return send_complete(rank, channels_.gradient_out[static_cast<std::size_t>(stage)], slot.gradient_out);
  }

  /// Takes a slot: its last user must be finished, and the sends that read it complete.
  bool take(int rank, Action const& a, SlotState& slot) {
    if (!is_free(rank, a, slot) || !activation_sent(rank, a.stage, slot) || !gradient_sent(rank, a.stage, slot))
      return false;
    slot = SlotState{};
    slot.owner = a.microbatch;
    return true;
  }

  bool is_away(int stage, int microbatch) const { return away_[cell(program_, stage, microbatch)]; }

  /// The slot is another microbatch's from now on, when its sends are complete.
  bool offload(int rank, Action const& a, SlotState& slot) {
    auto const ran = [&](Op op) { return (done(a.stage, a.microbatch) & bit(op)) != 0; };
    if (!ran(Op::forward)) return error_here(rank, "runs before {}F{}", a.stage, a.microbatch);
    if (has_weight_gradient(a.stage, a.microbatch) && gradient_passed_on(a.stage, a.microbatch))
      return error_here(rank, "nothing needs these activations any more");
    if (slot.gradient_in >= 0 && !has_input_gradient(a.stage, a.microbatch))
      return error_here(rank, "the gradient of its output is on its way into the slot");
    for (auto [remote, made, sent] :
         {std::tuple(output_is_remote(program_, a.stage), true, Op::send_activation),
          std::tuple(input_is_remote(program_, a.stage), has_input_gradient(a.stage, a.microbatch), Op::send_gradient)})
      if (remote && made && !ran(sent))
        return error_here(rank, "runs before {}", to_string({sent, a.stage, a.microbatch}));
    away_[cell(program_, a.stage, a.microbatch)] = true;
    slot.owner = -1;
    return true;
  }
  bool reload(int rank, Action const& a, SlotState& slot) {
    if (!is_away(a.stage, a.microbatch))
      return error_here(rank, "the activations of microbatch {} on stage {} are not offloaded", a.microbatch, a.stage);
    if (!is_free(rank, a, slot)) return false;
    bool const with_gradients = has_input_gradient(a.stage, a.microbatch);
    if (with_gradients && !(activation_sent(rank, a.stage, slot) && gradient_sent(rank, a.stage, slot))) return false;
    away_[cell(program_, a.stage, a.microbatch)] = false;
    slot.owner = a.microbatch;
    slot.activation_in = slot.gradient_in = -1;
    return true;
  }

  bool message(int rank, Action const& a, SlotState& slot) {
    int const channel = channels_.of(a);
    ChannelState& l = line(channel);
    if (a.op == Op::recv_gradient && !gradient_sent(rank, a.stage, slot)) return false;
    if (is_recv(a.op)) {
      (a.op == Op::recv_activation ? slot.activation_in : slot.gradient_in) = l.received;
      return post(rank, a, channel);
    }
    bool const gradient = a.op == Op::send_gradient;
    if (gradient ? !has_input_gradient(a.stage, a.microbatch) : !(done(a.stage, a.microbatch) & bit(Op::forward)))
      return error_here(rank, "sends before {}{}{}", a.stage, gradient ? "B" : "F", a.microbatch);
    auto const r = static_cast<std::size_t>(rank);
    if (!started_[r]) {
      if (!send_complete(rank, channel, l.sent - std::max(1, execution_.sends_in_flight))) return false;
      (gradient ? slot.gradient_out : slot.activation_out) = l.sent;
      if (!post(rank, a, channel)) return false;
    }
    started_[r] = execution_.sends_in_flight == 0;
    if (started_[r] && !send_complete(rank, channel, gradient ? slot.gradient_out : slot.activation_out)) return false;
    started_[r] = false;
    return true;
  }

  bool compute(int rank, Action const& a, SlotState& slot) {
    auto const arrived = [&](int number, int out_channel, char const* what) {
      if (number < 0) return error_here(rank, "needs {} before its receive is posted", what);
      return reached(rank, {out_channel, true, number + 1});
    };
    int away = -1;
    for_slots_in_use(program_, a, [&](int stage) { away = is_away(stage, a.microbatch) ? stage : away; });
    if (away >= 0)
      return error_here(rank, "uses slots of stage {}, whose activations are offloaded: {} has to come first", away,
                        to_string({Op::reload_activations, away, a.microbatch}));
    if (makes_input_gradient(a.op) && !gradient_sent(rank, a.stage, slot)) return false;
    if (makes_input_gradient(a.op) && !takes_over(rank, a)) return false;
    if (a.op == Op::backward_input && !activation_sent(rank, a.stage, slot)) return false;
    if (a.op == Op::forward)
      return !input_is_remote(program_, a.stage) ||
             arrived(slot.activation_in, channels_.activation_out[static_cast<std::size_t>(a.stage) - 1], "its input");
    if (a.op == Op::backward_weight) {
      if (!has_input_gradient(a.stage, a.microbatch)) return error_here(rank, "W runs before I");
      return true;
    }
    if (!(done(a.stage, a.microbatch) & bit(Op::forward)))
      return error_here(rank, "runs before {}F{}", a.stage, a.microbatch);
    if (output_is_remote(program_, a.stage))
      return arrived(slot.gradient_in, channels_.gradient_out[static_cast<std::size_t>(a.stage) + 1],
                     "its output's gradient");
    if (output_is_local(program_, a.stage) && !has_input_gradient(a.stage + 1, a.microbatch))
      return error_here(rank, "runs before {}B{} on the same rank", a.stage + 1, a.microbatch);
    return true;
  }

  // --- vocabulary.hpp: an exchange is over when all ranks take part, in whatever way MPI carries it out.

  using Exchange = VocabularyExchange;
  static std::size_t number(Exchange e) { return static_cast<std::size_t>(e); }
  int& vocabulary_done(Op op, int rank) {
    return vocabulary_done_[static_cast<std::size_t>(op) - static_cast<std::size_t>(Op::embed_forward)]
                           [static_cast<std::size_t>(rank)];
  }
  void join(Exchange e, int microbatch) {
    if (microbatch >= program_.num_microbatches) return;
    int& ranks = joined_[number(e)][static_cast<std::size_t>(microbatch)];
    if (++ranks < program_.num_ranks) return;
    for (int rank = 0; rank < program_.num_ranks; ++rank) {
      auto& wait = waits_[static_cast<std::size_t>(rank)];
      if (wait.exchange != static_cast<int>(e) || wait.count != microbatch) continue;
      wait = {};
      ready_.push_back(rank);
    }
  }
  bool over(int rank, Exchange e, int microbatch) {
    if (microbatch < 0) return true;
    bool const yes = joined_[number(e)][static_cast<std::size_t>(microbatch)] == program_.num_ranks;
    waits_[static_cast<std::size_t>(rank)] = yes ? RankWait{} : RankWait{-1, false, microbatch, static_cast<int>(e)};
    return yes;
  }
  /// Ranks that are given something ask for it when the program begins.
  void ask_for_broadcasts() {
    if (!program_.divides_vocabulary) return;
    for (int rank = 0; rank < program_.num_ranks; ++rank) {
      for (int m = 0; m < vocabulary_slots.head && rank != rank_of(program_, program_.num_stages - 1); ++m)
        join(Exchange::output, m);
      for (int m = 0; m < vocabulary_slots.gradient && rank != rank_of(program_, 0); ++m) join(Exchange::gradient, m);
    }
  }

  bool vocabulary(int rank, Action const& a) {
    int const m = a.microbatch, last = program_.num_stages - 1;
    bool const first_here = rank_of(program_, 0) == rank, last_here = rank_of(program_, last) == rank;
    switch (a.op) {
      case Op::embed_forward: {
        int const before = m - vocabulary_slots.embed;
        if (before >= 0 && first_here && !(done(0, before) & bit(Op::forward)))
          return error_here(rank, "overwrites what 0F{} has not read", before);
        if (!over(rank, Exchange::sum, before)) return false;
        join(Exchange::sum, m);
        break;
      }
      case Op::head_forward:
        if (!over(rank, Exchange::output, m)) return false;
        join(Exchange::parts, m);
        break;
      case Op::head_backward: {
        if (vocabulary_done(Op::head_forward, rank) <= m) return error_here(rank, "T runs before S");
        int const before = m - vocabulary_slots.head;
        if (training_ && before >= 0 && last_here && !has_input_gradient(last, before))
          return error_here(rank, "overwrites what {}B{} has not read", last, before);
        if (!over(rank, Exchange::parts, m) || (training_ && !over(rank, Exchange::input_gradient, before)))
          return false;
        if (training_) join(Exchange::input_gradient, m);
        if (!last_here) join(Exchange::output, m + vocabulary_slots.head);
        break;
      }
      default:
        if (!over(rank, Exchange::gradient, m)) return false;
        if (!first_here) join(Exchange::gradient, m + vocabulary_slots.gradient);
    }
    vocabulary_done(a.op, rank) = m + 1;
    return true;
  }

  /// What a stage's action takes from the ranks: F of the first stage, B or I of the last.
  bool takes_over(int rank, Action const& a) {
    if (!program_.divides_vocabulary) return true;
    if (a.op == Op::forward && a.stage == 0) {
      if (vocabulary_done(Op::embed_forward, rank) <= a.microbatch)
        return error_here(rank, "runs before the rank's part of the embedding, E{}", a.microbatch);
      return over(rank, Exchange::sum, a.microbatch);
    }
    if (!makes_input_gradient(a.op) || a.stage + 1 < program_.num_stages) return true;
    if (vocabulary_done(Op::head_backward, rank) <= a.microbatch)
      return error_here(rank, "runs before the rank's part of its gradient, T{}", a.microbatch);
    return over(rank, Exchange::input_gradient, a.microbatch);
  }
  /// What it gives them: F of the last stage, B or I of the first.
  bool hands_over(int rank, Action const& a) {
    if (!program_.divides_vocabulary) return true;
    if (a.op == Op::forward && a.stage + 1 == program_.num_stages) {
      if (a.microbatch - vocabulary_done(Op::head_backward, rank) >= vocabulary_slots.head)
        return error_here(rank, "overwrites what T{} has not read", a.microbatch - vocabulary_slots.head);
      join(Exchange::output, a.microbatch);
    }
    if (makes_input_gradient(a.op) && a.stage == 0) {
      if (a.microbatch - vocabulary_done(Op::embed_backward, rank) >= vocabulary_slots.gradient)
        return error_here(rank, "overwrites what G{} has not read", a.microbatch - vocabulary_slots.gradient);
      join(Exchange::gradient, a.microbatch);
    }
    return true;
  }

  /// Of a stage that the rank's STEP updates.
  bool reduce(int rank, Action const& a) {
    bool finished = unfinished_[static_cast<std::size_t>(a.stage)] == 0;
    if (program_.divides_vocabulary && first_stage_of(program_, rank) == a.stage)
      for (Op op : {Op::head_backward, Op::embed_backward})
        finished = finished && vocabulary_done(op, rank) == program_.num_microbatches;
    if (finished) {
      --unreduced_[static_cast<std::size_t>(rank)];
    } else if (a.op == Op::reduce_gradients &&
               program_.ranks[static_cast<std::size_t>(rank)].back().op == Op::optimizer_step) {
      return error_here(rank, "reduces stage {} before the last of its backward actions", a.stage);
    }
    return true;
  }

  bool step(int rank) {
    if (unreduced_[static_cast<std::size_t>(rank)] > 0) return error_here(rank, "STEP before every stage is reduced");
    for (int channel : outgoing_[static_cast<std::size_t>(rank)])
      if (!send_complete(rank, channel, line(channel).sent - 1)) return false;
    if (!program_.divides_vocabulary) return true;
    int const last = program_.num_microbatches - 1;
    return over(rank, Exchange::sum, last) && over(rank, Exchange::input_gradient, last);
  }

  /// Every rank that is not at its end is blocked: say on what.
  void deadlock() {
    for (int rank = 0; rank < program_.num_ranks && found_.size() < max_violations; ++rank) {
      auto const r = static_cast<std::size_t>(rank);
      if (next_[r] == program_.ranks[r].size()) continue;
      RankWait const& wait = waits_[r];
      if (wait.exchange >= 0) {
        error_here(rank, "deadlock: {} waits until all ranks take part in {} of microbatch {}",
                   to_string(program_.ranks[r][next_[r]]),
                   vocabulary_exchanges[static_cast<std::size_t>(wait.exchange)], wait.count);
        continue;
      }
      Channel const& c = channels_.all[static_cast<std::size_t>(wait.channel)];
      int const other = wait.for_sends ? c.source : c.destination;
      auto const o = static_cast<std::size_t>(other);
      error_here(rank, "deadlock: {} waits until rank {} {} {} number {} with rank {}; rank {} is at {}",
                 to_string(program_.ranks[r][next_[r]]), other, wait.for_sends ? "starts" : "posts",
                 wait.for_sends ? (c.gradient ? "SEND_B" : "SEND_F") : (c.gradient ? "RECV_B" : "RECV_F"), wait.count,
                 rank, other,
                 next_[o] == program_.ranks[o].size() ? "its end" : to_string(program_.ranks[o][next_[o]]));
    }
  }

  Program const& program_;
  Execution execution_;
  bool training_;
  Channels channels_;
  std::vector<ChannelState> lines_;            ///< by channel
  std::vector<RankWait> waits_;                ///< by rank
  std::vector<std::size_t> next_;              ///< by rank: the action it is at
  std::vector<char> started_;                  ///< by rank: its blocking send is under way
  std::vector<std::vector<int>> outgoing_;     ///< by rank: channels
  std::vector<std::vector<SlotState>> slots_;  ///< by stage
  std::vector<int> unfinished_;                ///< by stage: gradients of a microbatch that are still to be added
  std::vector<int> unreduced_;                 ///< by rank: stages
  std::vector<unsigned char> done_;            ///< by cell: bits of the actions that ran
  std::vector<bool> away_;                     ///< by cell: offloaded
  std::array<std::vector<int>, vocabulary_exchanges.size()> joined_;  ///< by exchange and microbatch: ranks
  std::array<std::vector<int>, 4> vocabulary_done_;                   ///< of E, S, T, G by rank: how many
  std::vector<int> ready_;
  std::vector<Violation> found_;
};

}  // namespace

std::vector<Violation> check_progress(Program const& program, Execution execution, Pass pass) {
  return ProgramRun(program, execution, pass).check();
}

}  // namespace p3d::schedule
