// SPDX-License-Identifier: Apache-2.0
// The rules of who waits for what. They are local: everything that a rank waits for it has itself begun before, as a
// receive or a send that it posted, an exchange that it joined, a copy that it started. So one walk through the list of
// each rank finds them, with the last events of every slot at hand: "1RECV_F1@0" takes slot 0, from which 1SEND_B0@0
// was the last to send.

#include <p3d/schedule/graph.hpp>

#include "channels.hpp"

#include <p3d/base/error.hpp>
#include <p3d/schedule/offload.hpp>
#include <p3d/schedule/p2p.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

namespace p3d::schedule {

namespace {
constexpr std::uint32_t no_event = std::numeric_limits<std::uint32_t>::max();
}  // namespace

class GraphBuilder {
public:
  GraphBuilder(Program const& program, Execution execution, Pass pass)
      : program_(program),
        execution_(execution),
        training_(pass == Pass::training),
        graph_(program),
        slots_(at(program.num_stages)) {
    for (std::size_t s = 0; s < slots_.size(); ++s) slots_[s].resize(at(program.num_slots[s]));
    number_events();
    std::size_t nodes = 0;
    for (auto const& actions : program.ranks) nodes += actions.size() + 1;
    graph_.first_edge_.reserve(nodes + 1);
    graph_.edges_.reserve(nodes + nodes / 4);
  }

  Graph build() {
    for (rank_ = 0; rank_ < program_.num_ranks; ++rank_) walk(program_.ranks[at(rank_)]);
    graph_.first_node_.push_back(graph_.first_edge_.size());
    graph_.first_edge_.push_back(static_cast<std::uint32_t>(graph_.edges_.size()));
    P3D_REQUIRE(graph_.edges_.size() < no_event, "a graph has less than 2^32 edges");
    return std::move(graph_);
  }

private:
  using Exchange = VocabularyExchange;

  /// The last events of a slot.
  struct SlotEvents {
    std::uint32_t activation_in = no_event, activation_out = no_event, gradient_in = no_event, gradient_out = no_event;
    std::uint32_t copy_out = no_event;
    std::uint32_t gradients_out = no_event;  ///< a copy out that takes the gradients, too
  };

  void number_events() {
    auto const all = graph_.channels_.all.size();
    std::vector<std::uint32_t> messages(all, 0);
    auto const microbatches = static_cast<std::uint32_t>(program_.num_microbatches);
    for (int s = 0; s < program_.num_stages; ++s) {
      if (int const c = graph_.channels_.activation_out[at(s)]; c >= 0) messages[at(c)] += microbatches;
      if (int const c = graph_.channels_.gradient_out[at(s)]; c >= 0 && training_) messages[at(c)] += microbatches;
    }
    std::uint32_t next = 0;
    for (std::uint32_t n : messages) {
      graph_.first_message_.push_back(next);
      next += n;
    }
    graph_.first_message_.push_back(next);
    graph_.ends_.resize(next);
    sent_.assign(all, 0);
    received_.assign(all, 0);
    graph_.first_exchange_ = next;
    if (program_.divides_vocabulary) next += static_cast<std::uint32_t>(vocabulary_exchanges.size()) * microbatches;
    graph_.first_copy_ = graph_.num_events_ = next;
    outgoing_.resize(program_.ranks.size());
    for (std::size_t c = 0; c < all; ++c) outgoing_[at(graph_.channels_.all[c].source)].push_back(static_cast<int>(c));
  }

  void walk(std::vector<Action> const& actions) {
    gradients_move_.clear();
    copies_back_.clear();
    bool const batched = execution_.p2p == P2p::batched;
    same_call_ = batched ? same_call(program_, actions) : std::vector<int>();
    started_with_.assign(batched ? graph_.first_exchange_ : 0, no_event);
    message_at_.assign(same_call_.size(), no_event);
    graph_.first_node_.push_back(graph_.first_edge_.size());
    begin_node();
    ask_for_broadcasts();
    for (index_ = 0; index_ < actions.size(); ++index_) {
      Action const& a = actions[index_];
      begin_node();
      if (moves_activations(a.op) && gradients_move_.empty()) gradients_move_ = moves_gradients(program_, rank_);
      needs(a);
      if (execution_.pairs && begins_pair(actions, index_)) needs(actions[index_ + 1]);
      gives(a);
    }
  }

