// SPDX-License-Identifier: Apache-2.0
#include "nodes_engine.hpp"

#include <utility>

namespace p3d::comm::detail {

NodesEngine::NodesEngine(std::unique_ptr<SharedEngine> inside, std::unique_ptr<PairEngine> scatter,
                         std::unique_ptr<PairEngine> gather)
    : inside_(std::move(inside)), scatter_(std::move(scatter)), gather_(std::move(gather)) {}

void NodesEngine::enqueue(Work& work) {
  if (work.kind == Collective::all_reduce) return inside_->enqueue(work);
  auto& journey = journeys_.emplace_back(Journey{&work, work, work});
  // The part inside the node takes its place in the order now, even if it can begin only after the messages.
  journey.inside.held = work.kind == Collective::all_gather;
  inside_->enqueue(journey.inside);
  if (work.kind == Collective::all_gather) gather_->enqueue(journey.between);
}

bool NodesEngine::advance() {
  bool moved = false;
  if (!gather_->idle()) moved = gather_->advance();
  for (auto& journey : journeys_) {
    if (journey.inside.held && journey.between.done) journey.inside.held = false;
  }
  moved = inside_->advance() || moved;
  // Sums are sent in the order in which their works were started, as inside_ finishes them in that order.
  for (auto& journey : journeys_) {
    bool const sends = journey.whole->kind == Collective::reduce_scatter && journey.between.segments == 0;
    if (sends && journey.inside.done) scatter_->enqueue(journey.between);
  }
  if (!scatter_->idle()) moved = scatter_->advance() || moved;
  moved = std::erase_if(journeys_,
                        [](Journey const& journey) {
                          if (!journey.inside.done || !journey.between.done) return false;
                          journey.whole->sent += journey.inside.sent + journey.between.sent;
                          return journey.whole->done = true;
                        }) > 0 ||
          moved;
  return moved;
}

}  // namespace p3d::comm::detail
