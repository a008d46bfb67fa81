#pragma once
// The history of a run as one CSV file: output_dir/metrics.csv, one row per step, written by the root rank.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace p3d::io {

/// What is recorded of one step.
struct MetricsRow {
  std::int64_t step = 0;    ///< steps done, from 1
  std::int64_t tokens = 0;  ///< tokens trained on so far
  double loss = 0.0;        ///< mean cross entropy of the global batch, nats per token
  double grad_norm = 0.0;   ///< global norm before clipping
  double lr = 0.0;
  double step_ms = 0.0;             ///< wall time of the step
  double tokens_per_s = 0.0;        ///< of the whole machine
  std::optional<double> eval_loss;  ///< nats per token; empty when this step did not evaluate

  bool operator==(MetricsRow const&) const = default;
};

/// The first line of the file.
inline constexpr char const* metrics_header = "step,tokens,loss,grad_norm,lr,step_ms,tokens_per_s,eval_loss";

/// The file's line for a row, without the line's end. Numbers are the shortest decimals that read back as the same
/// double.
std::string format(MetricsRow const& row);

/// Writes output_dir/metrics.csv, replacing an older one. Each row is in the hands of the system when write() returns.
class MetricsWriter {
public:
  /// Makes the folder. Throws base::Error with path, reason and fix when the folder or file cannot be written.
  explicit MetricsWriter(std::string const& output_dir);
  void write(MetricsRow const& row);
  std::string const& path() const { return path_; }

private:
  void line(std::string const& text);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

/// Reads a metrics file back. Throws base::Error, with the line, unless it is one.
std::vector<MetricsRow> read_metrics(std::string const& path);

}  // namespace p3d::io
