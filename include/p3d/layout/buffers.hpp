// SPDX-License-Identifier: Apache-2.0
#pragma once
// The buffers of a stage as a table, one row a buffer. What a layer allocates, keeps, discards, recomputes and
// offloads, what a rank needs of memory, and what `p3d --check --verbose` lists all follow from these rows; room model
// makes the view of each.
//
// A row is (group, name, form, element, shape, class, text):
//   group    the struct of views that has it
//   form     vector or matrix
//   element  the type of its elements (Element)
//   shape    for BlockSizes s and ElementBytes e: rows(s, c) is [n, c], tokens(s, c) [N, c], fixed(r, c) [r, c]
//   class    what becomes of it between forward and backward (BufferClass)
// Rows stand in the order in which their memory lies. A buffer that a layer has no use for has no elements.
// Example: with memory.recompute = ["activation"] forward discards layer.act alone, the only row of class activation.

#include <p3d/base/memory_sizes.hpp>
#include <p3d/layout/block_sizes.hpp>
#include <p3d/layout/recompute.hpp>

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

/// Written by forward for backward. The input and the output of a layer are rows of the stage.
#define P3D_LAYER_BUFFERS(ROW)                                                                                         \
  ROW(layer, norm1_y, matrix, storage, rows(s, s.normed()), norm, "output of the first norm")                          \
  ROW(layer, norm1_mean, vector, sums, rows(s, s.norms_before&& s.layernorm ? 1 : 0), statistics,                      \
      "means of the first norm")                                                                                       \
  ROW(layer, norm1_scale, vector, sums, rows(s, s.norms_before ? 1 : 0), statistics,                                   \
      "1 / deviation of the first norm")                                                                               \
  ROW(layer, qkv, matrix, storage, exchanged_qkv(s), layer, "queries, keys and values behind norm and rotation")       \
  ROW(layer, qk, matrix, storage, tokens(s, s.qk()), statistics, "queries and keys before their norm")                 \
  ROW(layer, qk_scale, matrix, sums, tokens(s, s.qk_norms), statistics, "1 / root mean square of queries and keys")    \
  ROW(layer, latent, matrix, storage, rows(s, s.mla.latent()), layer, "latents of queries and of keys and values")     \
  ROW(layer, raw_latent, matrix, storage, rows(s, s.mla.latent()), layer, "latents before norms, then their gradient") \
  ROW(layer, latent_scale, matrix, sums, rows(s, s.mla.norms()), statistics, "1 / root mean square of latents")        \
  ROW(layer, heads, matrix, storage, tokens(s, s.heads* s.value_dim), attention, "output of attention")                \
  ROW(layer, lse, vector, sums, fixed(s.lse_elements, 1), attention_sums, "log-sum-exp of attention's scores")         \
  ROW(layer, branch1, matrix, storage, rows(s, s.branch()), branch_sum, "attention branch before its norm")            \
  ROW(layer, post_norm1_mean, vector, sums, rows(s, s.norms_after&& s.layernorm ? 1 : 0), branch_sum,                  \
      "means of the attention branch")                                                                                 \
  ROW(layer, post_norm1_scale, vector, sums, rows(s, s.norms_after ? 1 : 0), branch_sum,                               \
      "1 / deviation of the attention branch")                                                                         \
  ROW(layer, mid, matrix, storage, rows(s, s.hidden), branch_sum, "sum of input and attention branch")                 \
  ROW(layer, norm2_y, matrix, storage, rows(s, s.normed()), norm, "output of the second norm")                         \
  ROW(layer, norm2_mean, vector, sums, rows(s, s.norms_before&& s.layernorm ? 1 : 0), statistics,                      \
      "means of the second norm")                                                                                      \
  ROW(layer, norm2_scale, vector, sums, rows(s, s.norms_before ? 1 : 0), statistics,                                   \
      "1 / deviation of the second norm")                                                                              \
  ROW(layer, up, matrix, storage, tokens(s, s.up()), layer, "input of the activation function")                        \
  ROW(layer, act, matrix, storage, tokens(s, s.ffn), activation, "output of the activation function")                  \
  ROW(layer, branch2, matrix, storage, rows(s, s.branch()), branch_sum, "feed-forward branch before its norm")         \
  ROW(layer, post_norm2_mean, vector, sums, rows(s, s.norms_after&& s.layernorm ? 1 : 0), branch_sum,                  \
      "means of the feed-forward branch")                                                                              \
  ROW(layer, post_norm2_scale, vector, sums, rows(s, s.norms_after ? 1 : 0), branch_sum,                               \
      "1 / deviation of the feed-forward branch")

