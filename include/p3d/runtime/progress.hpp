#pragma once
// What a person sees while a run goes on.

#include <p3d/base/timer.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace p3d::runtime {

/// What progress knows of a step.
struct ProgressPoint {
  std::int64_t step = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
  double lr = 0.0;
  double tokens_per_s = 0.0;
  std::optional<double> eval_loss;
};

/// On a terminal one line that is rewritten after every step; otherwise a plain line every `log_every` steps, at the first,
/// at the last and at every evaluation. Root rank only.
class Progress {
public:
  Progress(std::int64_t steps, std::int64_t log_every, bool terminal);
  void step(ProgressPoint const& point);
  /// Ends the rewritten line.
  void finish();

private:
  std::string line(ProgressPoint const& point) const;
  std::int64_t steps_;
  std::int64_t log_every_;
  bool terminal_;
  std::int64_t done_ = 0;
  base::Stopwatch watch_;
};

}  // namespace p3d::runtime
