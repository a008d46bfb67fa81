// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blend of several sources: which source a sample comes from, as a pure function of the weights and the sample's
// number.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace p3d::data {

/// Sample `number` of source `source`.
struct Pick {
  std::size_t source = 0;
  std::int64_t number = 0;
  bool operator==(Pick const&) const = default;
};

/// Finds the source of a sample by walking from sample to sample. It keeps the counts at places on the way: the next
/// sample costs one step, any other one at most a few thousand times 2^20.
class Blend {
public:
  virtual ~Blend() = default;
  using Counts = std::vector<std::int64_t>;
  /// The source of a global sample, and the sample's number there.
  Pick at(std::int64_t sample) const;
  /// The number of samples before this one that come from each source.
  Counts taken(std::int64_t sample) const;

protected:
  explicit Blend(std::size_t sources) : cursor_{0, Counts(sources, 0)}, places_{Counts(sources, 0)} {}
  /// The source of sample n; `counts` samples of each source come before it.
  virtual std::size_t next(std::int64_t n, Counts const& counts) const = 0;
  /// The number of samples after which the blend repeats; 0: never.
  std::int64_t period_ = 0;
  Counts in_period_;  ///< samples of each source in one period

private:
  /// A sample, and the counts before it.
  struct Place {
    std::int64_t sample;
    Counts counts;
  };
  /// Keeps the counts of a place; when there are too many, drops every other one and doubles the stride.
  void keep(Place const& place) const;
  /// Moves the cursor to a sample of the first period. The caller holds the mutex.
  void move_to(std::int64_t wanted) const;

  mutable std::mutex mutex_;
  mutable Place cursor_;
  mutable std::vector<Counts> places_;  ///< counts at multiples of stride_
  mutable std::int64_t stride_ = 1024;
};

/// The blend that is even everywhere: among the first n samples, source i has between w_i n - 1 and w_i n + 1,
/// exclusive, for every n, where w_i is its share of the sum of the weights. It is the chairman assignment of Tijdeman
/// (Discrete Mathematics 32, 1980): among the sources whose next sample may come, (2k - 2)(w_i n - taken_i) >= 1, it
/// takes the one whose sample must come first; in whole numbers, so it is the same on every machine. `weights`:
/// config::whole_weights.
class EvenBlend final : public Blend {
public:
  explicit EvenBlend(std::vector<std::int64_t> weights);

private:
  std::size_t next(std::int64_t n, Counts const& counts) const override;
  std::vector<std::int64_t> weights_;
};

/// The blend of Megatron-LM: the source with the largest w_i max(n, 1) - taken_i, in doubles; among equal ones the
/// first.
class MegatronBlend final : public Blend {
public:
  explicit MegatronBlend(std::vector<double> const& weights);
  /// The number of samples that Megatron-LM prepares of a source for a run of `samples`.
  std::int64_t samples_of(std::size_t source, std::int64_t samples) const;

private:
  std::size_t next(std::int64_t n, Counts const& counts) const override;
  std::vector<double> shares_, weights_;  ///< the weights normalised once, and twice, as Megatron-LM does
};

}  // namespace p3d::data
