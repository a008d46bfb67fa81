// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a person sees while a run goes on.

#include <p3d/base/timer.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace p3d::report {

/// What progress knows of a step.
struct ProgressPoint {
  std::int64_t step = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
  double lr = 0.0;
  double tokens = 0.0;   ///< of this step
  double seconds = 0.0;  ///< this step took, evaluation not counted
  std::optional<double> eval_loss;
};

/// On a terminal one line that is rewritten after every step; the lines of evaluations and of the last step stay.
/// Otherwise a plain line every `log_every` steps, at the first, at the last and at every evaluation. Only rank 0
/// prints.
///
/// tokens/s is the mean of about the last ten steps, each step counting a tenth less than the one after it. The time
/// that is left follows from all steps but the first, with evaluations and checkpoints; the first step, which touches
/// memory and opens connections, gives an upper bound: "< 12 s left".
class Progress {
public:
  /// `columns`: width of the terminal, 0 for none. Fields that do not fit into the rewritten line are left out, since a
  /// line that wraps could not be taken back.
  Progress(std::int64_t steps, std::int64_t log_every, int columns);
  void step(ProgressPoint const& point);

private:
  /// As many fields as fit.
  std::string line(ProgressPoint const& point, std::size_t width) const;
  std::int64_t steps_;
  std::int64_t log_every_;
  int columns_;
  std::int64_t done_ = 0;
  double recent_tokens_ = 0.0;
  double recent_seconds_ = 0.0;
  double first_seconds_ = 0.0;  ///< until the end of the first step
  base::Stopwatch watch_;
};

}  // namespace p3d::report
