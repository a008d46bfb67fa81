// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether the files of an input are there and fit together: what p3d --check finds out beyond the input's own text.

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/data/sampler.hpp>

#include <string>
#include <vector>

namespace p3d::run {

struct FileCheck {
  std::vector<std::string> notes;
  std::vector<base::Error> errors;  ///< of the tokenizer, and of the data
};

/// Opens the tokenizer and the data of a checked input as a run does at its start, alone and without memory for a
/// model: the headers of all files, samples of their indices, the vocabularies, the notes about tokenizers, and whether
/// there are samples to train on and to evaluate.
FileCheck check_files(config::Config const& config);

/// What a run says before it begins of files of data.format = "text" that are no text; or "".
std::string note_about_data(config::Config const& config);

/// "Data: licence.bin, 5000 tokens (uint16), 3 documents; 70 training windows of 64 tokens, 7 for validation".
std::string describe_data(data::TokenSource const& source, data::Sampler const& sampler, config::Config const& config);

}  // namespace p3d::run
