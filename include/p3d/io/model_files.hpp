// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files beside the weights of a model in Hugging Face form: what it is, how text becomes tokens, how to generate.
//
// Checkpoints of a run that began with such a model carry them (group /model_files), so that an export has them again
// without the folder.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::io {

/// One such file with its bytes.
struct ModelFile {
  static constexpr std::int64_t largest = std::int64_t{32} << 20;  ///< bytes of a file that is carried
  std::string name;                                                ///< one that is_model_file() knows
  std::string bytes;
  bool operator==(ModelFile const&) const = default;
};
using ModelFiles = std::vector<ModelFile>;

/// True for the files that are carried: config.json, generation_config.json, and the files of the tokenizer, among them
/// the chat template.
bool is_model_file(std::string_view name);
/// True for the files of the tokenizer alone.
bool is_tokenizer_file(std::string_view name);

/// The file of this name, or null when there is none.
ModelFile const* find(ModelFiles const& files, std::string_view name);

/// Reads the model files of a folder, config.json first. A file that is too large is named in `left_out`; one that is
/// empty or not regular is ignored.
ModelFiles read_model_files(std::string const& folder, std::vector<std::string>& left_out);
/// Reads the model files of a checkpoint, in the same order as read_model_files; a checkpoint from before they were
/// carried has none. Throws base::Error (bad_input) as read_checkpoint does.
ModelFiles stored_model_files(std::string const& checkpoint);

}  // namespace p3d::io
