// SPDX-License-Identifier: Apache-2.0
#pragma once
// `p3d import` and `p3d export`: models in Hugging Face form.

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::app {

int import_command(int argc, char** argv);
int export_command(int argc, char** argv);

/// Bytes of numbers that both hold at a time.
inline constexpr std::int64_t model_buffer_bytes = 64 << 20;

/// What both take: two paths, and where `keys` is true "key=value" anywhere among them.
struct ModelWords {
  std::string from, to;
  std::vector<std::string> keys;
};
/// Throws wrong_words for more or fewer; `name` is the command's.
ModelWords sort_words(std::vector<std::string> const& words, char const* expected, std::string const& name, bool keys);

}  // namespace p3d::app
