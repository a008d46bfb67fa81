#pragma once
// The files of a run: resolved.toml and metrics.csv in run.output_dir.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/io/metrics.hpp>

#include <optional>
#include <string>

namespace p3d::run {

/// Makes the output folder before anything large is built; an error on every rank when rank 0 cannot. Collective.
void make_output_folder(std::string const& folder, comm::Communicator& world);

/// Writes resolved.toml and opens metrics.csv; an earlier run's metrics.csv is data and gets the first free name
/// metrics.N.csv. Exists on rank 0 only. Throws base::Error.
class RunFiles {
public:
  /// A run that goes on from step `start` keeps the rows of the steps up to there.
  RunFiles(config::Config const& config, std::int64_t start);
  void write(io::MetricsRow const& row) { metrics_->write(row); }

private:
  std::optional<io::MetricsWriter> metrics_;
};

}  // namespace p3d::run
