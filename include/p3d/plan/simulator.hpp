// SPDX-License-Identifier: Apache-2.0
#pragma once
// Predicts the time of a step: a pipeline program under the executor's rules (schedule::Execution), with a cost for
// every action. The validator proves the same program, with counts in place of times. An example: 1F1B on p ranks with
// m microbatches, forward 1, backward 2 and free messages has the makespan 3 (m + p - 1).

#include <p3d/schedule/schedule.hpp>
#include <p3d/schedule/timeline.hpp>

#include <cstdint>
#include <limits>
#include <vector>

namespace p3d::plan {

/// Seconds (or any unit) for one microbatch on one stage.
struct StageCost {
  double forward = 1, input = 1, weight = 1;
  double backward = -1;  ///< an undivided B; negative: input + weight
  double recompute = 0;  ///< added to B and I where activations are recomputed (PipelineCosts::slots_kept)
  /// Seconds of `forward`, and of `input` or `backward`, in which the action waits for other ranks. The other action of
  /// a pair hides them as far as it computes.
  double forward_wait = 0, input_wait = 0;
  /// Seconds of a whole backward.
  double whole() const { return backward < 0 ? input + weight : backward; }
  bool operator==(StageCost const&) const = default;
};

/// Seconds for a rank's share of the vocabulary (schedule/vocabulary.hpp), for one microbatch.
struct VocabularyCost {
  double embed_forward = 0, head_forward = 0, head_backward = 0, embed_backward = 0;  ///< E, S, T, G
  double sum = 0, broadcast = 0, gather = 0;  ///< exchanges, during which ranks go on
  bool operator==(VocabularyCost const&) const = default;
};

/// The cost of everything in a program, in one unit of time.
struct PipelineCosts {
  std::vector<StageCost> stages;  ///< one for each stage
  double message_bytes = 0;       ///< an activation or a gradient: a rank's tokens x hidden x bytes of a number
  double latency = 0;             ///< seconds until a message that is sent and asked for begins to arrive
  double bandwidth =
      std::numeric_limits<double>::infinity();  ///< bytes per second between two ranks, each direction and kind
  int slots_kept = 0;                           ///< microbatches in slots below this number recompute nothing
  std::vector<double> slot_bytes{};             ///< activations of one slot of each stage; empty: not known
  std::vector<double> reduce{};                 ///< the reduction of each stage's gradients over dp; empty: 0
  double send = 0, receive = 0;                 ///< the rank's own time to start a send, to post a receive
  double step = 0;                              ///< the optimizer's update on a rank
  /// Replaces `stages` where microbatches differ: the cost of microbatch m on stage s is at s * num_microbatches + m.
  /// Empty: they do not differ.
  std::vector<StageCost> microbatches{};
  /// For each stage the rank's time for a GATHER or REDUCE_SCATTER, its time for an OFFLOAD or RELOAD, and the bytes of
  /// the stage's whole weights. Empty: 0.
  std::vector<double> gather{}, offload{}, weight_bytes{};
  VocabularyCost vocabulary{};
  /// Replaces `vocabulary` where microbatches differ: the cost of microbatch m on a rank is at
  /// rank * num_microbatches + m. Empty: they do not differ.
  std::vector<VocabularyCost> vocabulary_microbatches{};
  /// The time of an OFFLOAD_F or RELOAD_F of each stage. The rank goes on meanwhile; its copies follow each other.
  /// Empty: 0.
  std::vector<double> swap{};

  /// Costs that are `cost` for every stage, and 0 for everything else.
  static PipelineCosts uniform(int num_stages, StageCost cost = {}) {
    return {.stages = std::vector<StageCost>(static_cast<std::size_t>(num_stages), cost)};
  }
};

/// The figures of one rank in a simulation.
struct RankResult {
  double busy = 0;               ///< seconds in F, B, I and W, and in E, S, T and G
  double other = 0;              ///< seconds in REDUCE, STEP, weight actions and starting messages
  double begin = 0;              ///< start of its first compute action
  double end = 0;                ///< end of its last compute action
  int peak_live = 0;             ///< most microbatches between F and the end of their backward, over all of its stages
  int slots = 0;                 ///< activation slots of all its stages, as allocated
  double peak_bytes = 0;         ///< slots x slot_bytes, over its stages
  double peak_weight_bytes = 0;  ///< most bytes of versions of weights that are there at a time
  double bytes_sent = 0;
};

/// The figures of a step.
struct Simulation {
  double makespan = 0;      ///< the end of the last compute action of all
  double step_time = 0;     ///< the end of the last action of all, with reductions and update
  double longest_span = 0;  ///< the longest time from the first to the last compute action of a rank (what the
                            ///< zero-bubble papers count)
  std::vector<RankResult> ranks;
  schedule::Timeline timeline;  ///< empty unless asked for

  double busy() const;  ///< sum over all ranks
  /// 1 - busy / (ranks x makespan): the share of the ranks' time that is lost.
  double bubble() const;
  /// The largest bubble of a rank between its own first and last compute action: 1 - busy / (end - begin).
  double span_bubble() const;
  int peak_live() const;      ///< the largest of a rank
  double peak_bytes() const;  ///< the largest of a rank
  double bytes_sent() const;  ///< sum over all ranks
};

/// Runs a complete, valid program. A message sets out when it is sent (and, with rendezvous, asked for) and the one
/// before it on its channel has arrived; it takes latency + message_bytes / bandwidth, and of the ranks' time
/// only `send` and `receive`. Throws base::Error when the program cannot run to its end (validate() says why). Time
/// linear in the number of actions; memory 8 bytes for each message beside the program.
Simulation simulate(schedule::Program const& program, PipelineCosts const& costs, schedule::Execution execution = {},
                    bool record = false);

}  // namespace p3d::plan
