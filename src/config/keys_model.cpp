// SPDX-License-Identifier: Apache-2.0
// The keys of [model]; those of its parts stand in keys_mla.cpp, keys_moe.cpp and keys_mtp.cpp.

#include "config/keys.hpp"

#include "config/limits.hpp"
#include "config/presets.hpp"
#include "config/section.hpp"

#include <fmt/format.h>

namespace p3d::config {

void add_model(std::vector<Key>& table) {
  Section<Model> s(table, "model", &Config::model);
  auto presets = preset_names();
  presets.insert(presets.begin(), "");
  s.name("preset", &Model::preset, presets, "a known model to start from; the other keys of [model] override it");
  s.input_path("load", &Model::load, "string: \"\" | a folder, relative to the input file",
               "a model in Hugging Face form (config.json, model.safetensors): the other keys of [model] come from it, "
               "and the weights at step 0");
  s.integer("vocab_size", &Model::vocab_size, {1, limits::width}, "tokens in the vocabulary");
  s.integer("hidden", &Model::hidden, {1, limits::hidden},
            "width of the residual stream; a multiple of heads unless head_dim is given");
  s.integer("layers", &Model::layers, {1, limits::layers}, "transformer blocks");
  s.integer("heads", &Model::heads, {1, limits::hidden}, "attention heads; a multiple of kv_heads and of parallel.tp");
  s.integer("kv_heads", &Model::kv_heads, {1, limits::hidden}, "heads of keys and values; a multiple of parallel.tp",
            "heads");
  s.integer("head_dim", &Model::head_size, {1, limits::hidden}, "width of an attention head",
            "hidden / heads; with model.mla qk_nope_head_dim + qk_rope_head_dim");
  s.integer("ffn", &Model::ffn, {1, limits::width}, "width of the feed-forward layer; a multiple of parallel.tp",
            "4 hidden (gelu, xielu); 8/3 hidden, rounded up to 16 (swiglu, geglu, swiglu_clamped)");
  s.integer("seq_len", &Model::seq_len, {1, limits::width}, "tokens in a sequence");
  s.choice("norm", &Model::norm, "kind of normalisation");
  s.choice("position", &Model::position, "how a token knows its place");
  s.choice(
      "activation", &Model::activation,
      "nonlinearity of the feed-forward layer; swiglu_clamped: (up + 1) gate sigmoid(swiglu_alpha gate), with gate "
      "of at most swiglu_limit and up within +- swiglu_limit, as in gpt-oss; xielu: a parabola for numbers above 0 and "
      "an exponential below, with two learned slopes a layer, as in Apertus");
  s.number("swiglu_alpha", &Model::swiglu_alpha, {.max = 1e6, .min_open = true},
           "of swiglu_clamped: factor in the sigmoid of the gate");
  s.number("swiglu_limit", &Model::swiglu_limit, {.max = 1e6, .min_open = true},
           "of swiglu_clamped: bound of gate and up");
  s.flag("bias", &Model::bias, "bias vectors in linears and norms");
  s.flag("qkv_bias", &Model::qkv_bias,
         "bias vectors in the linear of q, k and v; without model.bias in no other one, as in Qwen2", "bias");
  s.flag("tied_embeddings", &Model::tied_embeddings, "the output layer shares the embedding's weights");
  s.number("dropout", &Model::dropout, {.max = 1.0, .max_open = true},
           "probability, on the embedding, the attention probabilities and both residual branches");
  s.number("rope_theta", &Model::rope_theta, {.max = 1e12, .min_open = true}, "base of the rotary frequencies");
  s.number("rope_local_theta", &Model::rope_local_theta, {.min = 0.0, .max = 1e12},
           "base of the rotary frequencies of layers with a window, as in Gemma 3; 0: rope_theta");
  s.number("rope_fraction", &Model::rope_fraction, {.max = 1.0, .min_open = true},
           "share of a head's dimensions, from the first on, that rotate; head_dim times it, rounded down, is even");
  s.choice(
      "rope_pairs", &Model::rope_pairs,
      "dimensions that rotate together: halves (i and i + half of them), neighbours (2 i and 2 i + 1, as in GLM-4)");
  s.choice(
      "rope_scaling", &Model::rope_scaling,
      "how rotary frequencies are stretched beyond the length of the first training: linear (all of them), llama3 and "
      "yarn (the slow ones), longrope (each by a number of its own, as in Phi-4-mini)");
  s.number("rope_scaling_factor", &Model::rope_scaling_factor, {.min = 1.0, .max = 1e6},
           "of rope_scaling: frequencies are divided by it; of longrope: how much longer sequences are than "
           "rope_original_seq_len, for rope_attention_factor alone");
  s.number("rope_low_freq_factor", &Model::rope_low_freq_factor, {.max = 1e6, .min_open = true},
           "of llama3: what turns less often than this in rope_original_seq_len tokens is divided by the factor");
  s.number("rope_high_freq_factor", &Model::rope_high_freq_factor, {.max = 1e6, .min_open = true},
           "of llama3: what turns more often than this stays as it is");
  s.integer("rope_original_seq_len", &Model::rope_original_seq_len, {1, limits::width},
            "of llama3, yarn, longrope and rope_query_beta: tokens in a sequence of the first training");
  s.number("rope_beta_fast", &Model::rope_beta_fast, {.max = 1e6, .min_open = true},
           "of yarn: what turns more often than this in rope_original_seq_len tokens stays as it is");
  s.number("rope_beta_slow", &Model::rope_beta_slow, {.max = 1e6, .min_open = true},
           "of yarn: what turns less often than this is divided by the factor");
  s.number("rope_attention_factor", &Model::rope_attention_factor, {.min = 0.0, .max = 1e6},
           "of yarn and longrope: rotated queries and keys are multiplied by it; 0: 0.1 ln(rope_scaling_factor) + 1, "
           "with longrope sqrt(1 + ln(rope_scaling_factor) / ln(rope_original_seq_len))");
  s.flag("rope_truncate", &Model::rope_truncate,
         "of yarn: the bounds between fast and slow are rounded to whole pairs");
  s.numbers("rope_short_factors", &Model::rope_short_factors, {.min = 1e-3, .max = 1e6},
            "of longrope: the frequency of each pair of dimensions is divided by its number, in sequences of at most "
            "rope_original_seq_len tokens (seq_len in training; in generation the text so far)");
  s.numbers("rope_long_factors", &Model::rope_long_factors, {.min = 1e-3, .max = 1e6},
            "of longrope: as rope_short_factors, in longer sequences");
  s.number("rope_query_beta", &Model::rope_query_beta, {.min = 0.0, .max = 1e6},
           "a query at position p is multiplied by 1 + this times ln(1 + floor(p / rope_original_seq_len)), as in "
           "Ministral 3; only where all of all heads rotates");
  s.of_layers("rope_scaling_layers", &Model::rope_scaling_layers, 1, 1,
              "integer from 0 to 1 | list of integers from 0 to 1",
              "1: rope_scaling is for this layer; 0: it is not, as in OLMo 3; a list as of window");
  s.of_layers("window", &Model::window, limits::width, 0,
              fmt::format("integer from 0 to {0} | list of integers from 0 to {0}", limits::width),
              "sliding window: tokens that a query sees, itself included; 0: all before it; a list has one number a "
              "layer and begins anew where it ends");
  s.of_layers(
      "rope_layers", &Model::rope_layers, 1, 1, "integer from 0 to 1 | list of integers from 0 to 1",
      "of position = \"rope\": 1: a layer rotates queries and keys; 0: it does not (NoPE); a list as of window");
  s.flag("attention_sinks", &Model::attention_sinks,
         "each head of queries has a learned number, one more logit of its softmax with a value of 0, as in gpt-oss");
  s.choice("norm_placement", &Model::norm_placement,
           "norms of a layer: pre (in front of attention and feed-forward), post (behind them, before the sum, as in "
           "OLMo 2), sandwich (both)");
  s.integer("norm_offset", &Model::norm_offset, {0, 1},
            "1: norms multiply by 1 + their weight, which begins at 0, as in Gemma");
  s.choice("qk_norm", &Model::qk_norm,
           "RMS norm of queries and keys before they rotate: head (of each head, as in Qwen3), full (of all heads of a "
           "token, as in OLMoE)");
  s.number("norm_eps", &Model::norm_eps, {.max = 1.0, .min_open = true}, "added to the variance in norms");
  s.number("embedding_multiplier", &Model::embedding_multiplier, {.max = 1e6, .min_open = true},
           "the embedding of a token is multiplied by it; other than 1 only with position = \"rope\"");
  s.number("attention_multiplier", &Model::attention_multiplier, {.min = 0.0, .max = 1e6},
           "the scores of attention are multiplied by it; 0: 1 / sqrt(head_dim)");
  s.number("residual_multiplier", &Model::residual_multiplier, {.max = 1e6, .min_open = true},
           "what attention and feed-forward add to the residual stream is multiplied by it");
  s.number("logits_scaling", &Model::logits_scaling, {.max = 1e6, .min_open = true}, "the logits are divided by it");
  s.number("attention_softcap", &Model::attention_softcap, {.min = 0.0, .max = 1e6},
           "c: the scores of attention, scaled, become c tanh(score / c), as in Gemma 2; 0: they stay");
  s.number("logits_softcap", &Model::logits_softcap, {.min = 0.0, .max = 1e6},
           "c: the logits, scaled, become c tanh(logit / c) before the loss, as in Gemma 2; 0: they stay");
}

}  // namespace p3d::config
