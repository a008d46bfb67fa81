// SPDX-License-Identifier: Apache-2.0
#pragma once
// The lines that a person sees while a run goes on.

#include <p3d/base/timer.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace p3d::report {

/// The numbers of one step that progress shows.
struct ProgressPoint {
  std::int64_t step = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
  double lr = 0.0;
  double tokens = 0.0;   ///< tokens of this step
  double seconds = 0.0;  ///< seconds that this step took, without evaluation
  std::optional<double> eval_loss;
  std::optional<double> mtp_loss{};  ///< mean loss of the blocks of multi-token prediction, if there are any
};

/// Shows the progress of a run. On a terminal it is one line that is rewritten after every step; the lines of
/// evaluations and of the last step are kept. Otherwise it is a plain line every `log_every` steps, at the first, at
/// the last and at every evaluation. Only rank 0 prints.
///
/// tokens/s is the mean of about the last ten steps, each step counting a tenth less than the one after it. The time
/// that is left follows from all steps but the first, with evaluations and checkpoints. The first step touches memory
/// and opens connections, so it gives an upper bound: "< 12 s left".
class Progress {
public:
  /// `columns` is the width of the terminal, 0 for none. Fields that do not fit into the rewritten line are left out,
  /// since a line that wraps could not be erased.
  Progress(std::int64_t steps, std::int64_t log_every, int columns);
  /// Shows a step that has ended.
  void step(ProgressPoint const& point);

private:
  /// The text of a step, with as many fields as fit into `width`.
  std::string line(ProgressPoint const& point, std::size_t width) const;
  std::int64_t steps_;
  std::int64_t log_every_;
  int columns_;
  std::int64_t done_ = 0;
  double recent_tokens_ = 0.0;
  double recent_seconds_ = 0.0;
  double first_seconds_ = 0.0;  ///< seconds until the end of the first step
  base::Stopwatch watch_;
};

}  // namespace p3d::report