/// Written by forward for backward in a layer with routed experts.
#define P3D_EXPERT_BUFFERS(ROW)                                                                                       \
  ROW(moe, logits, matrix, sums, rows(s, s.moe.experts), statistics, "logits of the router")                          \
  ROW(moe, scores, matrix, sums, rows(s, s.moe.experts), statistics, "scores of the router")                          \
  ROW(moe, lse, vector, sums, rows(s, if_experts(s, 1)), statistics, "log-sum-exp of the router's logits")            \
  ROW(moe, total, vector, sums, rows(s, if_experts(s, 1)), statistics, "sums of the chosen scores")                   \
  ROW(moe, choice, matrix, int32, rows(s, s.moe.top_k), statistics, "chosen experts")                                 \
  ROW(moe, gates, matrix, sums, rows(s, s.moe.top_k), statistics, "gates of the chosen experts")                      \
  ROW(moe, slots, vector, int32, choices(s), statistics, "choices in the order (expert, token, choice)")              \
  ROW(moe, place, matrix, int32, places(s), statistics, "places of the choices in that order")                        \
  ROW(moe, balance, matrix, sums, fixed(s.moe.balances ? s.moe.samples : 0, s.moe.experts), statistics,               \
      "factors of the loss of balance")                                                                               \
  ROW(moe, x, matrix, storage, fixed(s.moe.most_rows, s.hidden), statistics, "rows of the rank's experts")            \
  ROW(moe, up, matrix, storage, fixed(s.moe.most_rows, s.expert_up()), statistics,                                    \
      "input of the experts' activation function")                                                                    \
  ROW(moe, row_gates, vector, sums, fixed(s.moe.most_rows, 1), statistics, "gates of the rows of the rank's experts") \
  ROW(moe, shared_gates, vector, sums, tokens(s, s.moe.gates_shared ? 1 : 0), statistics, "gates of shared experts")

/// Scratch that all layers of all stages of a rank share.
#define P3D_SCRATCH_BUFFERS(ROW)                                                                                     \
  ROW(scratch, branch, matrix, storage, tokens(s, s.hidden), scratch, "a residual branch, or its gradient")          \
  ROW(scratch, dnorm, matrix, storage, tokens(s, s.sequence ? 0 : s.hidden), scratch, "gradient of a norm's output") \
  ROW(scratch, gathered, matrix, storage, tokens(s, s.sequence ? s.hidden : 0), scratch,                             \
      "gathered input of a column-parallel linear")                                                                  \
  ROW(scratch, dact, matrix, storage, tokens(s, s.ffn), scratch, "gradient of act")                                  \
  ROW(scratch, dup, matrix, storage, tokens(s, s.up()), scratch, "gradient of up")                                   \
  ROW(scratch, dheads, matrix, storage, tokens(s, s.heads* s.value_dim), scratch, "gradient of heads")               \
  ROW(scratch, dqkv, matrix, storage, exchanged_qkv(s), scratch, "gradient of qkv")                                  \
  ROW(scratch, qk_sums, matrix, sums, tokens(s, s.qk_sums), scratch, "sums over tp for norms of queries and keys")   \
  ROW(scratch, dlatent, matrix, storage, tokens(s, s.mla.latent()), scratch, "gradient of latents")                  \
  ROW(scratch, gathered_latent, matrix, storage, tokens(s, s.sequence ? s.mla.latent() : 0), scratch,                \
      "gathered latents")                                                                                            \
  ROW(scratch, kv_both, matrix, storage, tokens(s, s.mla.both), scratch,                                             \
      "keys without positions and values, head by head, or their gradient")

