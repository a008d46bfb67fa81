// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measured runs as a table: what a prediction is graded against.
//
// The header of the CSV file names keys of the input ("parallel.tp", "batch.micro", ...), `id`, `group`, `cluster`,
// `kernels`, and `measured_s` (seconds of a step) or `measured_bytes` (memory of the rank that has most). An empty cell
// leaves a key at its default (parallel.order: tp-cp-dp-pp, as other trainers place their ranks). All other columns are
// carried along: `split`, `source`, `quality`, `ranks`, `note`.
//
//   id,group,cluster,kernels,model.layers,parallel.tp,measured_s
//   a1,one node,dgx-a100,fused,24,8,3.7

#include <p3d/config/config.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace p3d::plan {

/// A row of the table: a run that somebody measured.
struct MeasuredRow {
  int line = 0;  ///< line of the file
  std::string id, group, cluster, kernels;
  std::string split;               ///< "calibrate", "validate" or empty
  config::Config config;           ///< the input of the run
  double measured = 0;             ///< seconds of a step, or bytes
  bool bytes = false;              ///< `measured` is memory
  std::vector<std::string> cells;  ///< as they stand in the file, in the order of MeasuredRows::header
};
struct MeasuredRows {
  std::vector<std::string> header;
  std::vector<MeasuredRow> rows;
};

/// Reads the table; `name` stands for the file in messages. Throws base::Error (bad_input) that names line and column
/// for an unknown key, a row that p3d refuses as an input, and a measured number that is none.
MeasuredRows read_measured_rows(std::string_view text, std::string const& name);

/// The problem of a row, which rows share that differ in their layout alone: model, data of a step, ranks, precision,
/// cluster, kernels. In words: "18.4B parameters, 256 ranks, batch 1024, ...".
std::string problem_of(MeasuredRow const& row);
}  // namespace p3d::plan
