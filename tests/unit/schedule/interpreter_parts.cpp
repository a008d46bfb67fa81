// SPDX-License-Identifier: Apache-2.0
#include "interpreter_parts.hpp"

#include <algorithm>

namespace p3d::test {

using schedule::Action;
using schedule::Op;

namespace {
bool is_weight_action(Op op) {
  return op == Op::gather_weights || op == Op::release_weights || op == Op::offload_weights || op == Op::reload_weights;
}
bool names_weights(Op op) {
  switch (op) {
    case Op::forward:
    case Op::backward:
    case Op::backward_input:
    case Op::embed_forward:
    case Op::head_forward:
    case Op::head_backward: return true;
    default: return is_weight_action(op);
  }
}
}  // namespace

InterpretedWeights::InterpretedWeights(schedule::Program const& program)
    : program_(&program), stages_(static_cast<std::size_t>(program.num_stages)) {
  for (int s = 0; s < program.num_stages; ++s) {
    Stage& stage = at(s);
    auto const& list = program.ranks[static_cast<std::size_t>(home_rank(s))];
    auto const first =
        std::find_if(list.begin(), list.end(), [&](Action const& a) { return is_weight_action(a.op) && a.stage == s; });
    if (first != list.end() && first->op == Op::gather_weights) stage.home = Home::sharded;
    if (first != list.end() && first->op == Op::reload_weights) stage.home = Home::offloaded;
    stage.steps_alone =
        std::any_of(list.begin(), list.end(), [&](Action const& a) { return a.op == Op::stage_step && a.stage == s; });
    if (stage.home == Home::resident) stage.whole = {0};
    if (stage.home == Home::offloaded) stage.elsewhere = {0};
  }
}

void InterpretedWeights::read(int stage, int version) {
  if (!at(stage).whole.contains(version)) throw Error{Outcome::misuse, "reads weights that are not there"};
}

void InterpretedWeights::compute(Action const& a) {
  bool const lent = program_->tied && a.stage + 1 == program_->num_stages;
  auto const add = [&](Source source) {
    at(a.stage).waiting.insert({source, a.microbatch});
    if (source == own && lent) at(0).waiting.insert({tied, a.microbatch});
  };
  bool const of_stage =
      a.op == Op::forward || a.op == Op::backward || a.op == Op::backward_input || a.op == Op::backward_weight;
  if (a.op == Op::forward) version_of_[{a.stage, a.microbatch}] = a.version;
  auto const forward = version_of_.find({a.stage, a.microbatch});
  if (of_stage && forward != version_of_.end() && forward->second != a.version)
    throw Error{Outcome::wrong_result, "forward and backward with different weights"};
  if (names_weights(a.op)) read(a.stage, a.version);
  if (names_weights(a.op) && lent && of_stage) read(0, a.version);
  if (a.op == Op::backward || a.op == Op::backward_weight) add(own);
  if (a.op == Op::head_backward) add(head);
  if (a.op == Op::embed_backward) add(embedding);
}

void InterpretedWeights::move(Action const& a) {
  Stage& s = at(a.stage);
  switch (a.op) {
    case Op::gather_weights:
      if (s.home != Home::sharded || a.version != s.newest)
        throw Error{Outcome::misuse, "gathers what is not in parts"};
      if (!s.whole.insert(a.version).second) throw Error{Outcome::misuse, "gathers twice"};
      return;
    case Op::release_weights:
      read(a.stage, a.version);
      if (s.home != Home::sharded && a.version == s.newest) throw Error{Outcome::misuse, "releases the only replica"};
      s.whole.erase(a.version);
      return;
    case Op::offload_weights:
      read(a.stage, a.version);
      s.whole.erase(a.version);
      s.elsewhere.insert(a.version);
      return;
    default:
      if (s.elsewhere.erase(a.version) == 0) throw Error{Outcome::misuse, "reloads what is not offloaded"};
      s.whole.insert(a.version);
  }
}

bool InterpretedWeights::complete(int stage, Addends const& sum) const {
  auto const rank = home_rank(stage);
  bool const first_here =
      std::find(program_->stage_rank.begin(), program_->stage_rank.end(), rank) - program_->stage_rank.begin() == stage;
  Addends all;
  for (int m = 0; m < program_->num_microbatches; ++m) {
    all.insert({own, m});
    if (program_->tied && stage == 0) all.insert({tied, m});
    if (program_->divides_vocabulary && first_here) all.insert({{head, m}, {embedding, m}});
  }
  return sum == all;
}

void InterpretedWeights::reduce(Action const& a) {
  Stage& s = at(a.stage);
  s.reductions.insert(a.op);
  if (s.reductions.size() > 1) throw Error{Outcome::misuse, "two kinds of reductions"};
  if (s.waiting.empty()) throw Error{Outcome::wrong_result, "reduces nothing"};
  if (a.op == Op::reduce_gradients && !s.steps_alone && !complete(a.stage, s.waiting))
    throw Error{Outcome::wrong_result, "wrong gradient sum"};
  s.reduced.merge(s.waiting);
}

bool InterpretedWeights::newest_is_home(Stage const& s) const {
  return s.home == Home::sharded || (s.home == Home::resident ? s.whole : s.elsewhere).contains(s.newest);
}

void InterpretedWeights::step_stage(Action const& a, std::size_t place) {
  Stage& s = at(a.stage);
  if (a.version != s.newest + 1) throw Error{Outcome::wrong_result, "an update that makes another version"};
  if (!s.waiting.empty()) throw Error{Outcome::wrong_result, "a step on gradients not reduced"};
  if (s.reduced.empty()) throw Error{Outcome::wrong_result, "a step on no gradients"};
  if (!newest_is_home(s)) throw Error{Outcome::misuse, "updates weights that are elsewhere"};
  s.used.merge(s.reduced);
  auto const& list = program_->ranks[static_cast<std::size_t>(home_rank(a.stage))];
  bool const later = std::any_of(list.begin() + static_cast<std::ptrdiff_t>(place) + 1, list.end(), [&](auto const& b) {
    bool const lent = program_->tied && a.stage == 0 && b.stage + 1 == program_->num_stages && !is_weight_action(b.op);
    return names_weights(b.op) && b.version == s.newest && (b.stage == a.stage || lent);
  });
  if (s.home != Home::sharded) {
    auto& there = s.home == Home::resident ? s.whole : s.elsewhere;
    if (!later) there.erase(s.newest);
    there.insert(s.newest + 1);
  }
  ++s.newest;
}

void InterpretedWeights::step_rank(int rank) {
  for (int i = 0; i < program_->num_stages; ++i) {
    if (home_rank(i) != rank) continue;
    Stage& s = at(i);
    if (s.steps_alone) throw Error{Outcome::misuse, "two kinds of updates"};
    if (!s.waiting.empty() || !complete(i, s.reduced))
      throw Error{Outcome::wrong_result, "a step on gradients not reduced"};
    if (!newest_is_home(s)) throw Error{Outcome::misuse, "updates weights that are elsewhere"};
    s.used.merge(s.reduced);
  }
}

void InterpretedWeights::check_end(bool forward_only) const {
  for (int i = 0; i < program_->num_stages; ++i) {
    Stage const& s = stages_[static_cast<std::size_t>(i)];
    std::set<int> const none, newest{s.newest};
    if (s.whole != (s.home == Home::resident ? newest : none) ||
        s.elsewhere != (s.home == Home::offloaded ? newest : none))
      throw Error{Outcome::misuse, "weights are not where they were at the begin"};
    if (!forward_only && (!s.waiting.empty() || !s.reduced.empty() || !complete(i, s.used)))
      throw Error{Outcome::wrong_result, "an update is missing"};
  }
}

InterpretedVocabulary::InterpretedVocabulary(schedule::Program const& program, bool forward_only)
    : program_(&program), forward_only_(forward_only), ranks_(program.ranks.size()) {
  if (!program.divides_vocabulary) return;
  for (int rank = 0; rank < program.num_ranks; ++rank)
    for (int m = 0; m < buffers; ++m) {
      if (!has_last(rank)) ask(rank, output, m);
      if (!has_first(rank)) ask(rank, gradient, m);
    }
}

void InterpretedVocabulary::next(int& count, int microbatch) {
  if (count++ != microbatch) throw Error{Outcome::misuse, "microbatches of an exchange out of their order"};
}
void InterpretedVocabulary::call(int rank, Kind kind, int microbatch) { next(at(rank).calls[kind], microbatch); }
void InterpretedVocabulary::ask(int rank, Kind kind, int microbatch) {
  if (microbatch < program_->num_microbatches) call(rank, kind, microbatch);
}
bool InterpretedVocabulary::ended(Kind kind, int microbatch) const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](Rank const& r) { return r.calls[kind] > microbatch; });
}

