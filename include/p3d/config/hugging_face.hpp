// SPDX-License-Identifier: Apache-2.0
#pragma once
// config.json of Hugging Face transformers <-> [model], for the families of model_families(). docs/model_files.md lists
// the keys. Source: the families' configuration classes in transformers (4.x and 5.x: GPT2Config, LlamaConfig and so
// on), whose defaults stand for keys that a file may leave out.

#include <p3d/config/config.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::config {

/// The families of models that p3d shares with transformers.
enum class ModelFamily {
  gpt2,
  llama,
  mistral,
  ministral3,
  mixtral,
  qwen2,
  qwen2_moe,
  qwen3,
  qwen3_moe,
  olmo2,
  olmo3,
  olmoe,
  granite,
  glm4,
  gemma2,
  gemma3_text,
  phi3,
  smollm3,
  deepseek_v3,
  glm4_moe,
  gpt_oss,
  apertus
};
/// Names as model_type says them.
constexpr auto enum_names(ModelFamily) {
  return std::array{"gpt2",        "llama",    "mistral",   "ministral3",  "mixtral", "qwen2",
                    "qwen2_moe",   "qwen3",    "qwen3_moe", "olmo2",       "olmo3",   "olmoe",
                    "granite",     "glm4",     "gemma2",    "gemma3_text", "phi3",    "smollm3",
                    "deepseek_v3", "glm4_moe", "gpt_oss",   "apertus"};
}

/// The windows of a family's layers: none; one for all layers, or none; one for some layers.
enum class FamilyWindows { none, one, mixed };

/// A family in words, and what all its models have.
struct ModelFamilyRow {
  ModelFamily family;
  char const* name;          ///< as people call it: "Llama"
  char const* architecture;  ///< the class of transformers that runs it, for "architectures"
  char const* form;          ///< the keys of [model] that make a model one of the family
  bool experts = false;      ///< some layers have experts
  QkNorm qk_norm = QkNorm::none;
  NormPlacement norm_placement = NormPlacement::pre;
  FamilyWindows windows = FamilyWindows::none;
};
/// All families, in the order of the enumeration.
std::span<ModelFamilyRow const> model_families();
inline ModelFamilyRow const& row_of(ModelFamily family) { return model_families()[static_cast<std::size_t>(family)]; }

/// A model that was read from a config.json.
struct HuggingFaceModel {
  ModelFamily family = ModelFamily::gpt2;
  Model model;
  std::vector<std::string> notes;  ///< for people: values that are read in another way than they are written (dropout)
  /// Layers of multi-token prediction behind the model's own, as the file says. Published folders may lack their
  /// tensors: `model` has them where a folder has.
  std::int64_t prediction_layers = 0;
};

/// Reads a config.json; `path` is for messages. Every key is mapped, or known to have no effect on the function, or has
/// the one value that p3d's model has. Throws base::Error (bad_input) that lists all other keys, unknown ones included.
HuggingFaceModel read_hugging_face(std::string_view json, std::string const& path);

/// Reads FOLDER/config.json, of at most 1 MiB. Layers of multi-token prediction become blocks of model.mtp where the
/// folder's files have tensors of them; else they are left out, with a note.
HuggingFaceModel read_hugging_face_folder(std::string const& folder);

/// The family whose architecture the model has. Two families may have one architecture and name tensors differently
/// (llama and phi3): `origin`, the family that the model began in, is taken where the model is one of it. Without it:
/// apertus with xIELU, gpt_oss with attention sinks, deepseek_v3 with latent attention, glm4_moe with sigmoid scores of
/// experts and biases of their choice, glm4, gemma2 or gemma3_text (with norm_offset 1; the latter with norms of
/// queries and keys) where norms stand at both places, olmo2 or olmo3 (with windows) where they stand behind
/// sub-layers, granite where there is a multiplier, ministral3 where queries grow with their position, qwen3 where
/// heads have norms of queries and keys, phi3 where a part of a head rotates or frequencies are longrope's, mistral
/// where a Llama without biases has one window for all layers, qwen2 where q, k and v alone have biases, smollm3 where
/// a layer does not rotate; with experts qwen3_moe or olmoe where there are norms of heads or of all heads, qwen2_moe
/// where some are shared, else mixtral. Throws base::Error (bad_input) that names the keys of [model] that no family
/// has.
ModelFamily family_of(Model const& model, std::optional<ModelFamily> origin = {});

/// The text of a config.json of the model, as family_of(model, origin). `dtype` is the type of the weights as torch
/// names it ("float32"). `eos_token` -1: null.
std::string write_hugging_face(Model const& model, std::string_view dtype, std::int64_t eos_token,
                               std::optional<ModelFamily> origin = {});

/// The result of update_hugging_face().
struct UpdatedConfig {
  ModelFamily family = ModelFamily::gpt2;  ///< the family that the file names
  std::string text;
  std::vector<std::string> changes;  ///< one line for each key that has changed, or that looks as if it should have
};
/// Makes the config.json of a model that began as the model of `origin`, which is a config.json too. The bytes of
/// `origin` are kept; a value changes only where the model has another one, and for the type of the numbers. A model
/// with rotary positions that was trained on shorter texts keeps the longer length. Throws base::Error (bad_input) with
/// `path` where `origin` describes another model.
UpdatedConfig update_hugging_face(std::string_view origin, std::string const& path, Model const& model,
                                  std::string_view dtype, std::int64_t eos_token);

}  // namespace p3d::config
