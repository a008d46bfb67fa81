// SPDX-License-Identifier: Apache-2.0
#pragma once
// The input with which a trained model is read (p3d generate, p3d eval): nothing is trained, so nothing of the run's
// input may be in the way.
//
// It starts from the defaults and takes over what the model is; everything else of the run's input is left behind. So
// a key of training, an old or a new one, cannot contradict what reading sets. Example: a run with
// checkpoint.at_start = true, parallel.pp = 4 and pipeline.schedule = "auto" is read on one rank with 1f1b, no
// checkpoints and parallel.pp = 1.

#include <p3d/config/parse.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::config {

/// How a trained model is read.
struct Reading {
  int ranks = 1;
  /// Keys of [parallel], such as "parallel.tp=2". Empty: the layout of the run where it has `ranks` ranks, else
  /// replicas.
  std::vector<std::string> layout;
  std::optional<Precision> precision;  ///< empty: the run's
  std::int64_t seq_len = 0;            ///< 0: the run's
  Data data = no_data();               ///< the data that are read
  bool variable = false;               ///< value of batch.variable

  /// Data that need no files.
  static Data no_data();
};

/// The data of the run itself, as its validation reads them. The tokenizer is left out: these files hold its tokens
/// already.
Data own_data(Config const& stored);

/// Parses the input in a checkpoint, with no more than its mesh checked: files that it names may be elsewhere by now.
ParseResult parse_stored(std::string_view canonical);

/// The input that reads the model of `stored` as `wanted` says; all rules are checked. It has the following of the run:
/// [model] (without dispatch and buffer_factor of experts, which move no number), run.precision, run.seed, batch.micro
/// (at most 16,384 tokens), context.order, linalg.host and pipeline.vocab_parallel.
ParseResult reading_input(Config const& stored, Reading const& wanted);

}  // namespace p3d::config
