// SPDX-License-Identifier: Apache-2.0
#pragma once
// A step's time before it runs: a pipeline program under the executor's rules, with a cost for every action. What the
// rules are says schedule::Execution; the same program, with counts in place of times, is what the validator proves.

#include <p3d/schedule/schedule.hpp>
#include <p3d/schedule/timeline.hpp>

#include <cstdint>
#include <limits>
#include <vector>

namespace p3d::plan {

/// Seconds (or any unit) for one microbatch on one stage.
struct StageCost {
  double forward = 1, input = 1, weight = 1;
  double backward = -1;  ///< of an undivided B; negative: input + weight
  double recompute = 0;  ///< more of B and I, where activations are remade (PipelineCosts::slots_kept)
  /// Of forward, and of input or backward: waits inside, which the other one of a pair hides as far as it computes.
  double forward_wait = 0, input_wait = 0;
  double whole() const { return backward < 0 ? input + weight : backward; }
  bool operator==(StageCost const&) const = default;
};

/// Of a rank's part of the vocabulary (schedule/vocabulary.hpp), for one microbatch.
struct VocabularyCost {
  double embed_forward = 0, head_forward = 0, head_backward = 0, embed_backward = 0;  ///< E, S, T, G
  double sum = 0, broadcast = 0, gather = 0;  ///< of the exchanges, beside which ranks go on
  bool operator==(VocabularyCost const&) const = default;
};

/// What everything costs.
struct PipelineCosts {
  std::vector<StageCost> stages;  ///< by stage
  double message_bytes = 0;       ///< of an activation or a gradient: a rank's tokens x hidden x bytes of a number
  double latency = 0;             ///< seconds until a message that is sent and asked for begins to arrive
  double bandwidth =
      std::numeric_limits<double>::infinity();  ///< bytes per second between two ranks, each direction and kind
  int slots_kept = 0;                           ///< nothing is remade of microbatches in slots below this number
  std::vector<double> slot_bytes{};             ///< by stage: activations of one slot; empty: not known
  std::vector<double> reduce{};                 ///< by stage: the reduction of its gradients over dp; empty: 0
  double send = 0, receive = 0;                 ///< the rank's own time to start a send, to post a receive
  double step = 0;                              ///< the optimizer's update of a rank
  /// In place of `stages`, where microbatches differ: that of microbatch m on stage s at s * num_microbatches + m.
  /// Empty: none.
  std::vector<StageCost> microbatches{};
  /// By stage, empty: 0. What the rank spends on GATHER and REDUCE_SCATTER; on OFFLOAD and RELOAD; the bytes of the
  /// stage's whole weights.
  std::vector<double> gather{}, offload{}, weight_bytes{};
  VocabularyCost vocabulary{};
  /// By rank, in place of that: empty, or of each microbatch at rank * num_microbatches + m.
  std::vector<VocabularyCost> vocabulary_microbatches{};
  /// By stage, empty: 0. The time of an OFFLOAD_F or RELOAD_F, beside which the rank goes on: one of a rank after the
  /// other.
  std::vector<double> swap{};

  /// The same cost for every stage, nothing else.
  static PipelineCosts uniform(int num_stages, StageCost cost = {}) {
    return {.stages = std::vector<StageCost>(static_cast<std::size_t>(num_stages), cost)};
  }
};

struct RankResult {
  double busy = 0;        ///< F, B, I and W
  double other = 0;       ///< REDUCE, STEP, weight actions and starting messages
  double begin = 0;       ///< of its first compute action
  double end = 0;         ///< of its last compute action
  int peak_live = 0;      ///< microbatches between F and the end of their backward, over all of its stages, at the most
  int slots = 0;          ///< of all its stages: what is allocated
  double peak_bytes = 0;  ///< slots x slot_bytes
  double peak_weight_bytes = 0;  ///< of the versions of weights that are there at a time
  double bytes_sent = 0;
};

struct Simulation {
  double makespan = 0;      ///< the end of the last compute action of all
  double step_time = 0;     ///< the end of the last action of all, with reductions and update
  double longest_span = 0;  ///< the longest time from the first to the last compute action of a rank (what the
                            ///< zero-bubble papers count)
  std::vector<RankResult> ranks;
  schedule::Timeline timeline;  ///< empty unless asked for

  double busy() const;  ///< of all ranks
  /// 1 - busy / (ranks x makespan): the share of the ranks' time that is lost.
  double bubble() const;
  /// The same from each rank's first action on, at the worst rank: 1 - (its busy time) / longest_span.
  double span_bubble() const;
  int peak_live() const;      ///< of the worst rank
  double peak_bytes() const;  ///< of the worst rank
  double bytes_sent() const;  ///< of all ranks
};

/// Runs a complete, valid program. A message is on its way from when it is sent (and, with rendezvous, asked for) and
/// the one before it on its channel has arrived; it takes latency + message_bytes / bandwidth, and of the ranks' time
/// only `send` and `receive`. Throws base::Error when the program cannot run to its end (validate() says why). Time
/// linear in the number of actions; memory 8 bytes for each message beside the program.
Simulation simulate(schedule::Program const& program, PipelineCosts const& costs, schedule::Execution execution = {},
                    bool record = false);

}  // namespace p3d::plan
