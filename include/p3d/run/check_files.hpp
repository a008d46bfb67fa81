// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks that the files of an input are there and fit together, for p3d --check, beyond the input's own text. No memory
// is taken for a model, so that the check runs on a login node.

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/data/sampler.hpp>

#include <string>
#include <vector>

namespace p3d::run {

/// The result of check_files(). The run would start when `errors` is empty.
struct FileCheck {
  std::vector<std::string> notes;   ///< lines for the user, such as the description of the data
  std::vector<base::Error> errors;  ///< the first error of the tokenizer, and the first of the data
};

/// Opens the tokenizer and the data of a checked input as a run does at its start, alone and without memory for a
/// model. It looks at the headers of all files, samples of their indices, the vocabularies, the notes about tokenizers,
/// and whether there are samples to train on and to evaluate.
FileCheck check_files(config::Config const& config);

/// A warning that a run prints before it begins, or "": about binary files among those of data.format = "text", or
/// about data.eod_token, where the notes beside token files name another one.
std::string note_about_data(config::Config const& config);

/// A warning where the model of model.load has a tokenizer beside it that gives other tokens than the run's: its
/// weights are about those, and a run would train on, from noise. "" where they agree, or one of them is not known.
std::string note_about_tokenizer(config::Config const& config, text::Tokenizer const& tokenizer);

/// One line about the data, for the log: "Data: licence.bin, 5000 tokens (uint16), 3 documents; 70 training windows of
/// 64 tokens, 7 for validation".
std::string describe_data(data::TokenSource const& source, data::Sampler const& sampler, config::Config const& config);

}  // namespace p3d::run
