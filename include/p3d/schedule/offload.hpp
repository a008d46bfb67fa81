// SPDX-License-Identifier: Apache-2.0
#pragma once
// Activations wait for their backward in a slot, or offloaded, outside the memory that layers read.
//
// The unit is what a slot keeps of one microbatch of one stage.
//
//   action     what it does                                            who waits for it
//   OFFLOAD_F  starts to copy the slot's activations out; the slot is  what takes the slot next, RECV_F or F; RECV_B,
//              then free for another microbatch                        where the gradient is copied out too
//   RELOAD_F   starts to copy them back, into any slot of the stage,   what reads them: B, I, W of the stage, and B, I
//              behind a copy out of it that is still under way         of stages after it in a row on the rank
//
// Between F and B (or I), all that F saved is offloaded, but not the buffers of messages: the output, unless it is the
// next stage's input on the rank, and the gradient. A RELOAD_F before B or I therefore waits for no send. Later
// (between I and W, or where stages before it in the row have yet to use the gradient) the whole slot is offloaded,
// with the gradients in it; a RELOAD_F then waits for the sends that still read its slot.

#include <p3d/schedule/schedule.hpp>

#include <vector>

namespace p3d::schedule {

/// A pass over a complete training program: on stages with more than `resident` slots a microbatch is offloaded when
/// the next `resident` or more others that its stage works on do not include it. A slot is taken when the microbatch
/// before the `resident` - 1 before it is done: with 2, one is computed while the other is on its way. Slots are
/// numbered anew; receives are posted later, where their slot is taken later. So each stage has `resident` slots, more
/// where the order of messages asks for an early receive. If the ranks would then wait in a circle (`execution`), it
/// tries one more for all stages, and so on, and then fewer for each; at the end no microbatch is offloaded.
/// (looped_bfs on few ranks: a chunk is far ahead of the next one, and what it sends stays in slots.) Where a rank
/// would wait until the slot of an activation that it is to receive is written out (Execution::waits_inside), and where
/// it takes fewer slots, such a receive is posted just before its use.
void offload_activations(Program& program, int resident, Execution execution = {});

/// The most that a stage has offloaded.
struct OffloadedActivations {
  int places = 0;               ///< microbatches at a time, at the most
  bool with_gradients = false;  ///< some of them after their B or I
  bool operator==(OffloadedActivations const&) const = default;
};
/// The most that each stage of a program has offloaded.
std::vector<OffloadedActivations> offloaded_activations(Program const& program);

/// Marks the actions of a rank that are an OFFLOAD_F or RELOAD_F after their microbatch's B or I on the stage.
std::vector<bool> moves_gradients(Program const& program, int rank);

}  // namespace p3d::schedule
