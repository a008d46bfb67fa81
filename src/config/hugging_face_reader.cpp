// SPDX-License-Identifier: Apache-2.0
// The two kinds of keys of a config.json that no family reads: those with the one value that p3d's model has, and those
// that have no effect on what a model computes.
#include "config/hugging_face_reader.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::config {

namespace {

using nlohmann::json;

/// Keys that say how a model is trained, stored, called or generated from, and not what it computes.
constexpr char const* without_effect[] = {
    // keys that every model may have
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_flash_attn_2_enabled", "_name_or_path",
    "_num_labels", "architectures", "attn_implementation", "auto_map", "begin_suppress_tokens", "bos_token_id",
    "cache_implementation", "chunk_size_feed_forward", "decoder_start_token_id", "dtype", "eos_token_id",
    "exponential_decay_length_penalty", "finetuning_task", "gradient_checkpointing", "id2label", "initializer_range",
    "is_llama_config", "keys_to_ignore_at_inference", "label2id", "loss_type", "max_sequence_length",
    "neftune_noise_alpha", "num_labels", "output_attentions", "output_hidden_states", "output_past", "output_scores",
    "pad_token_id", "prefix", "problem_type", "return_dict", "return_dict_in_generate", "sep_token_id",
    "suppress_tokens", "task_specific_params", "tf_legacy_loss", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers_version", "transformers.js_config", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
    "xla_device",
    // of generation, in older files
    "bad_words_ids", "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
    "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "remove_invalid_values", "repetition_penalty",
    "temperature", "top_k", "top_p", "typical_p",
    // special tokens that GPT-2's first files announce
    "n_special", "predict_special_tokens",
    // heads that no language model has
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"};

/// A key that must have one value (or be absent), so that p3d computes the same function. `what` says what p3d has.
struct Required {
  char const* key;
  json value;
  char const* what;
};
std::vector<Required> const& required() {
  static std::vector<Required> const rows{
      {"is_encoder_decoder", false, "a decoder alone"},
      {"is_decoder", false, "no attention to another model"},
      {"add_cross_attention", false, "no attention to another model"},
      {"cross_attention_hidden_size", nullptr, "no attention to another model"},
      {"tie_encoder_decoder", false, "a decoder alone"},
      {"pruned_heads", json::object(), "all heads"},
      {"scale_attn_weights", true, "scores divided by the root of the head's width"},
      {"scale_attn_by_inverse_layer_idx", false, "scores of all layers scaled alike"},
      {"reorder_and_upcast_attn", false, "scores in the order and type of run.precision"},
      {"sliding_window", nullptr, "a window only where model_type is mistral or mixtral"},
      {"use_sliding_window", false, "attention to all earlier tokens"},
      {"quantization_config", nullptr, "weights that are numbers"},
      {"pretraining_tp", 1, "whole GEMMs"},
      {"partial_rotary_factor", 1.0, "rotation of the whole head"},
      {"clip_qkv", nullptr, "queries, keys and values of any size"},
      {"use_mrope", false, "rotation by one position"},
      {"rope_interleaved", false, "rotation of the pairs i and i + head_dim / 2"},
      {"attn_logit_softcapping", nullptr, "scores of any size"},
      {"final_logit_softcapping", nullptr, "logits of any size"},
      {"use_bidirectional_attention", false, "attention to earlier tokens"},
      {"hidden_act", "silu", "SwiGLU"}};
  return rows;
}

}  // namespace

json const& Reader::value(char const* key) {
  static json const null;
  seen_.insert(key);
  return has(key) ? file_[key] : null;
}

void Reader::wrong(std::string const& expected, std::string const& found) {
  errors_.push_back(fmt::format("{}: {}", expected, found));
}

std::int64_t Reader::integer(char const* key, std::int64_t most, std::int64_t otherwise) {
  auto const& v = value(key);
  if (v.is_null() && otherwise > 0) return otherwise;
  if (v.is_number_integer() && v >= 1 && v <= most) return v.get<std::int64_t>();
  wrong(fmt::format("{}, a whole number from 1 to {}", key, most), found(key));
  return 1;
}

std::int64_t Reader::count(char const* key, std::int64_t most, std::int64_t otherwise) {
  auto const& v = value(key);
  if (v.is_null()) return otherwise;
  if (v.is_number_integer() && v >= 0 && v <= most) return v.get<std::int64_t>();
  wrong(fmt::format("{}, a whole number from 0 to {}", key, most), found(key));
  return otherwise;
}

double Reader::number(char const* key, double least, double most, double otherwise) {
  auto const& v = value(key);
  if (v.is_null()) return otherwise;
  if (v.is_number() && v.get<double>() >= least && v.get<double>() <= most) return v.get<double>();
  wrong(fmt::format("{}, a number from {} to {}", key, least, most), found(key));
  return otherwise;
}

std::vector<double> Reader::numbers(char const* key, double least, double most) {
  auto const& v = value(key);
  auto const fits = [&](json const& x) { return x.is_number() && x.get<double>() >= least && x.get<double>() <= most; };
  if (v.is_array() && std::all_of(v.begin(), v.end(), fits)) return v.get<std::vector<double>>();
  wrong(fmt::format("{}, a list of numbers from {} to {}", key, least, most), found(key));
  return {};
}

bool Reader::flag(char const* key, bool otherwise) {
  auto const& v = value(key);
  if (v.is_null()) return otherwise;
  if (!v.is_boolean()) wrong(fmt::format("{}, true or false", key), found(key));
  return v.is_boolean() ? v.get<bool>() : otherwise;
}

std::string Reader::found(char const* key) const { return file_.contains(key) ? describe(file_[key]) : "no such key"; }

void Reader::finish() {
  for (auto const& row : required()) {
    if (has(row.key) && !seen_.contains(row.key) && file_[row.key] != row.value)
      wrong(fmt::format("{} = {} (p3d's model has {})", row.key, row.value.dump(), row.what), found(row.key));
    seen_.insert(row.key);
  }
  for (auto const* key : without_effect) seen_.insert(key);
  for (auto const& item : file_.items()) {
    if (seen_.contains(item.key())) continue;
    wrong("no key but those that p3d knows", json(item.key()).dump(-1, ' ', false, json::error_handler_t::replace));
  }
  if (errors_.empty()) return;
  auto const n = errors_.size();
  std::string lines;
  for (std::size_t i = 0; i < std::min<std::size_t>(n, 20); ++i) lines += "\n            " + errors_[i];
  base::refuse({.expected = "a config.json of a model that p3d computes in the same way",
                .found = fmt::format("{} (expected: found):{}",
                                     base::counted(static_cast<std::int64_t>(n), "difference"), lines),
                .where = path_,
                .fix = "use a model without it; a key that does not change what the model computes may be "
                       "removed from the file"});
}

}  // namespace p3d::config
