// SPDX-License-Identifier: Apache-2.0
#pragma once
// Export of a checkpoint's parameters as a model in Hugging Face form.

#include <p3d/config/hugging_face.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/io/model_files.hpp>
#include <p3d/io/safetensors.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace p3d::io {

struct ExportOptions {
  TensorType type = TensorType::f32;
  std::int64_t shard_bytes = 5'000'000'000;  ///< most bytes of data in one file; a larger tensor has a file of its own
  std::int64_t buffer_bytes = 64 << 20;
  /// Files that rank 0 writes beside the weights; their names satisfy base::is_file_name. Without a config.json among
  /// them, one is made from the model.
  ModelFiles files = {};
  /// The family that the model began in (config::family_of), the same on all ranks.
  std::optional<config::ModelFamily> family = {};
};

/// The name that config.json gives to a type of weights, for example "bfloat16".
char const* torch_name(TensorType type);

/// Writes the weights (safetensors.hpp) and the other files into a folder that has no model yet, and none of these
/// files. Returns their paths. Each rank reads and writes its share of the rows, `buffer_bytes` at a time (at least a
/// row). Throws base::Error on every rank: for a model of neither family, a checkpoint of another model, numbers that
/// were changed after they were written, and numbers that float16 cannot hold. Collective.
std::vector<std::string> export_model(comm::Communicator& world, Checkpoint const& checkpoint,
                                      config::Model const& model, std::string const& folder,
                                      ExportOptions const& options);

}  // namespace p3d::io
