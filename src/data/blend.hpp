// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which of several sources a sample comes from: a pure function of the weights and the sample's number.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace p3d::data {

/// Sample `number` of a source.
struct Pick {
  std::size_t source = 0;
  std::int64_t number = 0;
  bool operator==(Pick const&) const = default;
};

/// Walks from sample to sample, and keeps the counts at places on the way: the next sample costs one step, any other
/// one at most a few thousand times 2^20.
class Blend {
public:
  virtual ~Blend() = default;
  using Counts = std::vector<std::int64_t>;
  Pick at(std::int64_t sample) const;
  /// How many of the samples before this one come from each source.
  Counts taken(std::int64_t sample) const;

protected:
  explicit Blend(std::size_t sources) : cursor_{0, Counts(sources, 0)}, places_{Counts(sources, 0)} {}
  /// The source of sample n, of which counts were taken before.
  virtual std::size_t next(std::int64_t n, Counts const& counts) const = 0;
  /// Samples after which the blend repeats; 0: never.
  std::int64_t period_ = 0;
  Counts in_period_;  ///< of each source

private:
  struct Place {
    std::int64_t sample;
    Counts counts;
  };
  void keep(Place const& place) const;
  /// Moves the cursor to a sample of the first period. The mutex is held.
  void move_to(std::int64_t wanted) const;

  mutable std::mutex mutex_;
  mutable Place cursor_;
  mutable std::vector<Counts> places_;  ///< at multiples of stride_
  mutable std::int64_t stride_ = 1024;
};

/// Of the first n samples, source i has between w_i n - 1 and w_i n + 1, exclusive, for every n, where w_i is its share
/// of the sum of the weights: the chairman assignment of Tijdeman (Discrete Mathematics 32, 1980). Of the sources whose
/// next sample may come (2k - 2)(w_i n - taken_i) >= 1 it takes the one that must come first; in whole numbers, so the
/// same everywhere. `weights`: config::whole_weights.
class EvenBlend final : public Blend {
public:
  explicit EvenBlend(std::vector<std::int64_t> weights);

private:
  std::size_t next(std::int64_t n, Counts const& counts) const override;
  std::vector<std::int64_t> weights_;
};

/// That of Megatron-LM: the source whose w_i max(n, 1) - taken_i is largest, in doubles, the first of equal ones.
class MegatronBlend final : public Blend {
public:
  explicit MegatronBlend(std::vector<double> const& weights);
  /// Samples that are prepared of a source for a run of `samples`.
  std::int64_t samples_of(std::size_t source, std::int64_t samples) const;

private:
  std::size_t next(std::int64_t n, Counts const& counts) const override;
  std::vector<double> shares_, weights_;  ///< normalised once, and twice, as there
};

}  // namespace p3d::data
