// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks that attention by GEMMs (attention_gemm.cpp) is cut into. A block is the scores of some heads and some
// queries with all keys that one of the queries sees; it is in memory at once. This is arithmetic on the host. Blocks
// do not depend on the number of samples: each sample has the same calls, and so the same bits, in every microbatch.
//
// The limits of a block. Each score is written by a GEMM, read and written by the kernel between, and read by GEMMs: 12
// bytes forward and 26 backward for 4 and 10 head_dim FLOPs, so bandwidth is the limit, and a block should stay in the
// second-level cache (50 MB on an H100). Each block has 4 or 5 launches forward and 8 or 9 backward, at 2 to 3
// microseconds, so it should not be small either; and a long block of queries computes scores above the diagonal in
// vain. 2^26 bytes are 2^23 scores of 16-bit elements backward, and half of the bytes forward (docs/gpu_attention.md).

#include <p3d/base/memory_sizes.hpp>
#include <p3d/kernels/attention.hpp>

#include <algorithm>
#include <cstdint>

namespace p3d::kernels {

/// Bytes of a block, but for one that cannot be made smaller. A variable for tests.
inline std::int64_t attention_block_bytes = base::AttentionScores::usual_block_bytes;

/// Queries [query0, query0 + queries) and keys [key0, key0 + keys), as places in their sets.
struct ScoreBlock {
  std::int64_t query0 = 0, queries = 0, key0 = 0, keys = 0;
};

/// The way in which a shape is cut into blocks, for elements of type S.
template <class S>
class AttentionBlocks {
public:
  using A = Acc<S>;
  explicit AttentionBlocks(AttentionShape const& shape)
      : shape_(shape), scores_(scores_of(shape)), group_(shape.heads / shape.kv_heads) {
    auto const in_a_row = [](base::TokenSet const& t) { return t.stride == 1 && t.runs[1].count == 0; };
    std::int64_t const keys = shape.keys.size();
    bool const few = shape.window > 0 && in_a_row(shape.queries) && in_a_row(shape.keys);
    std::int64_t const seen = few ? std::min(keys, shape.window + usual_queries) : keys;
    std::int64_t const fit = attention_block_bytes / (usual_queries * scores_.row_bytes(seen));
    least_ = fit > 0 ? usual_queries : fewest_queries;
    // Whole groups as long as one fits: their gradients of keys are one GEMM's sum.
    kv_heads_ =
        evenly(shape.kv_heads, std::min(fit / group_, scores_.most_head_keys() / std::max<std::int64_t>(1, keys)));
    members_ = kv_heads_ > 1 ? group_ : evenly(group_, fit);
  }

  std::int64_t kv_heads() const { return kv_heads_; }  ///< key/value heads of a block
  std::int64_t members() const { return members_; }    ///< query heads of a block that share one key/value head
  /// The block that starts at query query0.
  ScoreBlock at(std::int64_t query0) const {
    std::int64_t const left = shape_.queries.size() - query0;
    auto block = of(query0, std::min(left, least_));
    // The block grows while it fits, but not beyond the number of keys that its first query sees, which bounds the
    // scores above the diagonal.
    std::int64_t const longest = of(query0, 1).keys, step = std::min(least_, std::int64_t{64});
    while (block.queries < left) {
      auto const longer = of(query0, std::min(left, block.queries + step));
      if (longer.queries > longest ||
          kv_heads_ * members_ * longer.queries * scores_.row_bytes(longer.keys) > attention_block_bytes)
        break;
      block = longer;
    }
    return block;
  }

  /// Bytes of scratch memory for the largest call, as attention_scratch_bytes says.
  static std::int64_t scratch_bytes(AttentionShape const& largest) {
    return scores_of(largest).scratch_bytes(largest.heads, largest.kv_heads, largest.queries.size(),
                                            largest.keys.size());
  }
  static base::AttentionScores scores_of(AttentionShape const& shape) {
    return {.storage = sizeof(S),
            .sums = sizeof(A),
            .head_dim = shape.head_dim,
            .value_dim = shape.values(),
            .block_bytes = attention_block_bytes};
  }

private:
  static constexpr auto usual_queries = base::AttentionScores::usual_queries,
                        fewest_queries = base::AttentionScores::fewest_queries;

  /// The largest even part of n that is `most` at most, and 1 at least.
  static std::int64_t evenly(std::int64_t n, std::int64_t most) {
    std::int64_t const parts = most >= n ? 1 : (most <= 1 ? n : (n + most - 1) / most);
    return (n + parts - 1) / parts;
  }
  /// The block of the given queries with all keys that one of them sees.
  ScoreBlock of(std::int64_t query0, std::int64_t queries) const {
    auto const seen = [&](std::int64_t query) { return shape_.queries.at(query) + 1; };
    std::int64_t const first = shape_.window > 0 ? shape_.keys.below(seen(query0) - shape_.window) : 0;
    return {query0, queries, first, std::max<std::int64_t>(0, shape_.keys.below(seen(query0 + queries - 1)) - first)};
  }

  AttentionShape shape_;
  base::AttentionScores scores_;
  std::int64_t group_, kv_heads_ = 1, members_ = 1, least_ = 1;
};

}  // namespace p3d::kernels