  void begin_node() { graph_.first_edge_.push_back(static_cast<std::uint32_t>(graph_.edges_.size())); }
  void tie(Tie how, std::uint32_t event) {
    if (event != no_event) graph_.edges_.emplace_back(event, how);
  }
  SlotEvents& slot(Action const& a) { return slots_[at(a.stage)][at(a.slot)]; }

  // --- what an action needs

  void needs(Action const& a) {
    switch (a.op) {
      case Op::recv_activation: return take(a, copy_before_receive());
      case Op::recv_gradient: need_sent(slot(a).gradient_out); return tie(copy_before_receive(), slot(a).gradients_out);
      case Op::send_activation:
      case Op::send_gradient: {
        int const channel = graph_.channels_.of(a);
        return need_sent(message(channel, sent_[at(channel)] - std::max(1, execution_.sends_in_flight)));
      }
      case Op::forward:
        if (takes_slot(program_, a)) take(a, Tie::needs);
        need_message(slot(a).activation_in);
        need_reloaded(a);
        return need(exchange_read(program_, a), a.microbatch);
      case Op::backward:
      case Op::backward_input:
        need_message(slot(a).gradient_in);
        need_reloaded(a);
        need_sent(slot(a).gradient_out);
        // The input part overwrites the output, from which an activation of another microbatch may still leave.
        if (a.op == Op::backward_input) need_sent(slot(a).activation_out);
        return need(exchange_read(program_, a), a.microbatch);
      case Op::backward_weight: return need_reloaded(a);
      case Op::reload_activations:
        if (gradients_move_[index_]) need_sent(slot(a));
        return;
      case Op::embed_forward: return need(Exchange::sum, a.microbatch - vocabulary_slots.embed);
      case Op::head_forward: return need(Exchange::output, a.microbatch);
      case Op::head_backward:
        need(Exchange::parts, a.microbatch);
        if (training_) need(Exchange::input_gradient, a.microbatch - vocabulary_slots.head);
        return;
      case Op::embed_backward: return need(Exchange::gradient, a.microbatch);
      case Op::optimizer_step:
        for (int channel : outgoing_[at(rank_)]) need_sent(message(channel, sent_[at(channel)] - 1));
        need(Exchange::sum, program_.num_microbatches - 1);
        return need(Exchange::input_gradient, program_.num_microbatches - 1);
      case Op::offload_activations:
      case Op::reduce_gradients:
      case Op::reduce_scatter_gradients:
      case Op::gather_weights:
      case Op::release_weights:
      case Op::offload_weights:
      case Op::reload_weights:
      case Op::stage_step: return;  // the rank is busy with it, and waits for nothing in the pipeline
    }
  }

