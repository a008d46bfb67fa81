// SPDX-License-Identifier: Apache-2.0
#pragma once
// The way from measurements of a machine to the constants of its cluster file. Every constant is the one with which the
// formulas of machine_time.hpp come closest to what was measured. Pure: run/machine_trial.hpp measures.

#include <p3d/config/cluster.hpp>
#include <p3d/config/config.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::plan {

/// A timed GEMM of [m, k] and [k, n], which adds to a gradient or not.
struct GemmSample {
  double m = 0, n = 0, k = 0;
  bool gradient = false;
  double seconds = 0;
  double operations() const { return 2 * m * n * k; }
};

/// A timed kernel, or group of kernels, that reads and writes `bytes` in arrays of `each` bytes.
struct MemorySample {
  double bytes = 0, each = 0, seconds = 0;
};

/// A timed collective of a tensor of `bytes`, or a timed message.
struct TransferSample {
  double bytes = 0, seconds = 0;
};

/// Measurements of the ranks that exchange over one kind of link. Every list begins with the fewest bytes.
struct LevelSamples {
  std::string name;
  std::int64_t size = 0;                   ///< ranks of a group of this level; 0: the outermost one
  std::int64_t ranks = 2;                  ///< ranks that took part in the sums
  std::vector<TransferSample> all_reduce;  ///< sums over those ranks
  std::vector<TransferSample> messages;    ///< one way, between two of them, while all pairs do the same
};

/// GEMMs of one type: those whose sizes are multiples of GemmRates::align, and the awkward ones.
struct GemmSamples {
  config::Precision precision = config::Precision::fp32;
  std::vector<GemmSample> even;       ///< both passes and gradients
  std::vector<GemmSample> unaligned;  ///< even sizes that are no multiples of it
  std::vector<GemmSample> odd;        ///< at least one size is odd
};

/// Everything that a calibration measures, the mean of all ranks, which work at the same time.
struct MachineSamples {
  std::string name, device;
  bool host = true;                 ///< kernels run on the host
  std::int64_t units = 1;           ///< GemmRates::units
  double sharers = 1;               ///< ranks that share a core; kernels were timed on ranks that did not
  double memory = 0;                ///< bytes of a rank
  std::vector<GemmSamples> gemms;   ///< the first type is the one whose sizes are fitted
  MemorySample stream;              ///< a sum of two long arrays
  std::vector<MemorySample> layer;  ///< the kernels of a layer beside GEMMs, in arrays of several lengths
  MemorySample permute;             ///< rows that are sorted and sorted back
  double attention_operations = 0;  ///< of one forward of attention, masked scores left out
  double attention_seconds = 0;     ///< of forward and backward, in the first type
  double launch = 0;                ///< seconds of a kernel that does nothing
  double jitter = 0;                ///< standard deviation of a rank's time for the same work, over the time
  /// Standard deviation with the timings that are far off, which jitter leaves out: something else ran meanwhile.
  double disturbance = 0;
  std::vector<LevelSamples> levels;  ///< the closest first
};

/// How far the formula with the fitted constants is off, over the measurements of one kind.
struct FitError {
  std::string what;
  double mean = 0, worst = 0;  ///< absolute, relative to the measured seconds
  std::size_t samples = 0;
};

struct Calibration {
  config::Cluster cluster;
  config::ClusterNotes notes;  ///< for config::cluster_toml
  std::vector<FitError> errors;
};

/// Fits the constants. Constants that were not measured keep their defaults, and their notes say so. Throws
/// base::Error (defect) where samples that every calibration has are missing.
Calibration calibrate(MachineSamples const& samples);

/// GEMMs of one type: sets the peak of the type, and with `sizes` the constants of [gemm]. The peak is the rate that
/// the formula gives GEMMs without end, so `best` is 1.
FitError fit_gemms(GemmSamples const& samples, bool sizes, config::Cluster& cluster);
/// One level: latency, bandwidth, share and message_share.
config::Level fit_level(LevelSamples const& samples);

}  // namespace p3d::plan
