// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads the weights of a model in Hugging Face form as parameters of p3d: into a trainer on any layout, or into a
// checkpoint.

#include <p3d/config/hugging_face.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/io/safetensors.hpp>
#include <p3d/layout/hugging_face.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::io {

/// A model in a folder: config.json and model.safetensors (or several files with an index). The numbers stay on disk
/// until read().
class ModelWeights {
public:
  /// Reads all but the numbers. Throws base::Error (bad_input) that names the file and the tensor: when a tensor is
  /// missing, unknown, of another shape than config.json says or of no type of weights, or when the output layer is
  /// tied and is also stored with other numbers than the embedding. The same holds for embedding and output layer of
  /// layers of multi-token prediction.
  explicit ModelWeights(std::string folder);
  ModelWeights(ModelWeights const&) = delete;
  ModelWeights& operator=(ModelWeights const&) = delete;

  std::string const& folder() const { return folder_; }
  config::HuggingFaceModel const& config() const { return config_; }
  layout::ParamTable const& table() const { return table_; }
  /// The type that holds all weights: float64 where a tensor has numbers of float64, else float32.
  Element element() const;
  /// Reads the rectangle rows x cols of a parameter into `out`, row-major, converted to `as`.
  void read(std::string const& parameter, layout::Range rows, layout::Range cols, Element as, void* out);

private:
  /// The number that is taken off biases of the choice of experts, on which no choice depends: their mean where all
  /// are near it, else 0. What is left keeps its digits in 16 bits.
  double common_offset(Tensor const& biases);
  /// Reads a rectangle that lies in one tensor of the files, at `place`.
  void read_part(layout::HuggingFacePlace const& place, layout::Range rows, layout::Range cols, Element as, char* to);
  /// Reads a run of elements into neighbouring places from `to` on.
  void read_run(Tensor const& tensor, layout::ElementRun const& run, Element as, char* to);
  /// The stored tensor for one that the model needs. Throws when it is missing or does not fit.
  Tensor const& tensor_of(layout::HuggingFaceTensor const& wanted) const;
  /// True for a tensor that holds a constant of the model. Throws when it holds another number.
  bool is_constant(std::string const& tensor);
  /// Throws unless the files hold all tensors of the model and no others.
  void require_tensors();
  /// Throws when a tied output layer is also stored, with other numbers than the embedding, or a layer of multi-token
  /// prediction has others than the model.
  void require_tied();
  /// Throws unless two tensors have the same numbers.
  void require_same(Tensor const& copy, Tensor const& original, char const* why, char const* fix);

  std::string folder_;
  config::HuggingFaceModel config_;
  Safetensors files_;
  layout::ParamTable table_;
  layout::HuggingFaceLayout layout_;
  TensorReader reader_;
  std::vector<char> run_;   ///< buffer for tensors that are stored transposed
  std::vector<char> span_;  ///< buffer for elements between which others lie
};

/// Fills the parts "parameters/..." of all ranks. Each rank reads what it holds and nothing else, `buffer_bytes` at a
/// time (at least a row). Returns the content_hash() of a checkpoint that holds these weights alone, as `element`; it
/// is the same on every layout. Throws base::Error on every rank. Collective.
std::uint64_t load_weights(comm::Communicator& world, ModelWeights& weights, Element element,
                           std::vector<CheckpointPart> const& parts, std::int64_t buffer_bytes);

}  // namespace p3d::io
