// SPDX-License-Identifier: Apache-2.0
// The list of passes. Generators write compute actions only; everything else in a program was added by a row of this
// list, from the top to the bottom.

#include <p3d/schedule/passes.hpp>

#include <p3d/schedule/offload.hpp>

#include <fmt/format.h>

#include <utility>

#include "channels.hpp"

namespace p3d::schedule {

struct PassNotes {
  std::optional<ReceiveTimes> receives;
};

namespace {

using Options = PassOptions;

constexpr ProgramPass pass_list[] = {
    {"vocabulary", "adds the actions of a divided vocabulary (E, S, T, G) and orders each rank's actions anew",
     [](Options const& o) { return !o.is_complete && o.vocabulary.has_value(); },
     [](Program& p, Options const& o, PassNotes&) {
       divide_vocabulary(p, o.vocabulary->times, o.vocabulary->order, 1, o.vocabulary->tied);
     }},
    {"pairs ahead", "puts a forward before the backward beside it, so that the two can interleave",
     [](Options const& o) { return !o.is_complete && o.exchange_pairs; },
     [](Program& p, Options const&, PassNotes&) { exchange_pairs(p); }},
    {"deferral", "splits the last stage's backwards and puts some of their weight parts (W) off",
     [](Options const& o) { return !o.is_complete && o.weight_deferral_limit > 0; },
     [](Program& p, Options const& o, PassNotes&) { defer_weight_gradients(p, o.weight_deferral_limit); }},
    {"refinement", "cuts stages into stages of few layers, whose weights can come and go alone",
     [](Options const& o) { return !o.is_complete && !o.parts.empty(); },
     [](Program& p, Options const& o, PassNotes&) {
       p = refine(p, o.parts);
       p.tied = o.tied;
     }},
    {"slots", "gives each microbatch of a stage an activation slot, from its first to its last action",
     [](Options const& o) { return !o.is_complete; },
     [](Program& p, Options const& o, PassNotes& notes) {
       require_in_range(p);
       assign_slots(p, o.slot_lookahead, notes.receives.emplace(p));
     }},
    {"messages", "adds sends behind what makes the data, and receives ahead of what reads it (SEND, RECV)",
     [](Options const& o) { return !o.is_complete; },
     [](Program& p, Options const& o, PassNotes& notes) {
       add_messages(p, o.receives_ahead, any_number, notes.receives.value());
     }},
    {"reductions", "adds the sum of each stage's gradients over replicas (REDUCE), and the update (STEP)",
     [](Options const& o) { return !o.is_complete; },
     [](Program& p, Options const& o, PassNotes&) { add_reductions(p, o.workers); }},
    {"pairs", "moves the messages between a forward and the backward beside it away, so that they interleave",
     [](Options const& o) { return o.close_pairs; }, [](Program& p, Options const&, PassNotes&) { close_pairs(p); }},
    {"offload", "moves activations of microbatches that are not needed soon out of their slots (OFFLOAD_F, RELOAD_F)",
     [](Options const& o) { return o.resident > 0; },
     [](Program& p, Options const& o, PassNotes&) { offload_activations(p, o.resident, o.execution); }},
    {"weights", "makes weights whole for what reads them (GATHER, RELEASE, REDUCE_SCATTER; or RELOAD, OFFLOAD)",
     [](Options const& o) { return o.weights.has_value(); },
     [](Program& p, Options const& o, PassNotes&) { shard_weights(p, *o.weights); }},
};

}  // namespace

std::span<ProgramPass const> passes() { return pass_list; }

std::string passes_text() {
  std::string out;
  for (auto const& pass : pass_list) out += fmt::format("{:<12} {}\n", pass.name, pass.description);
  return out;
}

Program apply_passes(Program program, PassOptions const& options) {
  PassNotes notes;
  for (auto const& pass : pass_list)
    if (pass.runs(options)) pass.run(program, options, notes);
  return program;
}

Program complete(Program compute, int receives_ahead, int slot_lookahead) {
  return apply_passes(std::move(compute), {.receives_ahead = receives_ahead, .slot_lookahead = slot_lookahead});
}

}  // namespace p3d::schedule
