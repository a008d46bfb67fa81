// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the messages of a pipeline rank start (pipeline.p2p): each by itself, a send and a receive in one call, or those
// of a round in one exchange with the neighbours. Example: with P2p::batched "0SEND_F1 0RECV_B1" is one MPI_Isendrecv;
// the send is held until its receive comes.

#include <p3d/comm/communicator.hpp>

#include <map>
#include <vector>

namespace p3d::engine {

/// A message of a slot that can start, and the request that it becomes.
struct SlotMessage {
  comm::Communicator::Message message;
  comm::Request* request;
};

/// The call that starts a message together with another one (schedule::same_call).
struct Call {
  int number = -1;        ///< place of the first of the two in the list of the rank; -1: it starts by itself
  bool is_first = false;  ///< the other one comes later
};

/// Starts messages between stages on the communicator of the pipeline, which must outlive it.
class MessageStart {
public:
  explicit MessageStart(comm::Communicator& pipeline) : pipeline_(&pipeline) {}

  /// Starts a message, with the first one of its call, if that is held; or holds it, if it is the first one.
  void start(SlotMessage message, Call call = {});
  /// Starts all messages that are held, each by itself: nobody may wait while one is held.
  void release();

  /// Makes the communicator of the rounds. Collective over the pipeline.
  void make_ring(bool periodic) { ring_ = pipeline_->ring(periodic, "pp-ring"); }
  bool has_ring() const { return ring_.valid(); }
  /// Starts the next round with this rank's messages in it, perhaps none.
  void start_round(std::vector<SlotMessage> messages);
  /// Waits for the rounds in which this rank had no message.
  void finish();

private:
  comm::Communicator* pipeline_;
  comm::Communicator ring_;
  std::map<int, SlotMessage> held_;  ///< the first message of each call, by the number of the call
  std::vector<comm::Request> empty_rounds_;
};

}  // namespace p3d::engine
