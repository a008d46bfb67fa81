// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rows of metrics.csv, the history of a run: room io writes the file, and room page draws it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::base {

/// The record of one step: one row of the file.
struct MetricsRow {
  std::int64_t step = 0;    ///< steps done, from 1
  std::int64_t tokens = 0;  ///< tokens trained on so far
  double loss = 0.0;        ///< mean cross entropy of the global batch, nats per token
  double grad_norm = 0.0;   ///< global norm before clipping
  double lr = 0.0;
  double step_ms = 0.0;             ///< wall time of the step
  double tokens_per_s = 0.0;        ///< tokens of all ranks per second
  std::optional<double> eval_loss;  ///< nats per token; empty when this step did not evaluate
  /// Mean of the losses of the blocks of multi-token prediction; a file has the column in a run of such a model.
  std::optional<double> mtp_loss{};

  bool operator==(MetricsRow const&) const = default;
};

/// The first line of the file, and that of a model with multi-token prediction.
inline constexpr char const* metrics_header = "step,tokens,loss,grad_norm,lr,step_ms,tokens_per_s,eval_loss";
inline constexpr char const* metrics_mtp_header =
    "step,tokens,loss,grad_norm,lr,step_ms,tokens_per_s,eval_loss,mtp_loss";
/// True for either.
inline bool is_metrics_header(std::string_view line) { return line == metrics_header || line == metrics_mtp_header; }

/// Formats a row as its line of the file, without the line's end. Numbers are the shortest decimals that read back as
/// the same double.
std::string format(MetricsRow const& row);
/// The row of a line, or nothing when the line is no row.
std::optional<MetricsRow> parse_metrics_row(std::string_view line);

/// The rows of a file that a run may be writing, or may have left in the middle of a row.
struct Metrics {
  std::vector<MetricsRow> rows;  ///< in order of the steps
  bool cut_off = false;          ///< the last line has no end: it is not among the rows
};
/// Reads a metrics file. Throws Error (bad_input), with the line, for any other line that is no row, and for steps that
/// do not ascend.
Metrics read_metrics(std::string const& path);

}  // namespace p3d::base
