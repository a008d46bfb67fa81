// SPDX-License-Identifier: Apache-2.0
#pragma once
// experts.csv in run.output_dir: how tokens chose experts, at the steps that are logged. The file is a help for the eye
// and no part of the run's history: where it cannot be written the run is warned once and goes on.

#include <p3d/engine/trainer.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "row_file.hpp"

namespace p3d::run {

/// Writes experts.csv: a row for each layer with experts and each logged step. Exists on rank 0 only.
class ExpertFile {
public:
  /// Keeps the whole rows of an earlier file up to step `start`. A line that was cut off, or that is no row of so many
  /// experts, is dropped.
  ExpertFile(std::string const& output_dir, std::int64_t start, std::int64_t experts);
  /// Appends a row "step,layer,busiest,entropy,tokens of each expert" for each layer. Throws nothing: the first row
  /// that cannot be written gives a warning.
  void write(std::int64_t step, std::vector<engine::ExpertLoad> const& layers);

private:
  RowFile file_;
};

/// One line for the log: "Experts: in the last step the busiest of a layer had 1.32 of the mean number of tokens (layer
/// 3); entropy 0.981 to 0.993 of even". Empty without layers.
std::string describe(std::vector<engine::ExpertLoad> const& layers);

}  // namespace p3d::run
