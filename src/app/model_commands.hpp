// SPDX-License-Identifier: Apache-2.0
#pragma once
// The commands p3d import and p3d export: models in Hugging Face form.

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::app {

/// Makes a checkpoint of a model. Returns the exit code.
int import_command(int argc, char** argv);
/// Makes a model of a checkpoint. Returns the exit code.
int export_command(int argc, char** argv);

/// Bytes of parameters that either command holds at a time.
inline constexpr std::int64_t model_buffer_bytes = 64 << 20;

/// The words of both commands: two paths, and where `keys` is allowed also "key=value" anywhere among them.
struct ModelWords {
  std::string from, to;
  std::vector<std::string> keys;
};
/// Sorts the words. Throws wrong_words for more or fewer of them; `name` is the command's.
ModelWords sort_words(std::vector<std::string> const& words, char const* expected, std::string const& name, bool keys);

}  // namespace p3d::app
