// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys of [model] as structs: sizes and switches of a transformer, with its experts, latent attention and
// multi-token prediction. config.hpp has the other sections.

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace p3d::config {

enum class Norm { layernorm, rmsnorm };
constexpr auto enum_names(Norm) { return std::array{"layernorm", "rmsnorm"}; }
enum class Position { learned, rope };
constexpr auto enum_names(Position) { return std::array{"learned", "rope"}; }
enum class Activation { gelu, swiglu, geglu, swiglu_clamped, xielu };
constexpr auto enum_names(Activation) { return std::array{"gelu", "swiglu", "geglu", "swiglu_clamped", "xielu"}; }
/// The RMS norm of queries and keys: none, one for each head, or one for all heads of a token.
enum class QkNorm { none, head, full };
constexpr auto enum_names(QkNorm) { return std::array{"none", "head", "full"}; }
/// The dimensions of a head that form a pair (kernels/rope.hpp).
enum class RopePairs { halves, neighbours };
constexpr auto enum_names(RopePairs) { return std::array{"halves", "neighbours"}; }
/// The places of a layer's norms: in front of each sub-layer (GPT-2, Llama), behind it before its branch is added
/// (OLMo 2, arXiv 2501.00656, section 3), or at both places (Gemma 2; "peri-LN", arXiv 2502.02732).
enum class NormPlacement { pre, post, sandwich };
constexpr auto enum_names(NormPlacement) { return std::array{"pre", "post", "sandwich"}; }
/// How the rotary frequencies are stretched beyond the length that a model was first trained on.
enum class RopeScaling { none, linear, llama3, yarn, longrope };
constexpr auto enum_names(RopeScaling) { return std::array{"none", "linear", "llama3", "yarn", "longrope"}; }
/// How a router turns its logits into scores of experts.
enum class RouterScore { softmax, sigmoid };
constexpr auto enum_names(RouterScore) { return std::array{"softmax", "sigmoid"}; }
/// How rows travel to experts: each to the ranks of its chosen experts, or all tokens to all ranks.
enum class Dispatch { all_to_all, gather };
constexpr auto enum_names(Dispatch) { return std::array{"all_to_all", "gather"}; }
/// The tokens that a balancing loss is the mean over. Each choice gives the same loss on every layout.
enum class AuxLoss { none, sequence, global };
constexpr auto enum_names(AuxLoss) { return std::array{"none", "sequence", "global"}; }

/// [model.moe]: experts instead of one feed-forward layer (Shazeer et al., arXiv 1701.06538). Routing is computed in
/// the type of sums.
struct Moe {
  std::int64_t experts = 0;      ///< number of experts in a layer; 0: a dense model
  std::int64_t top_k = 2;        ///< number of experts that each token is sent to
  std::int64_t every = 1;        ///< layers l with (l + 1) % every = 0 have experts
  std::int64_t first_dense = 0;  ///< the first layers, so many, have none in any case
  std::int64_t ffn = 256;        ///< width of one expert; default: model.ffn
  std::int64_t shared_ffn = 0;   ///< width in all of the experts that serve every token; 0: none
  bool shared_gate = false;      ///< their output is multiplied by the sigmoid of a linear of the token (Qwen-MoE)
  bool bias = false;             ///< the linears of the router and of routed experts have biases (gpt-oss)
  RouterScore score = RouterScore::softmax;
  /// Gates are divided by their sum over the chosen experts; softmax: it is taken over the chosen ones alone.
  bool normalize = true;
  double scale = 1.0;            ///< factor of the gates, applied after `normalize`
  std::int64_t groups = 0;       ///< number of groups of neighbouring experts; 0, 1: none
  std::int64_t group_top_k = 0;  ///< number of groups that a token's experts may come from
  /// Step of the biases that balance the choice of experts (Wang et al., arXiv 2408.15664); 0: they do not change.
  double bias_update_rate = 0.0;
  bool choice_bias = false;  ///< the router has these biases; default: bias_update_rate > 0
  AuxLoss aux_loss = AuxLoss::none;
  double aux_coefficient = 0.01;
  /// Factor of mean(logsumexp(logits)^2) (Zoph et al., arXiv 2202.08906, equation 5); 0: none.
  double z_coefficient = 0.0;
  /// In training the router's input is multiplied by uniform(1 - jitter, 1 + jitter); 0: it is not.
  double jitter = 0.0;
  /// An expert takes so many times its mean number of a sequence's tokens; 0: all tokens.
  double capacity_factor = 0.0;
  Dispatch dispatch = Dispatch::all_to_all;
  /// Rows that a rank receives at once, as a multiple of their number when experts are balanced.
  double buffer_factor = 2.0;

  bool on() const { return experts > 0; }
  bool grouped() const { return groups > 1; }
  /// True when the choices of a batch change the router of the next one. Its weights are in memory then.
  bool changes_router() const { return on() && (bias_update_rate > 0.0 || aux_loss == AuxLoss::global); }
  bool operator==(Moe const&) const = default;
};

/// [model.mla]: multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). Keys and values of all heads
/// come from one short vector of a token, its latent, behind a norm; queries from another one. A query and a key have a
/// part without positions and behind it one that rotates, which all heads of a token share on the side of keys.
struct Mla {
  std::int64_t kv_lora_rank = 0;      ///< numbers of the latent of keys and values; 0: grouped-query attention
  std::int64_t q_lora_rank = 0;       ///< numbers of the latent of queries; 0: queries come from the stream
  std::int64_t qk_nope_head_dim = 0;  ///< dimensions of a query and a key that do not rotate
  std::int64_t qk_rope_head_dim = 0;  ///< dimensions of a query and a key that rotate
  std::int64_t v_head_dim = 0;        ///< width of a head of values
  double norm_eps = 1e-6;             ///< added to the mean square in the norms of the latents

  bool on() const { return kv_lora_rank > 0; }
  /// Columns of the linear that makes a token's latents: queries, keys and values, the rotating part of keys.
  std::int64_t latent() const { return q_lora_rank + kv_lora_rank + qk_rope_head_dim; }
  /// Numbers of a token that keys and values of all heads are made of.
  std::int64_t key_value_latent() const { return kv_lora_rank + qk_rope_head_dim; }
  /// Columns of a head behind the latent of keys and values: the part of a key without positions, and the value.
  std::int64_t kv_head_dim() const { return qk_nope_head_dim + v_head_dim; }
  bool operator==(Mla const&) const = default;
};

/// [model.mtp]: multi-token prediction in training (DeepSeek-V3, arXiv 2412.19437, section 2.2; model/mtp.hpp).
struct Mtp {
  std::int64_t depth = 0;    ///< number of blocks; 0: none
  double loss_weight = 0.3;  ///< factor of the mean of the blocks' losses
  bool on() const { return depth > 0; }
  /// Factor of the loss of one block in the loss that is minimised.
  double factor() const { return on() ? loss_weight / static_cast<double>(depth) : 0.0; }
  bool operator==(Mtp const&) const = default;
};

/// [model]; `preset` is applied first, the other keys override it.
struct Model {
  std::string preset;  ///< "" or one of preset_names()
  std::string load;    ///< folder of a model in Hugging Face form, with its config.json and its weights; "": none
  std::int64_t vocab_size = 256;
  std::int64_t hidden = 64;
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 4;   ///< default: heads
  std::int64_t head_size = 0;  ///< model.head_dim, width of a head; 0, which no parsed input has: hidden / heads
  std::int64_t ffn = 256;      ///< default: 4 hidden (no gate), 8/3 hidden rounded up to 16 (with a gate)
  std::int64_t seq_len = 64;
  Norm norm = Norm::layernorm;
  Position position = Position::learned;
  Activation activation = Activation::gelu;
  double swiglu_alpha = 1.702;  ///< swiglu_clamped: factor in the sigmoid of the gate
  double swiglu_limit = 7.0;    ///< swiglu_clamped: bound of gate and up
  bool bias = true;
  bool qkv_bias = false;  ///< default: bias; true without bias: only the linear of q, k and v has a bias
  bool tied_embeddings = true;
  double dropout = 0.0;  ///< probability; on the embedding, the attention probabilities and both residual branches
  double rope_theta = 10000.0;
  double rope_local_theta = 0.0;  ///< layers with a window take it for rope_theta; 0: none
  double rope_fraction = 1.0;     ///< of a head's dimensions, from the first on, that rotate
  RopePairs rope_pairs = RopePairs::halves;
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_scaling_factor = 1.0;           ///< slow frequencies, or all of them, are divided by it
  double rope_low_freq_factor = 1.0;          ///< llama3: slower frequencies are divided by the factor
  double rope_high_freq_factor = 4.0;         ///< llama3: faster frequencies keep their value
  std::int64_t rope_original_seq_len = 8192;  ///< llama3, yarn, longrope: tokens in a sequence of the first training
  double rope_beta_fast = 32.0;               ///< yarn: frequencies that turn more often keep their value
  double rope_beta_slow = 1.0;                ///< yarn: frequencies that turn less often are divided by the factor
  double rope_attention_factor = 0.0;         ///< yarn, longrope: of rotated queries and keys; 0: layout/rope.hpp
  bool rope_truncate = true;                  ///< yarn: the two bounds are whole numbers of pairs
  /// longrope: the frequency of each pair is divided by its number here. The long ones are for sequences of more than
  /// rope_original_seq_len tokens.
  std::vector<double> rope_short_factors, rope_long_factors;
  /// A query at position p is multiplied by 1 + beta ln(1 + floor(p / rope_original_seq_len)) (Llama 4, Ministral 3).
  double rope_query_beta = 0.0;
  /// 1: the frequencies of a layer are scaled; 0: they are not. It is a list as `window` is. Empty: all layers.
  std::vector<std::int64_t> rope_scaling_layers;
  double norm_eps = 1e-5;
  NormPlacement norm_placement = NormPlacement::pre;
  std::int64_t norm_offset = 0;       ///< 1: norms multiply by 1 + their weight, which begins at 0
  QkNorm qk_norm = QkNorm::none;      ///< kernels/qk_norm.hpp; before the rotation
  double embedding_multiplier = 1.0;  ///< the embedding of a token is multiplied by it
  double attention_multiplier = 0.0;  ///< the scores of attention are multiplied by it; 0: 1 / sqrt(head_dim)
  double residual_multiplier = 1.0;   ///< a branch is multiplied by it before it is added to the residual stream
  double logits_scaling = 1.0;        ///< the logits are divided by it
  /// c above 0: scores of attention become c tanh(s / c) before the mask (Gemma 2, arXiv 2408.00118, section 2).
  double attention_softcap = 0.0;
  double logits_softcap = 0.0;  ///< c above 0: logits, scaled, become c tanh(z / c) before the loss (Gemma 2)
  /// Number of tokens that a query sees, itself included; 0: all before it. One number for each layer; a list that is
  /// shorter than the model begins anew where it ends. Empty: no layer has a window.
  std::vector<std::int64_t> window;
  /// 1: a layer rotates queries and keys by their positions; 0: it does not (NoPE, Kazemnejad et al., arXiv
  /// 2305.19466). It is a list as `window` is. Empty: all layers rotate them.
  std::vector<std::int64_t> rope_layers;
  /// Each query head has one more logit in its softmax, with a value of 0: a learned number for all queries (gpt-oss;
  /// Xiao et al., arXiv 2309.17453, learn a key there).
  bool attention_sinks = false;
  Mla mla;
  Moe moe;
  Mtp mtp;

  /// Number of layers with those of model.mtp, which have the numbers behind the others' and their kinds by these.
  std::int64_t all_layers() const { return layers + mtp.depth; }
  /// True when the last stage reads the embedding too: for the output layer, or for model.mtp.
  bool last_reads_embedding() const { return tied_embeddings || mtp.on(); }
  /// True when a layer has experts instead of one feed-forward layer.
  bool has_experts(std::int64_t layer) const {
    return moe.on() && layer >= moe.first_dense && (layer + 1) % moe.every == 0;
  }
  /// Number of layers with experts.
  std::int64_t moe_layers() const {
    return moe.on() && moe.first_dense < layers ? layers / moe.every - moe.first_dense / moe.every : 0;
  }
  /// Width of what a token passes in the feed-forward part of a layer: the chosen and the shared experts in all.
  std::int64_t active_ffn(std::int64_t layer) const {
    return has_experts(layer) ? moe.top_k * moe.ffn + moe.shared_ffn : ffn;
  }
  std::int64_t head_dim() const { return head_size > 0 ? head_size : hidden / heads; }
  /// Width of a head of values, and of what attention makes of it; head_dim() is that of queries and keys.
  std::int64_t value_dim() const { return mla.on() ? mla.v_head_dim : head_dim(); }
  /// The number of a head's dimensions that rotate.
  std::int64_t rotary_dim() const {
    if (mla.on()) return mla.qk_rope_head_dim;
    return static_cast<std::int64_t>(static_cast<double>(head_dim()) * rope_fraction);
  }
  /// Elements of all matrices of a layer's attention.
  std::int64_t attention_weights() const {
    auto const q = heads * head_dim(), out = heads * value_dim() * hidden;
    if (!mla.on()) return hidden * (q + 2 * kv_heads * head_dim()) + out;
    auto const from_stream = mla.q_lora_rank > 0 ? mla.q_lora_rank : hidden;
    return hidden * mla.latent() + q * from_stream + heads * mla.kv_head_dim() * mla.kv_lora_rank + out;
  }
  /// Operations of attention for a query and a key that it sees: a score, and a weighted sum of values.
  double operations_per_key() const { return 2.0 * static_cast<double>(heads * (head_dim() + value_dim())); }
  double attention_scale() const {
    return attention_multiplier > 0 ? attention_multiplier : 1.0 / std::sqrt(static_cast<double>(head_dim()));
  }
  /// True when there is a norm in front of each sub-layer.
  bool norms_before() const { return norm_placement != NormPlacement::post; }
  /// True when there is a norm behind each sub-layer.
  bool norms_after() const { return norm_placement != NormPlacement::pre; }
  /// True when the linear of q, k and v has a bias.
  bool has_qkv_bias() const { return bias || qkv_bias; }
  /// True when the activation function multiplies by a gate, which has a matrix of its own.
  bool gated() const {
    return activation == Activation::swiglu || activation == Activation::geglu ||
           activation == Activation::swiglu_clamped;
  }
  /// Number of matrices of an MLP, or of an expert: up, down and maybe a gate.
  int mlp_matrices() const { return gated() ? 3 : 2; }
  /// The entry of `window` for a layer; 0: the layer has no window.
  std::int64_t window_of(std::int64_t layer) const { return of_layer(window, layer, 0); }
  /// True when a layer rotates queries and keys.
  bool rotates(std::int64_t layer) const { return position == Position::rope && of_layer(rope_layers, layer, 1) != 0; }
  /// The base of a layer's rotary frequencies.
  double rope_theta_of(std::int64_t layer) const {
    return rope_local_theta > 0 && window_of(layer) > 0 ? rope_local_theta : rope_theta;
  }
  /// True when a layer's rotary frequencies are scaled.
  bool scales_rope(std::int64_t layer) const {
    return rope_scaling != RopeScaling::none && of_layer(rope_scaling_layers, layer, 1) != 0;
  }
  /// A layer's entry of a list that begins anew where it ends; `usual` where the list is empty.
  static std::int64_t of_layer(std::vector<std::int64_t> const& list, std::int64_t layer, std::int64_t usual) {
    return list.empty() ? usual : list[static_cast<std::size_t>(layer) % list.size()];
  }
  bool operator==(Model const&) const = default;
};

}  // namespace p3d::config
