// SPDX-License-Identifier: Apache-2.0
#pragma once
// The graph of needs: for every action of a program, what it waits for and what it gives. It is written once, in
// graph.cpp. The validator, the simulator, the early start of a step and the trace walk this graph and have no such
// rules of their own.
//
// An action follows the one before it in the list of its rank. Besides, it is tied to events: what is under way while
// ranks go on. An event happens when all that give it have given it.
//
//   message   an activation or a gradient on its way to another rank
//     given by  its SEND_* and its RECV_*
//     needed by F, B or I that reads it; whoever writes where it is sent from; a later SEND_*, where few may be
//               outstanding; STEP
//   exchange  one of microbatch m between all ranks (vocabulary.hpp)
//     given by  E, S, T on each rank; F and B or I that broadcast, and whoever asks for a broadcast
//     needed by E, S, T, G; F of the first stage; B or I of the last one; STEP
//   copy      of a microbatch's activations (offload.hpp)
//     given by  OFFLOAD_F or RELOAD_F
//     needed by whoever takes the slot; B, I, W that read what comes back
//
// Example: on the second of two ranks with 1F1B and one slot, "1RECV_F1@0" needs the message of 1SEND_B0@0, which
// leaves from the slot, and gives the message that it receives; "1F1@0" needs that one.

#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>
#include <p3d/schedule/vocabulary.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace p3d::schedule {

/// Messages of one kind from one rank to another. MPI matches them in the order in which both sides post them, whatever
/// stage they belong to.
struct Channel {
  int source = 0;       ///< rank
  int destination = 0;  ///< rank
  bool gradient = false;
};

struct Channels {
  explicit Channels(Program const& program);
  /// The channel of a message action, whichever end it is.
  int of(Action const& action) const;

  std::vector<Channel> all;
  std::vector<int> activation_out;  ///< the channel by which each stage's output leaves, -1: no message
  std::vector<int> gradient_out;    ///< the channel by which the gradient of each stage's input leaves, -1: none
};

/// The part of a rank that an action occupies while it lasts. A rank works on one compute action at a time, and on one
/// copy at a time beside it; messages and exchanges go on beside both.
enum class Lane : std::uint8_t { compute, link, copies };
constexpr Lane lane_of(Op op) {
  return is_message(op) ? Lane::link : moves_activations(op) ? Lane::copies : Lane::compute;
}

enum class EventKind : std::uint8_t { message, exchange, copy };

/// How an action is tied to an event. The edges of an action come in this order.
enum class Tie : std::uint32_t {
  needs,   ///< the action begins after the event
  delays,  ///< the action gives its own event after this one, but the rank goes on: a receive into a slot from which
           ///< activations are still copied (not with Execution::waits_inside)
  gives,   ///< the action gives the event, when its work is done
  ends     ///< the action ends after the event, which it gives: a blocking send
};

struct Edge {
  Edge(std::uint32_t to, Tie how) : event(to), tie(how) {}
  std::uint32_t event : 30;
  Tie tie : 2;
};

/// The two actions of a message, by their places in the lists of their ranks; -1: there is none.
struct MessageEnds {
  int send = -1, receive = -1;
};

/// Events and edges in flat arrays: some 20 bytes for an action of a large program.
class Graph {
public:
  Program const& program() const { return *program_; }
  Channels const& channels() const { return channels_; }

  /// The edges of action `index` of a rank. Index -1 has what the rank gives before its first action.
  std::span<Edge const> edges(int rank, std::ptrdiff_t index) const {
    std::size_t const node = first_node_[static_cast<std::size_t>(rank)] + static_cast<std::size_t>(index + 1);
    return {edges_.data() + first_edge_[node], edges_.data() + first_edge_[node + 1]};
  }
  /// The edges of all actions of a rank, in their order.
  std::span<Edge const> edges(int rank) const;
  /// The action of a rank that has the edge of that place among edges(rank).
  std::ptrdiff_t action_of(int rank, std::size_t edge) const;

  std::uint32_t num_events() const { return num_events_; }
  EventKind kind(std::uint32_t event) const {
    return event < first_exchange_ ? EventKind::message : event < first_copy_ ? EventKind::exchange : EventKind::copy;
  }
  /// The number of actions that give an event (a rank's asking before its first action is one, too).
  int givers(std::uint32_t event) const {
    return event < first_exchange_ ? 2 : event < first_copy_ ? program_->num_ranks : 1;
  }
  /// The numbers of givers of all events.
  std::vector<int> givers() const;
  int channel(std::uint32_t message) const;
  /// The place of a message among those of its channel.
  int number(std::uint32_t message) const;
  /// The messages of a channel, in their order: [first, second).
  std::pair<std::uint32_t, std::uint32_t> messages(int channel) const;
  MessageEnds ends(std::uint32_t message) const { return ends_[message]; }
  VocabularyExchange exchange(std::uint32_t event) const;
  int microbatch(std::uint32_t exchange) const;

private:
  friend class GraphBuilder;
  explicit Graph(Program const& program) : program_(&program), channels_(program) {}

  Program const* program_;
  Channels channels_;
  std::vector<std::uint32_t> first_message_;  ///< first message of each channel, and the end
  std::uint32_t first_exchange_ = 0, first_copy_ = 0, num_events_ = 0;
  std::vector<MessageEnds> ends_;          ///< the ends of each message
  std::vector<std::size_t> first_node_;    ///< node -1 of each rank, and the end
  std::vector<std::uint32_t> first_edge_;  ///< by node, and the end
  std::vector<Edge> edges_;
};

/// The graph of a complete program, whose structure and order are sound (validate() checks both before it builds the
/// graph). The program must outlive it. Time and memory are linear in the number of actions.
Graph build_graph(Program const& program, Execution execution, Pass pass = Pass::training);

}  // namespace p3d::schedule