/// Scratch of routed experts. Own rows are those of the rank's tokens, received ones those of other ranks' tokens too;
/// where all ranks get all tokens, there is a row for each of them.
#define P3D_EXPERT_SCRATCH(ROW)                                                                                       \
  ROW(moe_scratch, offsets, vector, int32, fixed(if_experts(s, s.moe.experts + 1), 1), scratch,                       \
      "where each expert's choices begin")                                                                            \
  ROW(moe_scratch, workspace, vector, int32, sort_space(s), scratch, "counts of the sort by expert")                  \
  ROW(moe_scratch, choices, matrix, int32, seen(s, s.moe.top_k), scratch,                                             \
      "choices of the rank's experts, counted from its first one")                                                    \
  ROW(moe_scratch, places, matrix, int32, copies(s), scratch, "places of the choices among all copies")               \
  ROW(moe_scratch, order, vector, int32, sent(s, s.moe.most_rows, 1), scratch, "the experts' order of received rows") \
  ROW(moe_scratch, back, vector, int32, sent(s, s.moe.most_rows, 1), scratch, "the way back of received rows")        \
  ROW(moe_scratch, own, matrix, storage, sent(s, own_rows(s), s.hidden), scratch, "own rows")                         \
  ROW(moe_scratch, received, matrix, storage, exchanged(s, s.moe.most_rows, s.hidden, 1), scratch, "received rows")   \
  ROW(moe_scratch, partial, matrix, storage, seen(s, s.hidden), scratch, "what the rank's experts add to each token") \
  ROW(moe_scratch, returned, matrix, storage, exchanged(s, s.moe.copies* own_rows(s), s.hidden, 1), scratch,          \
      "rows that came back")                                                                                          \
  ROW(moe_scratch, received_gates, vector, sums, exchanged(s, s.moe.most_rows, 1, s.moe.top_k), scratch,              \
      "gates of received rows")                                                                                       \
  ROW(moe_scratch, partial_gates, vector, sums, each_seen_choice(s), scratch,                                         \
      "gradients of the gates of the rank's experts")                                                                 \
  ROW(moe_scratch, returned_gates, vector, sums, exchanged(s, s.moe.copies* own_rows(s), 1, s.moe.top_k), scratch,    \
      "gates that came back")                                                                                         \
  ROW(moe_scratch, own_gates, vector, sums, sent(s, own_rows(s), 1), scratch, "gates of own rows")                    \
  ROW(moe_scratch, rows, matrix, storage, fixed(s.moe.most_rows, s.hidden), scratch,                                  \
      "outputs of experts, or their gradients")                                                                       \
  ROW(moe_scratch, act, matrix, storage, fixed(s.moe.most_rows, s.moe.ffn), scratch,                                  \
      "output of the experts' activation function")                                                                   \
  ROW(moe_scratch, dact, matrix, storage, fixed(s.moe.most_rows, s.moe.ffn), scratch, "gradient of act")              \
  ROW(moe_scratch, dup, matrix, storage, fixed(s.moe.most_rows, s.expert_up()), scratch, "gradient of up")            \
  ROW(moe_scratch, row_gates, vector, sums, fixed(s.moe.most_rows, 1), scratch, "gradients of row_gates")             \
  ROW(moe_scratch, d_gates, matrix, sums, rows(s, s.moe.top_k), scratch, "gradients of gates")                        \
  ROW(moe_scratch, d_logits, matrix, sums, rows(s, s.moe.experts), scratch, "gradient of logits")                     \
  ROW(moe_scratch, narrow_logits, matrix, storage, rows(s, e.narrow() ? s.moe.experts : 0), scratch,                  \
      "the gradient of logits in 16 bits")                                                                            \
  ROW(moe_scratch, bias, vector, sums, fixed(e.narrow() ? s.moe.experts : 0, 1), scratch,                             \
      "bias of the router where weights have 16 bits")                                                                \
  ROW(moe_scratch, d_shared, vector, sums, tokens(s, s.moe.gates_shared ? 1 : 0), scratch,                            \
      "gradients of shared_gates")                                                                                    \
  ROW(moe_scratch, narrow_shared, vector, storage, tokens(s, e.narrow() && s.moe.gates_shared ? 1 : 0), scratch,      \
      "the gradients of shared_gates in 16 bits")                                                                     \
  ROW(moe_scratch, position, matrix, int32, rows(s, s.moe.drops ? s.moe.top_k : 0), scratch,                          \
      "positions in the queues of experts")                                                                           \
  ROW(moe_scratch, kept, matrix, int32, rows(s, s.moe.drops ? s.moe.top_k : 0), scratch,                              \
      "choices within the capacity")                                                                                  \
  ROW(moe_scratch, counts, matrix, int64, fixed(s.moe.drops || s.moe.balances ? s.moe.samples : 0, s.moe.experts),    \
      scratch, "choices of each expert by sample")                                                                    \
  ROW(moe_scratch, jittered, matrix, storage, rows(s, s.moe.jitters ? s.hidden : 0), scratch,                         \
      "input of the router with noise")                                                                               \
  ROW(moe_scratch, dx, matrix, storage, rows(s, if_experts(s, s.hidden)), scratch, "gradient of the experts' input")

