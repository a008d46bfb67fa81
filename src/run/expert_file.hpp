// SPDX-License-Identifier: Apache-2.0
#pragma once
// experts.csv in run.output_dir: how tokens chose experts, at the steps that are logged. A help for the eye, not a part
// of the run's history: where it cannot be written the run is warned once and goes on.

#include <p3d/engine/trainer.hpp>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace p3d::run {

class ExpertFile {
public:
  /// Keeps the whole rows of an earlier file up to step `start`; a line that was cut off, or that is no row of so many
  /// experts, goes.
  ExpertFile(std::string const& output_dir, std::int64_t start, std::int64_t experts);
  /// step,layer,busiest,entropy and the tokens of each expert.
  void write(std::int64_t step, std::vector<engine::ExpertLoad> const& layers);

private:
  std::string path_;
  std::ofstream file_;
  bool warned_ = false;
};

/// "Experts: in the last step the busiest of a layer had 1.32 of the mean number of tokens (layer 3), entropy 0.981 to
/// 0.993 of even".
std::string describe(std::vector<engine::ExpertLoad> const& layers);

}  // namespace p3d::run
