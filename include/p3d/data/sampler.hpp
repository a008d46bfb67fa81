// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which tokens a sample is made of: a pure function of (seed, global sample number). Nothing depends on ranks, so every
// layout reads the same data, and a run goes on anywhere from its sample number alone.

#include <p3d/base/random.hpp>
#include <p3d/data/token_source.hpp>
#include <p3d/layout/axes.hpp>

#include <cstdint>
#include <span>

namespace p3d::data {

/// A keyed bijection of [0, count), one for each `epoch`: a four-round Feistel network over the smallest even number of
/// bits (at least 2) that holds count, walked until the value is in range again (Black and Rogaway, "Ciphers with
/// arbitrary finite domains", CT-RSA 2002). Round r maps (L, R) to (R, L ^ (random_block(key, epoch, r << 32 | R).w[0]
/// & mask)). Fewer than four rounds of the network are walked on average. Needs 0 <= x < count <= 2^62.
std::uint64_t permute(base::RandomKey key, std::uint64_t epoch, std::uint64_t x, std::uint64_t count);

/// Number of the global sample at place `index` of the global batch of `step` (from 0).
constexpr std::int64_t global_sample(std::int64_t step, std::int64_t index, std::int64_t global_batch) {
  return step * global_batch + index;
}

/// Cuts the training part into windows of seq_len tokens and deals them in a new random order every epoch; each epoch
/// also starts at its own offset into the slack that the division leaves.
///
/// With n training tokens, T = seq_len, W = (n - 1) / T windows and slack = (n - 1) - W T, sample g is epoch e = g / W,
/// place i = g mod W; its window is permute(random_key(seed, "data.order"), e, i, W) and begins at
/// random_below(random_key(seed, "data.offset"), 0, e, slack + 1) + window * T.
/// Targets are the inputs one token later.
class Sampler {
public:
  /// `source` must outlive the sampler. Throws base::Error when the training part (or, if run.eval_batches and
  /// data.split ask for evaluation, the held-out part) has fewer than seq_len + 1 tokens.
  Sampler(TokenSource const& source, config::Config const& config);

  std::int64_t seq_len() const { return seq_len_; }
  std::int64_t num_train_windows() const { return train_windows_; }
  /// 0 when nothing is held out.
  std::int64_t num_eval_windows() const { return eval_windows_; }
  std::int64_t epoch(std::int64_t sample) const { return sample / train_windows_; }

  /// Inputs and targets of a global sample (seq_len each).
  void train(std::int64_t sample, std::span<int> inputs, std::span<int> targets) const;
  /// Inputs and targets of place `index` in evaluation batch `batch`: held-out window (batch * global + index) mod
  /// num_eval_windows(), in order and without offset.
  void eval(std::int64_t batch, std::int64_t index, std::span<int> inputs, std::span<int> targets) const;

private:
  void window(std::int64_t first, std::span<int> inputs, std::span<int> targets) const;

  TokenSource const* source_;
  Split split_;
  std::int64_t seq_len_;
  std::int64_t global_batch_;
  std::int64_t train_windows_ = 0;
  std::int64_t slack_ = 0;
  std::int64_t eval_windows_ = 0;
  base::RandomKey order_key_;
  base::RandomKey offset_key_;
};

}  // namespace p3d::data
