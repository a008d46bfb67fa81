// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts that readers and writers of families share: the keys of Llama and of models with experts
// (hugging_face.cpp), rotary positions (hugging_face_rope.cpp), the families whose router is DeepSeek-V3's
// (hugging_face_deepseek.cpp), gpt-oss (hugging_face_gpt_oss.cpp) and Apertus (hugging_face_apertus.cpp).

#include "config/hugging_face_reader.hpp"

#include <p3d/config/hugging_face.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace p3d::config {

/// Values that a family has where its file leaves a key out.
struct LlamaDefaults {
  double norm_eps = 1e-6, rope_theta = 1e4;
  double rope_local_theta = 0;  ///< above 0: base of layers with a window where rope_parameters has none for them
  bool tied = false;
  std::int64_t kv_heads = 0;                           ///< 0: as many as heads
  std::int64_t head_dim = 0;                           ///< 0: hidden / heads
  bool biases = true;                                  ///< false: attention_bias must be false
  bool qkv_biases = false;                             ///< attention_bias is of q, k and v alone
  bool biased = true;                                  ///< with qkv_biases: attention_bias where it is left out
  double rope_fraction = 0;                            ///< above 0: partial_rotary_factor may be another number
  bool query_beta = false;                             ///< there may be a llama_4_scaling_beta
  bool longrope = false;                               ///< rope_type may be "longrope"
  bool by_kind = false;                                ///< rope_parameters may have an object for each kind of layer
  char const* unbiased = "norms of queries and keys";  ///< why `biases` is false
};

/// Reads rotary positions: rope_parameters (transformers 5), or rope_scaling beside rope_theta (earlier versions).
/// Where partial_rotary_factor may differ from 1, it is m.rope_fraction where the file has none.
void read_rope(Reader& r, Model& m, LlamaDefaults const& defaults, std::string const& path);

/// Reads the keys that LlamaConfig and the configurations after it share.
void read_llama(Reader& r, HuggingFaceModel& out, std::string const& path, LlamaDefaults const& defaults = {});

/// Reads the keys that all families with experts share; `number` names the key of the number of experts, for which
/// transformers 5 knows the name num_local_experts in all of them.
void read_experts(Reader& r, HuggingFaceModel& out, char const* number, std::int64_t experts, std::int64_t top_k);

/// Reads layer_types and sliding_window of models of which some layers have a window; without the list all but every
/// `interval`th. Scaled rotary frequencies are those of the other layers.
void read_mixed_layers(Reader& r, Model& m, std::int64_t interval, std::int64_t default_window = 4096);

/// Reads DeepseekV3Config: latent attention, and experts behind some first dense layers.
void read_deepseek_v3(Reader& r, HuggingFaceModel& out, std::string const& path);
/// Reads Glm4MoeConfig: a Llama of whose heads a part rotates, with DeepSeek-V3's experts.
void read_glm4_moe(Reader& r, HuggingFaceModel& out, std::string const& path);
/// Reads GptOssConfig: a Llama with attention sinks, clamped SwiGLU and experts with biases.
void read_gpt_oss(Reader& r, HuggingFaceModel& out, std::string const& path);
/// Reads ApertusConfig: a Llama with norms of queries and keys and xIELU in place of SwiGLU.
void read_apertus(Reader& r, HuggingFaceModel& out, std::string const& path);

/// True for the families whose router has sigmoid scores and biases of the choice.
inline bool has_choice_bias(ModelFamily family) {
  return family == ModelFamily::deepseek_v3 || family == ModelFamily::glm4_moe;
}

/// Notes a key whose value is not `good` for a family.
using Want = std::function<void(bool good, char const* key, std::string const& value)>;
/// Asks for the keys of latent attention of a DeepSeek-V3.
void want_latent_attention(Model const& model, Want const& want);
/// Asks for the keys of experts of a family with biases of the choice.
void want_biased_experts(Model const& model, ModelFamily family, Want const& want);

/// Gives the model the blocks of multi-token prediction that its file names, where the folder has their tensors.
void take_prediction_layers(HuggingFaceModel& out, std::string const& folder);

/// The mscale_all_dim of YaRN by which transformers scales a DeepSeek-V3's scores as model.attention_multiplier does; 0
/// where that is 1 / sqrt(head_dim). Nothing: no number gives just this multiplier.
std::optional<double> mscale_all_dim(Model const& model);

/// Adds the keys that DeepseekV3Config has besides Llama's; `out` holds those.
void write_latent_attention(Model const& model, nlohmann::ordered_json& out);
/// Adds the keys of experts of a family with biases of the choice.
void write_biased_experts(Model const& model, nlohmann::ordered_json& out);
/// Adds the keys that GptOssConfig has besides Llama's, but for those of positions and windows.
void write_gpt_oss(Model const& model, nlohmann::ordered_json& out);

}  // namespace p3d::config
