// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/message_start.hpp>

#include <utility>

namespace p3d::engine {

void MessageStart::start(SlotMessage message, Call call) {
  if (call.is_first) {
    held_.emplace(call.number, std::move(message));
    return;
  }
  auto const first = held_.find(call.number);
  if (first == held_.end()) {
    *message.request = pipeline_->start_message(std::move(message.message));
    return;
  }
  auto held = std::move(first->second);
  held_.erase(first);
  auto [one, other] = pipeline_->start_pair(std::move(held.message), std::move(message.message));
  *held.request = std::move(one);
  *message.request = std::move(other);
}

void MessageStart::release() {
  for (auto& [number, held] : std::exchange(held_, {}))
    *held.request = pipeline_->start_message(std::move(held.message));
}

void MessageStart::start_round(std::vector<SlotMessage> messages) {
  std::erase_if(empty_rounds_, [](comm::Request& round) { return round.test(); });
  std::vector<comm::Communicator::Message> parts;
  for (auto& m : messages) parts.push_back(std::move(m.message));
  auto requests = ring_.exchange_with_neighbours(std::move(parts));
  if (messages.empty()) return empty_rounds_.push_back(std::move(requests.front()));
  for (std::size_t i = 0; i < messages.size(); ++i) *messages[i].request = std::move(requests[i]);
}

void MessageStart::finish() {
  comm::wait_all(empty_rounds_);
  empty_rounds_.clear();
}

}  // namespace p3d::engine