bool InterpretedVocabulary::act(int rank, Action const& a) {
  if (!program_->divides_vocabulary) throw Error{Outcome::misuse, "the vocabulary is not divided"};
  auto const& homes = program_->stage_rank;
  if (std::find(homes.begin(), homes.end(), rank) - homes.begin() != a.stage)
    throw Error{Outcome::misuse, "a part of the vocabulary lies with the first stage of its rank"};
  int const m = a.microbatch;
  if (m < 0 || m >= program_->num_microbatches || a.slot != m % buffers)
    throw Error{Outcome::misuse, "buffers of the vocabulary are used in turn"};
  Rank& r = at(rank);
  auto const k = static_cast<std::size_t>(a.slot);
  switch (a.op) {
    case Op::embed_forward:
      if (r.embedded[k].unread) throw Error{Outcome::misuse, "an embedding is overwritten"};
      if (!ended(sum, m - buffers)) return false;
      next(r.embeds, m);
      r.embedded[k] = {m, has_first(rank)};
      call(rank, sum, m);
      return true;
    case Op::head_forward:
      if (!ended(output, m)) return false;
      next(r.heads, m);
      if (!has_last(rank)) r.outputs[k] = {m, true};
      if (r.outputs[k].holds != m) throw Error{Outcome::wrong_result, "the head reads another output"};
      if (r.logits[k].unread) throw Error{Outcome::misuse, "logits are overwritten"};
      r.logits[k] = {m, true};
      call(rank, parts, m);
      return true;
    case Op::head_backward:
      if (!r.logits[k].unread || r.logits[k].holds != m) throw Error{Outcome::misuse, "no logits"};
      if (!forward_only_ && r.input_gradients[k].unread) throw Error{Outcome::misuse, "a gradient is overwritten"};
      if (!ended(parts, m) || (!forward_only_ && !ended(input_gradient, m - buffers))) return false;
      next(r.head_gradients, m);
      r.logits[k].unread = r.outputs[k].unread = false;
      if (!forward_only_) {
        r.input_gradients[k] = {m, has_last(rank)};
        call(rank, input_gradient, m);
      }
      if (!has_last(rank)) ask(rank, output, m + buffers);
      return true;
    default:
      if (!ended(gradient, m)) return false;
      next(r.embed_gradients, m);
      if (has_first(rank) && r.gradients[k].holds != m) throw Error{Outcome::wrong_result, "another gradient"};
      r.gradients[k].unread = false;
      if (!has_first(rank)) ask(rank, gradient, m + buffers);
      return true;
  }
}