/// Scratch of attention (parallel/context.hpp): for scores, a ring or an all-gather of keys, and an all-to-all.
#define P3D_ATTENTION_BUFFERS(ROW)                                                                                    \
  ROW(attention, delta, vector, sums, fixed(s.attention.rows* s.attention.heads, 1), scratch,                         \
      "sums of output times gradient")                                                                                \
  ROW(attention, scores, vector, byte, attention_scores(s, e), scratch, "blocks of scores on devices")                \
  ROW(attention, blocks, vector, storage, key_blocks(s), scratch,                                                     \
      "keys and values, or latents, of two places or of all")                                                         \
  ROW(attention, block_gradients, vector, sums, key_gradients(s), scratch,                                            \
      "gradients of keys and values, or of latents, that travel")                                                     \
  ROW(attention, latents, vector, storage, latents(s), scratch, "latents of the place, which travel")                 \
  ROW(attention, latent_gradients, vector, sums, latents(s), scratch, "gradients of the latents of the place")        \
  ROW(attention, expanded, vector, storage, expanded(s), scratch, "keys and values made of another place's latents")  \
  ROW(attention, expanded_gradients, vector, sums, expanded(s), scratch, "their gradients")                           \
  ROW(attention, wide_queries, vector, sums, ring(s, e.narrow() ? s.attention.sum_elements() : 0), scratch,           \
      "sums over blocks of keys, where results have 16 bits")                                                         \
  ROW(attention, wide_keys, vector, sums, ring(s, e.narrow() ? s.attention.block_elements() : 0), scratch,            \
      "sums for keys and values, where results have 16 bits")                                                         \
  ROW(attention, sent, vector, storage, all_to_all(s, s.attention.exchanged_elements()), scratch,                     \
      "what an all-to-all sends")                                                                                     \
  ROW(attention, received, vector, storage, all_to_all(s, s.attention.exchanged_elements()), scratch,                 \
      "what an all-to-all receives")                                                                                  \
  ROW(attention, place_out, vector, storage, all_to_all(s, s.attention.out_elements()), scratch,                      \
      "outputs, or their gradients, of some heads")                                                                   \
  ROW(attention, place_qkv, vector, storage, all_to_all(s, s.attention.qkv_elements()), scratch,                      \
      "gradients of qkv of some heads")                                                                               \
  ROW(attention, sent_delta, vector, sums, all_to_all(s, s.attention.lse_elements()), scratch, "delta, sent")         \
  ROW(attention, received_delta, vector, sums, all_to_all(s, s.attention.lse_elements()), scratch, "delta, received") \
  ROW(attention, place_delta, vector, sums, all_to_all(s, s.attention.place_rows() * s.attention.place_heads),        \
      scratch, "delta of some heads")

/// The buffers of a slot of a stage, beside those of its layers. `input` and `input_share` belong to each layer.
#define P3D_STAGE_BUFFERS(ROW)                                                                                     \
  ROW(stage, narrow_input, matrix, bfloat16, rows(s, s.hidden), message, "message of the input")                   \
  ROW(stage, narrow_output, matrix, bfloat16, rows(s, s.hidden), message, "message of the output")                 \
  ROW(stage, narrow_gradient, matrix, bfloat16, rows(s, s.hidden), message, "message of the gradient, in and out") \
  ROW(stage, input, matrix, storage, rows(s, s.hidden), stage, "input of a layer")                                 \
  ROW(stage, input_share, vector, storage, input_share(s), stage, "this rank's part of the input of a layer")      \
  ROW(stage, output, matrix, storage, rows(s, s.hidden), stage, "output of the stage")                             \
  ROW(stage, positions, vector, int32, tokens(s, 1), stage, "positions of tokens")                                 \
  ROW(stage, documents, vector, int32, fixed(s.documents, 1), stage, "first tokens of documents")                  \
  ROW(stage, tokens, vector, int32, tokens(s, 1), stage, "tokens")                                                 \
  ROW(stage, final_norm_y, matrix, storage, rows(s, s.hidden), stage, "output of the final norm")                  \
  ROW(stage, final_norm_mean, vector, sums, rows(s, s.layernorm ? 1 : 0), stage, "means of the final norm")        \
  ROW(stage, final_norm_scale, vector, sums, rows(s, 1), stage, "1 / deviation of the final norm")                 \
  ROW(stage, targets, vector, int32, tokens(s, 1), stage, "tokens to predict")                                     \
  ROW(stage, logits, matrix, storage, tokens(s, s.vocab), stage, "logits, then their gradient")                    \
  ROW(stage, lse, vector, sums, tokens(s, 1), stage, "log-sum-exp of the logits")                                  \
  ROW(stage, weight_input, matrix, storage, rows(s, s.hidden), stage,                                              \
      "input that weight gradients read, of the stage before")                                                     \
  ROW(stage, gradient, matrix, storage, rows(s, s.hidden), message, "gradient of the output, then of the input")

