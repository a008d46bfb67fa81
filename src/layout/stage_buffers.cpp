// SPDX-License-Identifier: Apache-2.0
// Lists of buffers, and their bytes: a list is walked once, and each of its rows is counted with the sizes of its
// layer. Example: 3 slots of a stage of 2 layers that recompute nothing count the row layer.qkv six times.

#include <p3d/layout/stage_buffers.hpp>

#include <algorithm>

namespace p3d::layout {

namespace {

/// Stage `stage` and the next one hand over on one rank, without a message.
bool hands_over(StageMap const& stages, int stage) {
  return stage >= 0 && !stages.is_last(stage) && stages.pipeline_rank(stage) == stages.pipeline_rank(stage + 1);
}

/// True when rows are told their positions: they do not follow from their numbers where documents begin anew, or where
/// a rank has some tokens of each sample.
bool needs_positions(config::Config const& c) { return c.data.reset_positions || c.data.pack || c.parallel.cp > 1; }

void add(TakenBuffers& to, BufferSet const& set, int index) {
  for (auto b : list(set)) to.push_back({b, index});
}
void add(TakenBuffers& to, std::initializer_list<Buffer> buffers, int index = 0) {
  for (auto b : buffers) to.push_back({b, index});
}

// The rows of groups, as the table has them: a new row belongs to its group at once.
#define P3D_IN_SET(group, name, ...) set.set(static_cast<std::size_t>(Buffer::group##_##name));
BufferSet scratch_of_layers() {
  BufferSet set;
  P3D_SCRATCH_BUFFERS(P3D_IN_SET)
  P3D_EXPERT_SCRATCH(P3D_IN_SET)
  P3D_ATTENTION_BUFFERS(P3D_IN_SET)
  return set;
}
BufferSet mtp_buffers() {
  BufferSet set;
  P3D_MTP_BUFFERS(P3D_IN_SET)
  return set;
}
BufferSet loss_buffers() {
  BufferSet set;
  P3D_LOSS_BUFFERS(P3D_IN_SET)
  return set;
}
/// The buffers of the head of a divided vocabulary: all of its group but the two of the embedding.
BufferSet head_buffers() {
  BufferSet set;
  P3D_VOCABULARY_BUFFERS(P3D_IN_SET)
  return set.reset(static_cast<std::size_t>(Buffer::vocabulary_tokens))
      .reset(static_cast<std::size_t>(Buffer::vocabulary_rows));
}
#undef P3D_IN_SET

void add(BufferBytes& to, Buffer buffer, std::int64_t bytes) {
  auto& sum = to.of[static_cast<std::size_t>(buffer)];
  sum = std::min(most_bytes, sum + bytes);
}

/// Adds the bytes of buffers [begin, end) of a stage, `times` times.
void count(BufferBytes& bytes, TakenBuffers const& taken, std::size_t begin, std::size_t end, config::Config const& c,
           BlockSizes const& sizes, std::int64_t first_layer, ElementBytes e, std::int64_t times) {
  auto of_this = sizes;
  int at = -1;
  for (auto i = begin; i < end; ++i) {
    auto const [buffer, index] = taken[i];
    if (of_layer(buffer) && index != at) of_this = layer_sizes(sizes, c, first_layer + (at = index));
    auto const each = bytes_of(buffer, of_layer(buffer) ? of_this : sizes, e);
    add(bytes, buffer, each > most_bytes / times ? most_bytes : each * times);
  }
}

}  // namespace

bool travels_narrow(config::Config const& c) {
  return c.parallel.pp > 1 && c.precision.pipeline == config::Precision::bf16 &&
         c.run.precision == config::Precision::fp32;
}

bool owns_gradient(StageMap const& stages, int stage) {
  return !hands_over(stages, stage) || !hands_over(stages, stage - 1);
}

SlotBuffers slot_buffers(config::Config const& c, StageMap const& stages, int stage, StageRecompute const& recompute) {
  SlotBuffers out;
  auto& taken = out.taken;
  int const layers = stages.num_layers(stage);
  bool const last = stages.is_last(stage);
  if (travels_narrow(c))
    add(taken, {Buffer::stage_narrow_input, Buffer::stage_narrow_output, Buffer::stage_narrow_gradient});
  out.saved_begin = taken.size();
  bool const output_waits = last || hands_over(stages, stage), given = hands_over(stages, stage - 1);
  auto const add_output = [&] {
    if (layers > 0 || !given) add(taken, {Buffer::stage_output});
  };
  for (int l = 0; l < layers; ++l) {
    auto const kept = recompute.input(l);
    if (kept == KeptInput::whole && !(l == 0 && given)) add(taken, {Buffer::stage_input}, l);
    if (kept == KeptInput::shared) add(taken, {Buffer::stage_input_share}, l);
  }
  if (output_waits) add_output();
  for (int l = 0; l < layers; ++l) add(taken, saved_buffers() & ~discarded_buffers(recompute, l), l);
  if (needs_positions(c)) add(taken, {Buffer::stage_positions});
  if (c.data.pack) add(taken, {Buffer::stage_documents});
  if (stages.has_embedding(stage)) add(taken, {Buffer::stage_tokens});
  if (last) add(taken, {Buffer::stage_final_norm_y, Buffer::stage_final_norm_mean, Buffer::stage_final_norm_scale});
  if (stages.has_head(stage)) add(taken, {Buffer::stage_targets, Buffer::stage_logits, Buffer::stage_lse});
  for (int k = 0; last && k < c.model.mtp.depth; ++k) {
    add(taken, saved_buffers(), layers + k);
    add(taken, mtp_buffers(), k);
  }
  out.saved_end = taken.size();
  if (!output_waits) add_output();
  // Without a norm in front, W reads the input itself, and the stage before may use its place for another microbatch.
  if (given && layers > 0 && !c.model.norms_before()) add(taken, {Buffer::stage_weight_input});
  if (owns_gradient(stages, stage)) add(taken, {Buffer::stage_gradient});
  return out;
}

TakenBuffers rebuilt_set(StageRecompute const& recompute) {
  TakenBuffers out;
  for (int l = 0; l < recompute.num_layers(); ++l) {
    if (recompute.input(l) != KeptInput::whole) add(out, {Buffer::stage_input}, l);
    add(out, rebuilt_buffers(recompute, l), l);
  }
  return out;
}

void RecomputeScratch::add(StageRecompute const& stage) {
  for (int l = 0; l < stage.num_layers(); l = stage.group_end(l)) {
    if (!stage.layer(l).any()) continue;
    int const end = stage.group_end(l);
    buffers |= discarded_buffers(stage, l);
    layers = std::max(layers, end - l);
    separate_norms = separate_norms || stage.layer(l).full;
    inputs = std::max(inputs, end - l - (stage.input(l) == KeptInput::whole ? 1 : 0));
  }
}

bool RecomputeScratch::one_norm() const { return has(buffers, Buffer::layer_norm1_y) && !separate_norms; }

TakenBuffers remade_buffers(RecomputeScratch const& recompute, bool sequence) {
  TakenBuffers out;
  auto const norms = set_of({Buffer::layer_norm1_y, Buffer::layer_norm2_y});
  for (int i = 0; i < recompute.layers; ++i) {
    add(out, recompute.one_norm() ? recompute.buffers & ~norms : recompute.buffers, i);
    if (recompute.one_norm() && !sequence) add(out, {Buffer::layer_norm1_y}, i);
  }
  for (int i = 0; i < recompute.inputs; ++i) add(out, {Buffer::stage_input}, i);
  return out;
}

TakenBuffers vocabulary_buffers() {
  TakenBuffers out;
  for (int slot = 0; slot < 4; ++slot) add(out, {Buffer::vocabulary_tokens, Buffer::vocabulary_rows}, slot);
  for (int slot = 4; slot < 6; ++slot) add(out, head_buffers(), slot);
  return out;
}

std::int64_t BufferBytes::total() const {
  std::int64_t sum = 0;
  for (auto bytes : of) sum = std::min(most_bytes, sum + bytes);
  return sum;
}

BufferBytes& BufferBytes::operator+=(BufferBytes const& other) {
  for (std::size_t b = 0; b < num_buffers; ++b) of[b] = std::min(most_bytes, of[b] + other.of[b]);
  return *this;
}

BufferBytes stage_bytes(config::Config const& c, StageMap const& stages, int stage, StageActivations const& sets,
                        ElementBytes e) {
  BufferBytes out;
  auto const sizes = block_sizes(c);
  auto const first_layer = stages.layers(stage).begin;
  auto const add = [&](int times, TakenBuffers const& taken) {
    if (times > 0) count(out, taken, 0, taken.size(), c, sizes, first_layer, e, times);
  };
  int const whole = std::min(sets.recompute.slots_kept, sets.slots);
  if (whole > 0) add(whole, slot_buffers(c, stages, stage, no_recompute(stages, stage)).taken);
  add(sets.slots - whole, slot_buffers(c, stages, stage, sets.recompute).taken);
  if (sets.rebuilt > 0) add(sets.rebuilt, rebuilt_set(sets.recompute));
  return out;
}

std::int64_t offloaded_bytes(config::Config const& c, StageMap const& stages, int stage, StageActivations const& sets,
                             ElementBytes e, bool gradients) {
  BufferBytes out;
  auto const sizes = block_sizes(c);
  auto const first_layer = stages.layers(stage).begin;
  auto const slot = slot_buffers(c, stages, stage, sets.recompute);
  count(out, slot.taken, slot.saved_begin, gradients ? slot.taken.size() : slot.saved_end, c, sizes, first_layer, e, 1);
  if (gradients && sets.rebuilt > 0) {
    auto const rebuilt = rebuilt_set(sets.recompute);
    count(out, rebuilt, 0, rebuilt.size(), c, sizes, first_layer, e, 1);
  }
  return out.total();
}

std::int64_t offloaded_file_bytes(config::Config const& c, StageMap const& stages, int stage,
                                  StageActivations const& sets, ElementBytes e) {
  if (sets.offload_places == 0) return 0;
  auto const each = offloaded_bytes(c, stages, stage, sets, e, sets.offload_gradients);
  return sets.offload_places * base::padded(each, base::swap_alignment);
}

BufferBytes workspace_bytes(config::Config const& c, RecomputeScratch const& recompute, bool with_loss, ElementBytes e,
                            bool on_device) {
  BufferBytes out;
  auto const sizes = block_sizes(c, {}, on_device);
  auto taken = remade_buffers(recompute, sizes.sequence);
  add(taken, scratch_of_layers(), 0);
  if (with_loss) add(taken, loss_buffers(), 0);
  for (auto const& each : taken) add(out, each.buffer, bytes_of(each.buffer, sizes, e));
  return out;
}

BufferBytes vocabulary_bytes(config::Config const& c, ElementBytes e) {
  BufferBytes out;
  auto const sizes = block_sizes(c);
  for (auto const& taken : vocabulary_buffers()) add(out, taken.buffer, bytes_of(taken.buffer, sizes, e));
  return out;
}

}  // namespace p3d::layout
