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
  /// Keys of [parallel], such as "parallel.tp=2". Empty: the layout of the run where that has `ranks` ranks, else
  /// replicas.
  std::vector<std::string> layout;
  std::optional<Precision> precision;  ///< empty: that of the run
  std::int64_t seq_len = 0;            ///< 0: that of the run
  Data data = no_data();               ///< what is read
  bool variable = false;               ///< batch.variable

  /// Data that take no files.
  static Data no_data();
};

/// The data of the run itself, as its validation reads them: without its tokenizer, whose tokens they are already.
Data own_data(Config const& stored);

/// The input in a checkpoint, with no more than its mesh checked: what it names, such as files, may be elsewhere.
ParseResult parse_stored(std::string_view canonical);

/// The input that reads the model of `stored` as `wanted` says; all rules are checked. Of the run it has [model]
/// (dispatch and buffer_factor of experts, which move no number, aside), run.precision, run.seed, batch.micro (at most
/// 16,384 tokens), context.order, linalg.host and pipeline.vocab_parallel.
ParseResult reading_input(Config const& stored, Reading const& wanted);

}  // namespace p3d::config