/// The buffers of a block of multi-token prediction in a slot of the last stage, beside those of its layer.
#define P3D_MTP_BUFFERS(ROW)                                                                                          \
  ROW(mtp, embedded, matrix, storage, rows(s, s.hidden), stage, "embeddings of tokens ahead, then their gradient")    \
  ROW(mtp, enorm_y, matrix, storage, rows(s, s.hidden), stage, "output of the norm of embeddings")                    \
  ROW(mtp, enorm_mean, vector, sums, rows(s, s.layernorm ? 1 : 0), stage, "means of embeddings")                      \
  ROW(mtp, enorm_scale, vector, sums, rows(s, 1), stage, "1 / deviation of embeddings")                               \
  ROW(mtp, hnorm_y, matrix, storage, rows(s, s.hidden), stage, "output of the norm of what the block before it made") \
  ROW(mtp, hnorm_mean, vector, sums, rows(s, s.layernorm ? 1 : 0), stage, "means of what the block before it made")   \
  ROW(mtp, hnorm_scale, vector, sums, rows(s, 1), stage, "1 / deviation of what the block before it made")            \
  ROW(mtp, input, matrix, storage, rows(s, s.hidden), stage, "input of the block's layer")                            \
  ROW(mtp, output, matrix, storage, rows(s, s.hidden), stage, "output of the block's layer, then gradients")          \
  ROW(mtp, final_norm_y, matrix, storage, rows(s, s.hidden), stage, "output of the block's final norm")               \
  ROW(mtp, final_norm_mean, vector, sums, rows(s, s.layernorm ? 1 : 0), stage, "means of the block's final norm")     \
  ROW(mtp, final_norm_scale, vector, sums, rows(s, 1), stage, "1 / deviation of the block's final norm")              \
  ROW(mtp, targets, vector, int32, tokens(s, 1), stage, "tokens that the block is to predict")                        \
  ROW(mtp, logits, matrix, storage, tokens(s, s.vocab), stage, "logits of the block, then their gradient")            \
  ROW(mtp, lse, vector, sums, tokens(s, 1), stage, "log-sum-exp of the block's logits")

/// Scratch of the loss.
#define P3D_LOSS_BUFFERS(ROW)                                                       \
  ROW(loss, dfinal, matrix, storage, tokens(s, s.sequence ? 0 : s.hidden), scratch, \
      "gradient of the final norm's output")                                        \
  ROW(loss, row_max, vector, sums, tokens(s, 1), scratch, "largest logits")         \
  ROW(loss, sums, matrix, sums, pairs(s), scratch, "sums of exponentials and logits of targets")

/// The buffers of a rank's part of the embedding and of the output layer where the vocabulary is divided over the
/// pipeline.
#define P3D_VOCABULARY_BUFFERS(ROW)                                                                                  \
  ROW(vocabulary, tokens, vector, int32, tokens(s, 1), vocabulary, "tokens")                                         \
  ROW(vocabulary, rows, matrix, storage, rows(s, s.hidden), vocabulary, "sum of embeddings, or its gradient")        \
  ROW(vocabulary, targets, vector, int32, tokens(s, 1), vocabulary, "tokens to predict")                             \
  ROW(vocabulary, input, matrix, storage, rows(s, s.hidden), vocabulary, "input of the output layer")                \
  ROW(vocabulary, gradient, matrix, storage, rows(s, s.hidden), vocabulary, "gradient of that input")                \
  ROW(vocabulary, logits, matrix, storage, tokens(s, s.vocab), vocabulary, "logits, then their gradient")            \
  ROW(vocabulary, parts, vector, sums, loss_parts(s), vocabulary, "maxima, sums and logits of targets of all ranks") \
  ROW(vocabulary, lse, vector, sums, tokens(s, 1), vocabulary, "log-sum-exp of the logits")

/// The rows of all groups, in the order of Buffer.
#define P3D_BUFFERS(ROW)     \
  P3D_LAYER_BUFFERS(ROW)     \
  P3D_EXPERT_BUFFERS(ROW)    \
  P3D_SCRATCH_BUFFERS(ROW)   \
  P3D_EXPERT_SCRATCH(ROW)    \
  P3D_ATTENTION_BUFFERS(ROW) \
  P3D_STAGE_BUFFERS(ROW)     \
  P3D_MTP_BUFFERS(ROW)       \
  P3D_LOSS_BUFFERS(ROW)      \
  P3D_VOCABULARY_BUFFERS(ROW)