bool InterpretedVocabulary::takes(int rank, Action const& a) {
  if (!program_->divides_vocabulary) return true;
  int const m = a.microbatch;
  auto const k = static_cast<std::size_t>(m % buffers);
  if (a.op == Op::forward && a.stage == 0) {
    if (at(rank).embeds <= m) throw Error{Outcome::misuse, "no embedding"};
    if (!ended(sum, m)) return false;
    if (at(rank).embedded[k].holds != m) throw Error{Outcome::wrong_result, "another embedding"};
    at(rank).embedded[k].unread = false;
  }
  if ((a.op == Op::backward || a.op == Op::backward_input) && a.stage + 1 == program_->num_stages) {
    if (at(rank).head_gradients <= m) throw Error{Outcome::misuse, "no gradient of the head"};
    if (!ended(input_gradient, m)) return false;
    if (at(rank).input_gradients[k].holds != m) throw Error{Outcome::wrong_result, "another gradient"};
    at(rank).input_gradients[k].unread = false;
  }
  return true;
}

void InterpretedVocabulary::gives(int rank, Action const& a) {
  if (!program_->divides_vocabulary) return;
  int const m = a.microbatch;
  auto const k = static_cast<std::size_t>(m % buffers);
  auto const give = [&](Buffer& buffer, Kind kind) {
    if (buffer.unread) throw Error{Outcome::misuse, "what is given to all ranks is overwritten"};
    buffer = {m, true};
    call(rank, kind, m);
  };
  if (a.op == Op::forward && a.stage + 1 == program_->num_stages) give(at(rank).outputs[k], output);
  if ((a.op == Op::backward || a.op == Op::backward_input) && a.stage == 0) give(at(rank).gradients[k], gradient);
}

bool InterpretedVocabulary::over() const {
  int const last = program_->num_microbatches - 1;
  return !program_->divides_vocabulary || (ended(sum, last) && ended(input_gradient, last));
}

void InterpretedVocabulary::check_end() const {
  if (!program_->divides_vocabulary) return;
  int const all = program_->num_microbatches;
  for (Rank const& r : ranks_)
    if (r.embeds != all || r.heads != all || r.head_gradients != all || (!forward_only_ && r.embed_gradients != all))
      throw Error{Outcome::wrong_result, "a part of the vocabulary is missing"};
}

}  // namespace p3d::test
