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

struct ModelFile {
  static constexpr std::int64_t largest = std::int64_t{32} << 20;  ///< bytes of a file that is carried
  std::string name;                                                ///< one that is_model_file() knows
  std::string bytes;
  bool operator==(ModelFile const&) const = default;
};
using ModelFiles = std::vector<ModelFile>;

/// The kinds of files that are carried: config.json; generation_config.json; and those of the tokenizer, among them the
/// chat template.
bool is_model_file(std::string_view name);
bool is_tokenizer_file(std::string_view name);

/// Null when there is none.
ModelFile const* find(ModelFiles const& files, std::string_view name);

/// Those in a folder, config.json first. What is too large is named in `left_out`; what is empty or no regular file is
/// passed over.
ModelFiles read_model_files(std::string const& folder, std::vector<std::string>& left_out);
/// Those in a checkpoint, in the same order; an older one has none. Throws base::Error (bad_input) as read_checkpoint
/// does.
ModelFiles stored_model_files(std::string const& checkpoint);

}  // namespace p3d::io