namespace p3d::layout {

#define P3D_BUFFER(group, name, ...) group##_##name,
/// A buffer of the table: Buffer::layer_qkv.
enum class Buffer : std::uint8_t { P3D_BUFFERS(P3D_BUFFER) };
#undef P3D_BUFFER
#define P3D_BUFFER(...) +1
inline constexpr std::size_t num_buffers = 0 P3D_BUFFERS(P3D_BUFFER);
#undef P3D_BUFFER

/// A type of elements. Storage and sums are those of the run's precision (device/precision.hpp: Storage, Accumulate).
enum class Element : std::uint8_t { storage, sums, bfloat16, int32, int64, byte };
/// Bytes of an element of the types that a precision chooses.
struct ElementBytes {
  std::int64_t storage = 4, sums = 4;
  /// Sums have a wider type than what is stored.
  bool narrow() const { return storage < sums; }
  std::int64_t of(Element element) const;
};

/// The lifetime of a buffer between forward and backward.
enum class BufferClass : std::uint8_t {
  norm,            ///< kept, unless memory.recompute lists "norm"
  attention,       ///< kept, unless memory.recompute lists "attention"
  attention_sums,  ///< kept as class attention is; the weight part of a split backward does not read it
  activation,      ///< kept, unless memory.recompute lists "activation"
  layer,           ///< kept, unless the whole layer is recomputed
  statistics,      ///< kept as class layer is; the weight part of a split backward does not read it
  branch_sum,  ///< results of sums over tp: kept as class layer is, and also where memory.recompute_communication is
               ///< false
  stage,       ///< kept, for every microbatch in flight; of a layer's inputs those that KeptInput says
  message,     ///< filled and read by messages, for every microbatch in flight
  vocabulary,  ///< used by the exchanges of a vocabulary that is divided over the pipeline
  scratch      ///< used within one action
};

/// A row of the table, but for its shape.
struct BufferRow {
  char const* name;  ///< "layer.qkv"
  Element element;
  BufferClass of_class;
  char const* text;  ///< the content in words
};
#define P3D_BUFFER(group, name, form, element, shape, of_class, text) \
  BufferRow{#group "." #name, Element::element, BufferClass::of_class, text},
inline constexpr std::array<BufferRow, num_buffers> buffer_table{{P3D_BUFFERS(P3D_BUFFER)}};
#undef P3D_BUFFER
constexpr BufferRow const& row_of(Buffer buffer) { return buffer_table[static_cast<std::size_t>(buffer)]; }

/// True for what forward saves of a layer for backward.
constexpr bool of_layer(Buffer buffer) { return row_of(buffer).of_class <= BufferClass::branch_sum; }

/// [rows, columns] of this rank, in memory of `elements`, which are as many on every rank.
struct BufferShape {
  std::int64_t rows = 0, columns = 0, elements = 0;
};
BufferShape shape_of(Buffer buffer, BlockSizes const& s, ElementBytes e);
/// Bytes that a buffer takes of an arena; at most most_bytes, which no memory holds.
std::int64_t bytes_of(Buffer buffer, BlockSizes const& s, ElementBytes e);
inline constexpr std::int64_t most_bytes = std::int64_t{1} << 61;

/// A set of buffers: bit b stands for row b of the table.
using BufferSet = std::bitset<num_buffers>;
BufferSet set_of(std::initializer_list<Buffer> buffers);
/// The buffers of a set, in the order of the table.
std::vector<Buffer> list(BufferSet const& set);
inline bool has(BufferSet const& set, Buffer buffer) { return set[static_cast<std::size_t>(buffer)]; }
std::int64_t bytes_of(BufferSet const& set, BlockSizes const& s, ElementBytes e);

/// The buffers of a layer that forward leaves for backward, without the input.
BufferSet saved_buffers();
/// The saved buffers that forward discards in layer l of a stage: they lie in scratch, and backward recomputes them
/// there.
BufferSet discarded_buffers(StageRecompute const& stage, int l);
/// The discarded buffers that the weight part of a split backward reads, or finds gradients in. The input part
/// recomputes them into a set that lives until then. Weight gradients of routed experts come with the input part.
BufferSet rebuilt_buffers(StageRecompute const& stage, int l);

}  // namespace p3d::layout
