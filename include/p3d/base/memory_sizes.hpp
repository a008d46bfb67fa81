// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sizes of memory that kernels, arenas and files work with and that the plan of a run counts before any of them exists.
// They are plain numbers, so that rooms without Kokkos know them too.

#include <algorithm>
#include <cstdint>

namespace p3d::base {

/// Every piece of an arena begins on a multiple of this many bytes.
inline constexpr std::int64_t arena_alignment = 64;
/// Every range of a swap file begins on a multiple of this many bytes.
inline constexpr std::int64_t swap_alignment = 4096;
/// The smallest multiple of `alignment` that is at least `bytes`.
constexpr std::int64_t padded(std::int64_t bytes, std::int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}
/// The elements of an offloaded array that are moved at a time.
inline constexpr std::int64_t offloaded_piece = std::int64_t{1} << 20;

/// The panels of A [rows, depth], B [depth, cols] and C [rows, cols] in which one thread of a host widens 16-bit
/// matrices to float for the BLAS. The sizes are measured by benchmarks/gemm16; the rows are a multiple of
/// linalg::gemm_row_block.
inline constexpr std::int64_t panel_rows = 1008, panel_cols = 768, panel_depth = 384;
inline constexpr std::int64_t panel_floats =
    panel_rows * panel_depth + panel_depth * panel_cols + panel_rows * panel_cols;
/// The bytes in which one thread of a host widens keys and values of 16 bits for attention, at most (backward needs
/// most). A head of keys is head_dim wide, one of values value_dim.
constexpr std::int64_t attention_panel_bytes(std::int64_t keys, std::int64_t head_dim, std::int64_t value_dim) {
  return keys * (head_dim + value_dim) * static_cast<std::int64_t>(sizeof(float));
}

/// The bytes in which a communicator of NCCL keeps the summands of other ranks, for sums in a fixed order
/// (comm/nccl.hpp). Longer buffers are added in segments.
inline constexpr std::int64_t fixed_order_workspace = std::int64_t{16} << 20;

/// The doubles in which a process adds up rows (kernels/column_sum.hpp): 8 MiB, on devices 64 MiB.
constexpr std::int64_t column_workspace_size(bool on_device) { return std::int64_t{1} << (on_device ? 23 : 20); }

/// The tokens that one thread counts and places one after the other when choices are sorted by expert.
constexpr std::int64_t sorted_tokens(bool on_device) { return on_device ? 16 : 1024; }
/// The integers that sorting choices by expert works in (kernels::sort_by_expert).
constexpr std::int64_t sort_workspace(std::int64_t tokens, std::int64_t experts, bool on_device) {
  auto const each = sorted_tokens(on_device);
  return (tokens + each - 1) / each * experts + 1;
}

/// The bytes of the blocks into which attention by GEMMs on devices cuts its scores (kernels/attention_blocks.hpp). A
/// block of queries has all keys that one of them sees in memory at once.
struct AttentionScores {
  std::int64_t storage = 4, sums = 4;        ///< bytes of an element, and of a number that sums some
  std::int64_t head_dim = 1, value_dim = 1;  ///< widths of a head of queries and keys, and of a head of values
  std::int64_t block_bytes = usual_block_bytes;

  /// The size limit of a block outside of tests; kernels/attention_blocks.hpp says why.
  static constexpr std::int64_t usual_block_bytes = std::int64_t{1} << 26;
  /// The queries that a block has at first, and the fewest where memory is short.
  static constexpr std::int64_t usual_queries = 128, fewest_queries = 16;
  static constexpr std::int64_t alignment = 64,
                                pieces = 10;  ///< bytes, and number of arrays, that the scratch memory is divided into

  /// The distance from one row of scores to the next, in numbers: rows begin on multiples of 64 bytes.
  static constexpr std::int64_t row_length(std::int64_t keys) { return (keys + 15) / 16 * 16; }
  /// The bytes of one row of scores in backward: the scores and their gradients; the query, the output's gradient and
  /// the query's gradient; two statistics. Forward has the output in place of the query's gradient.
  constexpr std::int64_t row_bytes(std::int64_t keys) const {
    return sums * (2 * row_length(keys) + std::max(head_dim, value_dim) + 2) + storage * (head_dim + value_dim);
  }
  /// The most rows of keys of all heads of a block, where the block has more than one head.
  constexpr std::int64_t most_head_keys() const { return block_bytes / (2 * usual_queries * sums); }
  /// The bytes of the sums of dk and dv of so many rows of keys; 0 where they are added up in their place.
  constexpr std::int64_t sum_bytes(std::int64_t head_keys) const {
    return storage == sums ? 0 : head_keys * (head_dim + value_dim) * sums;
  }
  /// The bytes that attention works in for one sample, and for every sample with no more tokens and heads.
  constexpr std::int64_t scratch_bytes(std::int64_t heads, std::int64_t kv_heads, std::int64_t queries,
                                       std::int64_t keys) const {
    if (heads == 0) return 0;
    std::int64_t const row = row_bytes(keys), all = heads * queries * row;
    std::int64_t const head_keys = std::min(kv_heads * keys, std::max(keys, most_head_keys()));
    return std::min(all, std::max(block_bytes, fewest_queries * row)) + sum_bytes(head_keys) + pieces * alignment;
  }
};

/// The memory in which a vendor's attention (kernels/fused_attention.hpp) works, beside the scratch memory of GEMMs.
/// cuDNN's backward pass takes at most 8 bytes for each element of a head's queries, and with `deterministic` 2 bytes
/// for each pair of a query and a key (measured by tests/platforms/cudnn.sh). The memory is for 512 MiB of such heads,
/// or for one head of keys with its queries where that is more; the call is cut into pieces that fit. 0 where one head
/// of keys takes more than 2 GiB: such calls are not for the library. `head_dim` is the larger width of a head, of
/// queries or of values.
constexpr std::int64_t fused_attention_bytes(std::int64_t samples, std::int64_t tokens, std::int64_t heads,
                                             std::int64_t kv_heads, std::int64_t head_dim, bool deterministic) {
  constexpr std::int64_t mib = std::int64_t{1} << 20;
  if (samples == 0 || heads == 0 || kv_heads == 0 || tokens == 0) return 0;
  std::int64_t const head = tokens * ((deterministic ? 2 * tokens : 0) + 8 * head_dim + 16);
  std::int64_t const one = heads / kv_heads * head + mib;
  if (one > 2048 * mib) return 0;
  return one * std::clamp<std::int64_t>(512 * mib / one, 1, samples * kv_heads);
}

}  // namespace p3d::base