  /// A receive into a slot that is still copied out is put off, or the rank waits for the copy.
  Tie copy_before_receive() const { return execution_.waits_inside ? Tie::needs : Tie::delays; }
  /// An action that takes a slot waits for what still leaves it.
  void take(Action const& a, Tie how_for_copies) {
    SlotEvents& s = slot(a);
    need_sent(s);
    tie(how_for_copies, s.copy_out);
    std::uint32_t const copy_out = s.copy_out;
    s = {};
    s.copy_out = copy_out;
  }
  /// An action that reads slots waits for what was copied back into them: its own, and those of its row.
  void need_reloaded(Action const& a) {
    if (copies_back_.empty()) return;
    auto const need_copy = [&](int stage) {
      auto const found = copies_back_.find({stage, a.microbatch});
      if (found != copies_back_.end()) tie(Tie::needs, found->second);
    };
    need_copy(a.stage);
    for_slots_in_use(program_, a, need_copy);
  }
  void need_sent(SlotEvents const& s) {
    need_sent(s.activation_out);
    need_sent(s.gradient_out);
  }
  /// An eager send is over at once.
  void need_sent(std::uint32_t event) {
    if (execution_.rendezvous) need_message(event);
  }
  /// Whoever waits for one of two messages that started in one call waits for both.
  void need_message(std::uint32_t event) {
    tie(Tie::needs, event);
    if (event != no_event && !started_with_.empty()) tie(Tie::needs, started_with_[event]);
  }
  void need(std::optional<Exchange> e, int microbatch) {
    if (e) tie(Tie::needs, exchange(*e, microbatch));
  }

  // --- what it gives

  void gives(Action const& a) {
    bool const first_here = rank_of(program_, 0) == rank_;
    bool const last_here = rank_of(program_, program_.num_stages - 1) == rank_;
    switch (a.op) {
      case Op::recv_activation: slot(a).activation_in = give_message(a, received_); return;
      case Op::recv_gradient: slot(a).gradient_in = give_message(a, received_); return;
      case Op::send_activation: slot(a).activation_out = give_message(a, sent_); return;
      case Op::send_gradient: slot(a).gradient_out = give_message(a, sent_); return;
      case Op::forward:
      case Op::backward:
      case Op::backward_input: return give(exchange_given(program_, a), a.microbatch);
      case Op::offload_activations: {
        SlotEvents& s = slot(a);
        s.copy_out = give_copy();
        if (gradients_move_[index_]) s.gradients_out = s.copy_out;
        return;
      }
      case Op::reload_activations: {
        SlotEvents& s = slot(a);
        copies_back_[{a.stage, a.microbatch}] = give_copy();
        s.activation_in = s.gradient_in = no_event;
        return;
      }
      case Op::embed_forward: return give(Exchange::sum, a.microbatch);
      case Op::head_forward: return give(Exchange::parts, a.microbatch);
      case Op::head_backward:
        if (training_) give(Exchange::input_gradient, a.microbatch);
        // The buffer that it read is free for another broadcast.
        if (!last_here) give(Exchange::output, a.microbatch + vocabulary_slots.head);
        return;
      case Op::embed_backward:
        if (!first_here) give(Exchange::gradient, a.microbatch + vocabulary_slots.gradient);
        return;
      case Op::backward_weight:
      case Op::reduce_gradients:
      case Op::reduce_scatter_gradients:
      case Op::gather_weights:
      case Op::release_weights:
      case Op::offload_weights:
      case Op::reload_weights:
      case Op::stage_step:
      case Op::optimizer_step: return;
    }
  }

  /// Ranks that will be given something ask for it when the program begins.
  void ask_for_broadcasts() {
    for (int m = 0; m < vocabulary_slots.head && rank_of(program_, program_.num_stages - 1) != rank_; ++m)
      give(Exchange::output, m);
    for (int m = 0; m < vocabulary_slots.gradient && rank_of(program_, 0) != rank_; ++m) give(Exchange::gradient, m);
  }

  std::uint32_t give_message(Action const& a, std::vector<int>& count) {
    int const channel = graph_.channels_.of(a);
    std::uint32_t const event = message(channel, count[at(channel)]++);
    P3D_REQUIRE(event != no_event, "a program has as many messages as its stages and microbatches need");
    (is_send(a.op) ? graph_.ends_[event].send : graph_.ends_[event].receive) = static_cast<int>(index_);
    tie(Tie::gives, event);
    if (!same_call_.empty()) {
      message_at_[index_] = event;
      if (int const other = same_call_[index_]; other >= 0 && at(other) < index_) {
        started_with_[event] = message_at_[at(other)];
        started_with_[message_at_[at(other)]] = event;
      }
    }
    if (is_send(a.op) && execution_.sends_in_flight == 0 && execution_.rendezvous) tie(Tie::ends, event);
    return event;
  }
  std::uint32_t give_copy() {
    tie(Tie::gives, graph_.num_events_);
    return graph_.num_events_++;
  }
  void give(std::optional<Exchange> e, int microbatch) {
    if (e) tie(Tie::gives, exchange(*e, microbatch));
  }

