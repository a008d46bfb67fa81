// SPDX-License-Identifier: Apache-2.0
#pragma once
// The buffers of the table (buffers.hpp) that a stage and its rank take, in the order in which their memory lies, and
// their bytes. Room model takes these lists from an arena, room plan adds their bytes up: the same rows, so the
// same bytes.

#include <p3d/layout/buffers.hpp>
#include <p3d/layout/stages.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace p3d::layout {

/// A buffer of one set of several that are alike: `index` is the layer of a stage, from 0 and with those of multi-token
/// prediction behind the others, the number of a block of these, the number of a recomputed set, or the slot of a part
/// of the vocabulary.
struct TakenBuffer {
  Buffer buffer;
  int index = 0;
};
using TakenBuffers = std::vector<TakenBuffer>;

/// True when activations go from stage to stage in fewer bits than they have.
bool travels_narrow(config::Config const& config);
/// True when a stage has its own buffer for its gradient. Another stage works in the buffer of the stage behind it on
/// the same rank.
bool owns_gradient(StageMap const& stages, int stage);

/// The buffers of an activation slot. Those numbered [saved_begin, saved_end) are what forward saves for backward;
/// those from saved_begin on are offloaded with a microbatch that is offloaded between I and W.
struct SlotBuffers {
  TakenBuffers taken;
  std::size_t saved_begin = 0, saved_end = 0;
};
SlotBuffers slot_buffers(config::Config const& config, StageMap const& stages, int stage,
                         StageRecompute const& recompute);
/// The buffers of a set that the input part of a split backward recomputes.
TakenBuffers rebuilt_set(StageRecompute const& recompute);

/// The scratch that discarded activations need on a rank.
struct RecomputeScratch {
  BufferSet buffers;            ///< buffers that some layer discards
  int layers = 0;               ///< number of sets of these: as many as the largest group of full layers has, or one
  bool separate_norms = false;  ///< true: both norms' outputs are there at a time, in full layers
  int inputs = 0;               ///< inputs of full layers of one group that no slot keeps whole

  /// Adds the needs of one more stage of the rank.
  void add(StageRecompute const& stage);
  /// True when both norms' outputs are recomputed in one buffer, one after the other, as no full layer needs them at a
  /// time. With sequence parallelism they are recomputed where they are gathered.
  bool one_norm() const;
  bool operator==(RecomputeScratch const&) const = default;
};
/// The sets in which forward leaves what it discards, and backward recomputes it, and the inputs of their layers.
/// `sequence`: BlockSizes::sequence.
TakenBuffers remade_buffers(RecomputeScratch const& recompute, bool sequence);
/// The slots of a rank's part of a divided vocabulary: two of E, two of G, two of S and T.
TakenBuffers vocabulary_buffers();

/// Bytes of each buffer of the table.
struct BufferBytes {
  std::array<std::int64_t, num_buffers> of{};
  std::int64_t total() const;
  BufferBytes& operator+=(BufferBytes const& other);
};

/// Bytes of all slots and recomputed sets of a stage.
BufferBytes stage_bytes(config::Config const& config, StageMap const& stages, int stage, StageActivations const& sets,
                        ElementBytes e);
/// Bytes of a microbatch of a stage that is offloaded; `gradients`: between I and W.
std::int64_t offloaded_bytes(config::Config const& config, StageMap const& stages, int stage,
                             StageActivations const& sets, ElementBytes e, bool gradients);
/// Bytes of a swap file with a place for every microbatch of a stage that is offloaded at a time.
std::int64_t offloaded_file_bytes(config::Config const& config, StageMap const& stages, int stage,
                                  StageActivations const& sets, ElementBytes e);
/// Bytes of the scratch that all stages of a rank share. `with_loss`: the rank computes losses; `on_device` as in
/// BlockSizes.
BufferBytes workspace_bytes(config::Config const& config, RecomputeScratch const& recompute, bool with_loss,
                            ElementBytes e, bool on_device);
/// Bytes of all slots of a rank's part of the vocabulary.
BufferBytes vocabulary_bytes(config::Config const& config, ElementBytes e);

}  // namespace p3d::layout
