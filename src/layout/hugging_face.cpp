// SPDX-License-Identifier: Apache-2.0
// Names and places of tensors. A table for each family gives the tensor of a parameter; the loop below goes through the
// parameters in their order. Example: GPT-2's layers.3.attn.k.weight is in transformer.h.3.attn.c_attn.weight,
// transposed, behind the columns of q.
#include <p3d/layout/hugging_face.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/xielu.hpp>

#include <fmt/format.h>

#include <utility>

namespace p3d::layout {

namespace {

using config::ModelFamily;

/// A row of names: a parameter's name without its layer and its ending, and the tensor's name, in which {} stands for
/// the layer.
struct NameRow {
  char const* parameter;
  char const* tensor;
  bool transposed = false;
  bool joins = false;  ///< it follows the parameter before in the same tensor
};

constexpr NameRow gpt2_names[] = {{"embed.token", "transformer.wte"},
                                  {"embed.position", "transformer.wpe"},
                                  {"norm1", "transformer.h.{}.ln_1"},
                                  {"attn.q", "transformer.h.{}.attn.c_attn", true},
                                  {"attn.k", "transformer.h.{}.attn.c_attn", true, true},
                                  {"attn.v", "transformer.h.{}.attn.c_attn", true, true},
                                  {"attn.out", "transformer.h.{}.attn.c_proj", true},
                                  {"norm2", "transformer.h.{}.ln_2"},
                                  {"mlp.up", "transformer.h.{}.mlp.c_fc", true},
                                  {"mlp.down", "transformer.h.{}.mlp.c_proj", true},
                                  {"final_norm", "transformer.ln_f"},
                                  {"head", "lm_head"}};

constexpr NameRow llama_names[] = {{"embed.token", "model.embed_tokens"},
                                   {"norm1", "model.layers.{}.input_layernorm"},
                                   {"attn.q", "model.layers.{}.self_attn.q_proj"},
                                   {"attn.k", "model.layers.{}.self_attn.k_proj"},
                                   {"attn.v", "model.layers.{}.self_attn.v_proj"},
                                   {"attn.q_norm", "model.layers.{}.self_attn.q_norm"},
                                   {"attn.k_norm", "model.layers.{}.self_attn.k_norm"},
                                   {"attn.out", "model.layers.{}.self_attn.o_proj"},
                                   {"norm2", "model.layers.{}.post_attention_layernorm"},
                                   {"mlp.gate", "model.layers.{}.mlp.gate_proj"},
                                   {"mlp.up", "model.layers.{}.mlp.up_proj"},
                                   {"mlp.down", "model.layers.{}.mlp.down_proj"},
                                   {"final_norm", "model.norm"},
                                   {"head", "lm_head"}};

// Parameters that these families' tables lack have Llama's names.
constexpr NameRow olmo2_names[] = {{"post_norm1", "model.layers.{}.post_attention_layernorm"},
                                   {"post_norm2", "model.layers.{}.post_feedforward_layernorm"}};

constexpr NameRow glm4_names[] = {{"post_norm1", "model.layers.{}.post_self_attn_layernorm"},
                                  {"mlp.gate", "model.layers.{}.mlp.gate_up_proj"},
                                  {"mlp.up", "model.layers.{}.mlp.gate_up_proj", false, true},
                                  {"post_norm2", "model.layers.{}.post_mlp_layernorm"}};

// Gemma 2 and Gemma 3 have the same names.
constexpr NameRow gemma_names[] = {{"post_norm1", "model.layers.{}.post_attention_layernorm"},
                                   {"norm2", "model.layers.{}.pre_feedforward_layernorm"},
                                   {"post_norm2", "model.layers.{}.post_feedforward_layernorm"}};

constexpr NameRow phi3_names[] = {{"attn.q", "model.layers.{}.self_attn.qkv_proj"},
                                  {"attn.k", "model.layers.{}.self_attn.qkv_proj", false, true},
                                  {"attn.v", "model.layers.{}.self_attn.qkv_proj", false, true},
                                  {"mlp.gate", "model.layers.{}.mlp.gate_up_proj"},
                                  {"mlp.up", "model.layers.{}.mlp.gate_up_proj", false, true}};

// Names of layers with experts; the second {} stands for the expert. Parameters that these tables lack have Llama's
// names.
constexpr NameRow mixtral_names[] = {{"moe.router", "model.layers.{}.block_sparse_moe.gate"},
                                     {"moe.experts.gate", "model.layers.{}.block_sparse_moe.experts.{}.w1", true},
                                     {"moe.experts.up", "model.layers.{}.block_sparse_moe.experts.{}.w3", true},
                                     {"moe.experts.down", "model.layers.{}.block_sparse_moe.experts.{}.w2"}};

// Of Qwen2-MoE, Qwen3-MoE and OLMoE.
constexpr NameRow qwen_moe_names[] = {{"moe.router", "model.layers.{}.mlp.gate"},
                                      {"moe.experts.gate", "model.layers.{}.mlp.experts.{}.gate_proj", true},
                                      {"moe.experts.up", "model.layers.{}.mlp.experts.{}.up_proj", true},
                                      {"moe.experts.down", "model.layers.{}.mlp.experts.{}.down_proj"},
                                      {"moe.shared.gate", "model.layers.{}.mlp.shared_expert.gate_proj"},
                                      {"moe.shared.up", "model.layers.{}.mlp.shared_expert.up_proj"},
                                      {"moe.shared.down", "model.layers.{}.mlp.shared_expert.down_proj"},
                                      {"moe.shared_gate", "model.layers.{}.mlp.shared_expert_gate"}};

// DeepSeek-V3 and GLM-4.5 name routed experts as Qwen2-MoE does.
constexpr NameRow deepseek_names[] = {{"attn.q_down", "model.layers.{}.self_attn.q_a_proj"},
                                      {"attn.q_latent_norm", "model.layers.{}.self_attn.q_a_layernorm"},
                                      {"attn.q_up", "model.layers.{}.self_attn.q_b_proj"},
                                      {"attn.kv_down", "model.layers.{}.self_attn.kv_a_proj_with_mqa"},
                                      {"attn.kv_latent_norm", "model.layers.{}.self_attn.kv_a_layernorm"},
                                      {"attn.kv_up", "model.layers.{}.self_attn.kv_b_proj"},
                                      {"moe.shared.gate", "model.layers.{}.mlp.shared_experts.gate_proj"},
                                      {"moe.shared.up", "model.layers.{}.mlp.shared_experts.up_proj"},
                                      {"moe.shared.down", "model.layers.{}.mlp.shared_experts.down_proj"},
                                      {"mtp.enorm", "model.layers.{}.enorm"},
                                      {"mtp.hnorm", "model.layers.{}.hnorm"},
                                      {"mtp.eh_proj", "model.layers.{}.eh_proj"},
                                      {"mtp.final_norm", "model.layers.{}.shared_head.norm"}};
constexpr char const* choice_bias_name = "model.layers.{}.mlp.gate.e_score_correction_bias";

constexpr NameRow gpt_oss_names[] = {{"moe.router", "model.layers.{}.mlp.router"},
                                     {"moe.experts.gate", "model.layers.{}.mlp.experts.gate_up_proj"},
                                     {"moe.experts.up", "model.layers.{}.mlp.experts.gate_up_proj"},
                                     {"moe.experts.down", "model.layers.{}.mlp.experts.down_proj", true}};

constexpr NameRow apertus_names[] = {{"norm1", "model.layers.{}.attention_layernorm"},
                                     {"norm2", "model.layers.{}.feedforward_layernorm"}};

/// A parameter's name without its layer, cut before its last dot: "layers.3.attn.q.weight" is "attn.q" and ".weight".
struct SplitName {
  std::string stem, ending;
};
SplitName split(ParamSpec const& spec) {
  auto const& name = spec.name;
  auto const dot = name.rfind('.');
  auto const prefix = fmt::format("layers.{}.", spec.layer);
  auto const begin = name.starts_with(prefix) ? prefix.size() : 0;
  return {name.substr(begin, dot - begin), name.substr(dot)};
}

/// True for the families that store the biases of the choice of experts.
bool has_choice_bias(ModelFamily family) {
  return family == ModelFamily::deepseek_v3 || family == ModelFamily::glm4_moe;
}

/// The row of a parameter; every family has one for each of its parameters.
NameRow const& find_row(ModelFamily family, std::string const& stem) {
  auto const find = [&](auto const& rows) -> NameRow const* {
    for (auto const& row : rows) {
      if (stem == row.parameter) return &row;
    }
    return nullptr;
  };
  NameRow const* row = nullptr;
  if (family == ModelFamily::olmo2 || family == ModelFamily::olmo3) row = find(olmo2_names);
  if (family == ModelFamily::glm4) row = find(glm4_names);
  if (family == ModelFamily::gemma2 || family == ModelFamily::gemma3_text) row = find(gemma_names);
  if (family == ModelFamily::phi3) row = find(phi3_names);
  if (has_choice_bias(family)) row = find(deepseek_names);
  if (family == ModelFamily::gpt_oss) row = find(gpt_oss_names);
  if (family == ModelFamily::apertus) row = find(apertus_names);
  if (!row) row = family == ModelFamily::gpt2 ? find(gpt2_names) : find(llama_names);
  if (!row) row = family == ModelFamily::mixtral ? find(mixtral_names) : find(qwen_moe_names);
  if (!row) base::contract_violated("row", __FILE__, __LINE__, "every parameter of the family has a tensor: " + stem);
  return *row;
}

/// Adds a tensor for each expert, and returns the place of their parameter.
HuggingFacePlace add_experts(NameRow const& row, ParamSpec const& spec, std::int64_t experts, HuggingFaceLayout& out) {
  HuggingFacePlace const place{out.tensors.size(), row.transposed, 0, spec.rows / experts};
  for (std::int64_t e = 0; e < experts; ++e) {
    HuggingFaceTensor t{fmt::format(fmt::runtime(row.tensor), spec.layer, e) + ".weight", {place.block, spec.cols}};
    if (row.transposed) std::swap(t.shape[0], t.shape[1]);
    out.tensors.push_back(std::move(t));
  }
  return place;
}

/// Adds the tensor of a parameter of all experts of gpt-oss, which for gate and up is one, and returns the place.
HuggingFacePlace add_joined_experts(NameRow const& row, SplitName const& name, ParamSpec const& spec,
                                    std::int64_t experts, HuggingFaceLayout& out) {
  bool const gate = name.stem.ends_with(".gate"), up = name.stem.ends_with(".up");
  HuggingFacePlace place;
  place.tensor = up ? out.places.back().tensor : out.tensors.size();
  if (gate || up) place.interleaved = 2, place.turn = up ? 1 : 0;
  bool const bias = name.ending == ".bias";
  if (row.transposed && !bias) {
    place.transposed = true;
    place.block = spec.rows / experts;
    place.block_elements = place.block * spec.cols;
  }
  if (up) return place;
  HuggingFaceTensor t{fmt::format(fmt::runtime(row.tensor), spec.layer) + (bias ? "_bias" : ""), {experts}};
  if (place.transposed)
    t.shape.insert(t.shape.end(), {spec.cols, place.block});
  else if (bias)
    t.shape.push_back(place.interleaved * spec.cols);
  else
    t.shape.insert(t.shape.end(), {spec.rows / experts, place.interleaved * spec.cols});
  out.tensors.push_back(std::move(t));
  return place;
}

/// The name of the tensor of a vector that models of one family alone have (gpt-oss, Apertus); "": it is none of these.
std::string own_vector(ParamSpec const& spec) {
  auto const of_layer = [&](char const* name) { return fmt::format("model.layers.{}.{}", spec.layer, name); };
  if (spec.name.ends_with(".attn.sinks")) return of_layer("self_attn.sinks");
  if (spec.name.ends_with(".moe.router.linear_bias")) return of_layer("mlp.router.bias");
  if (spec.name.ends_with(".mlp.alpha_p")) return of_layer("mlp.act_fn.alpha_p");
  if (spec.name.ends_with(".mlp.alpha_n")) return of_layer("mlp.act_fn.alpha_n");
  return "";
}

/// The constants of xIELU in each layer.
std::vector<HuggingFaceConstant> xielu_constants(std::int64_t layers) {
  std::vector<HuggingFaceConstant> out;
  for (std::int64_t l = 0; l < layers; ++l) {
    out.push_back({fmt::format("model.layers.{}.mlp.act_fn.beta", l), base::xielu_beta});
    out.push_back({fmt::format("model.layers.{}.mlp.act_fn.eps", l), base::xielu_eps});
  }
  return out;
}

/// Adds what layers of multi-token prediction have of the model once more.
void add_copies(config::Model const& m, ParamTable const& table, HuggingFaceLayout& out) {
  auto const tensor_of = [&](char const* parameter) {
    auto const row = static_cast<std::size_t>(&table.find(parameter) - table.specs().data());
    return out.places[row].tensor;
  };
  auto const add = [&](std::int64_t layer, char const* name, char const* parameter) {
    auto const of = tensor_of(parameter);
    out.copies.push_back({{fmt::format("model.layers.{}.{}.weight", layer, name), out.tensors[of].shape}, of});
  };
  for (auto l = m.layers; l < m.all_layers(); ++l) {
    add(l, "embed_tokens", "embed.token.weight");
    add(l, "shared_head.head", m.tied_embeddings ? "embed.token.weight" : "head.weight");
  }
}

}  // namespace

HuggingFaceLayout hugging_face_layout(config::ModelFamily family, config::Model const& model, ParamTable const& table) {
  HuggingFaceLayout out;
  out.family = family;
  if (family == ModelFamily::apertus) out.constants = xielu_constants(model.layers);
  std::size_t weight = 0, bias = 0;  // the tensors that parameters share with the one before
  for (auto const& spec : table.specs()) {
    if (has_choice_bias(family) && spec.name.ends_with(".moe.router.bias")) {
      out.places.push_back({.tensor = out.tensors.size()});
      out.tensors.push_back({fmt::format(fmt::runtime(choice_bias_name), spec.layer), {spec.cols}, true});
      continue;
    }
    if (!spec.trained) {
      out.places.push_back({.tensor = HuggingFacePlace::nowhere});
      continue;
    }
    if (auto name = own_vector(spec); !name.empty()) {
      out.places.push_back({.tensor = out.tensors.size()});
      out.tensors.push_back({std::move(name), {spec.cols}});
      continue;
    }
    auto const name = split(spec);
    auto const& [stem, ending] = name;
    auto const& row = find_row(out.family, stem);
    if (stem.starts_with("moe.experts.")) {
      out.places.push_back(family == ModelFamily::gpt_oss ? add_joined_experts(row, name, spec, model.moe.experts, out)
                                                          : add_experts(row, spec, model.moe.experts, out));
      continue;
    }
    bool const matrix = ending == ".weight" && stem.find("norm") == std::string::npos;
    auto const size = matrix ? spec.rows : spec.cols;
    auto& shared = matrix ? weight : bias;
    if (!row.joins) {
      HuggingFaceTensor t;
      t.name = fmt::format(fmt::runtime(row.tensor), spec.layer) + ending;
      if (matrix) t.shape = {spec.cols};
      t.shape.insert(row.transposed ? t.shape.end() : t.shape.begin(), 0);
      shared = out.tensors.size();
      out.tensors.push_back(std::move(t));
    }
    auto& shape = out.tensors[shared].shape;
    auto& outputs = row.transposed ? shape.back() : shape.front();
    out.places.push_back({.tensor = shared, .transposed = matrix && row.transposed, .first = outputs});
    outputs += size;
  }
  add_copies(model, table, out);
  return out;
}

bool is_hugging_face_buffer(std::string_view tensor) {
  return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias") ||
         tensor.ends_with("rotary_emb.inv_freq");
}

}  // namespace p3d::layout