  /// The event of a message, or no event, where there is none of that number.
  std::uint32_t message(int channel, int number) const {
    auto const first = graph_.first_message_[at(channel)], end = graph_.first_message_[at(channel) + 1];
    return number < 0 || static_cast<std::uint32_t>(number) >= end - first ? no_event
                                                                           : first + static_cast<std::uint32_t>(number);
  }
  std::uint32_t exchange(Exchange e, int microbatch) const {
    if (!program_.divides_vocabulary || microbatch < 0 || microbatch >= program_.num_microbatches) return no_event;
    return graph_.first_exchange_ +
           static_cast<std::uint32_t>(static_cast<int>(e) * program_.num_microbatches + microbatch);
  }

  Program const& program_;
  Execution execution_;
  bool training_;
  Graph graph_;
  std::vector<int> sent_, received_;        ///< messages of each channel so far
  std::vector<std::vector<int>> outgoing_;  ///< channels by which each rank sends
  // The walk through the list of one rank:
  int rank_ = 0;
  std::size_t index_ = 0;
  std::vector<std::vector<SlotEvents>> slots_;  ///< last events of the slots of each stage, as of its rank
  std::map<std::pair<int, int>, std::uint32_t> copies_back_;  ///< the last copy back of a (stage, microbatch)
  std::vector<int> same_call_;               ///< same_call() of the rank; empty: no calls carry two messages
  std::vector<std::uint32_t> message_at_;    ///< the message of each action of the rank, where calls carry two
  std::vector<std::uint32_t> started_with_;  ///< the other message of the call on this rank, by message
  std::vector<bool> gradients_move_;         ///< moves_gradients() of the rank; empty: nothing has moved yet
};

std::span<Edge const> Graph::edges(int rank) const {
  return {edges_.data() + first_edge_[first_node_[at(rank)]], edges_.data() + first_edge_[first_node_[at(rank) + 1]]};
}

std::ptrdiff_t Graph::action_of(int rank, std::size_t edge) const {
  auto const begin = first_edge_.begin() + static_cast<std::ptrdiff_t>(first_node_[at(rank)]);
  auto const end = first_edge_.begin() + static_cast<std::ptrdiff_t>(first_node_[at(rank) + 1]);
  return std::upper_bound(begin, end, *begin + edge) - begin - 2;
}

std::vector<int> Graph::givers() const {
  std::vector<int> out(num_events_);
  for (std::uint32_t e = 0; e < num_events_; ++e) out[e] = givers(e);
  return out;
}

std::pair<std::uint32_t, std::uint32_t> Graph::messages(int channel) const {
  return {first_message_[at(channel)], first_message_[at(channel) + 1]};
}
int Graph::channel(std::uint32_t message) const {
  return static_cast<int>(std::upper_bound(first_message_.begin(), first_message_.end(), message) -
                          first_message_.begin()) -
         1;
}
int Graph::number(std::uint32_t message) const {
  return static_cast<int>(message - first_message_[at(channel(message))]);
}
VocabularyExchange Graph::exchange(std::uint32_t event) const {
  return static_cast<VocabularyExchange>(static_cast<int>(event - first_exchange_) / program_->num_microbatches);
}
int Graph::microbatch(std::uint32_t exchange) const {
  return static_cast<int>(exchange - first_exchange_) % program_->num_microbatches;
}

Graph build_graph(Program const& program, Execution execution, Pass pass) {
  return GraphBuilder(program, execution, pass).build();
}

}  // namespace p3d::schedule
