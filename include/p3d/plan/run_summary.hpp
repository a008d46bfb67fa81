// SPDX-License-Identifier: Apache-2.0
#pragma once
// The facts about a run beside its curves, as a file: output_dir/summary.json. docs/summary_format.md describes the
// file.

#include <p3d/plan/memory.hpp>

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::plan {

enum class RunState { running, finished, stopped, failed };
/// The word for a state in the file.
char const* name(RunState state);

/// One start of the program. A run that was stopped and continued has several.
struct RunStart {
  std::string started;          ///< UTC, "2026-01-31T12:00:00Z"
  std::int64_t first_step = 0;  ///< steps done before this start
  std::int64_t last_step = 0;   ///< steps done at its end; while it runs, at its beginning
  double wall_s = 0.0;          ///< 0 while it runs
  int ranks = 0;
  RunState state = RunState::running;
};

/// The seconds that ranks spent in a phase of the steps (engine::Phase).
struct PhaseSeconds {
  std::string name;
  double min = 0.0, mean = 0.0, max = 0.0;
};

/// The facts about a run. Numbers are 0, and texts empty, as long as they are not known.
struct RunSummary {
  std::string run;         ///< run.name
  std::int64_t steps = 0;  ///< run.steps
  std::optional<int> exit_code;
  std::string reason;            ///< message of a run that failed
  std::vector<RunStart> starts;  ///< the last one is the start that writes the file

  std::string program;  ///< several lines: p3d, compiler, libraries
  std::string host;     ///< host of rank 0
  std::string backend;
  int ranks_on_node = 0, cores_on_node = 0, threads = 0;  ///< rank 0's node; threads of one rank

  std::string layout;  ///< "dp 2, tp 2, pp 2"
  std::string schedule;
  std::string precision;
  int stages = 0;
  std::int64_t microbatches = 0;
  std::int64_t parameters = 0;
  std::int64_t tokens_per_step = 0;
  double model_flops_per_step = 0.0;
  double recomputed_flops_per_step = 0.0;  ///< FLOPs that recomputation adds
  std::string data;
  std::int64_t training_windows = 0, validation_windows = 0;

  double ceiling_flops = 0.0;  ///< FLOP/s of one rank: the model's GEMMs alone; 0: not measured
  double median_step_s = 0.0;
  std::int64_t skipped_steps = 0;  ///< fp16: steps whose gradients overflowed

  std::vector<MemoryPrediction> memory_of_ranks;  ///< predicted bytes of a rank, one entry for each pipeline coordinate
  double memory_predicted = 0.0;                  ///< bytes, all ranks
  double memory_before = 0.0;                     ///< bytes that libraries took before the model
  double memory_found = 0.0;                      ///< bytes in use beside those of the libraries

  std::vector<PhaseSeconds> phases;
  std::string bottleneck;  ///< of the last start, in words, with its share and the key that would help

  RunState state() const { return starts.empty() ? RunState::running : starts.back().state; }
  int ranks() const { return starts.empty() ? 0 : starts.back().ranks; }
  /// The MFU of the median step: model FLOP/s over the ceiling; 0: not known.
  double mfu() const;
  /// The HFU of the median step: as the MFU, with recomputation counted; 0: not known.
  double hfu() const;
};

/// The file's text. Bytes in a name that are not UTF-8 are replaced.
std::string to_json(RunSummary const& summary);
/// The summary from the text of a file, whose name `where` is. Throws base::Error (bad_input), with the place, for a
/// text that is no such file.
RunSummary parse_summary(std::string_view json, std::string const& where);

/// A time in the form of RunStart::started.
std::string utc(std::time_t time);

}  // namespace p3d::plan
