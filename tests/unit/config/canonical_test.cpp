// SPDX-License-Identifier: Apache-2.0
// The canonical dump: complete, reproducing, a fixpoint; and its hash.

#include "support.hpp"

#include <p3d/base/precisions.hpp>

#include <algorithm>

#include <map>
#include <set>
#include <sstream>

namespace p3d::config::test {
namespace {

Config reparsed(Config const& config) {
  auto const result = parse_text(canonical_toml(config), "resolved.toml", "/nowhere", {}, config.num_ranks());
  EXPECT_TRUE(result.config) << canonical_toml(config) << format(result.errors);
  return result.config.value_or(Config{});
}

/// A value of a key of [model.mla], with the other keys that latent attention needs.
std::vector<std::string> latent(std::string const& key, char const* value) {
  std::vector<std::string> out{value, "model.position=rope", "model.bias=false"};
  for (std::string const word : {"kv_lora_rank=8", "qk_nope_head_dim=4", "qk_rope_head_dim=4"})
    if (!word.starts_with(key)) out.push_back("model.mla." + word);
  return out;
}

/// A value of a key that only a scaling of rotary positions reads, with one.
std::vector<std::string> scaled(char const* value) {
  return {value, "model.rope_scaling=linear", "model.position=rope"};
}

/// For each key a value that differs from the default and breaks no rule, with what else must change for that.
std::map<std::string, std::vector<std::string>> const& changes() {
  static std::map<std::string, std::vector<std::string>> const map{
      {"run.name", {"other"}},
      {"run.seed", {"9223372036854775807"}},
      {"run.steps", {"101"}},
      {"run.output_dir", {"/x/y"}},
      {"run.log_every", {"11"}},
      {"run.eval_every", {"3"}},
      {"run.eval_batches", {"0"}},
      {"run.precision", {"fp64"}},
      {"run.ceiling", {"false"}},
      {"run.deterministic", {"false"}},
      {"model.preset", {"gpt2-tiny"}},
      {"model.load", {std::string(P3D_SOURCE_DIR) + "/tests/golden/hugging_face/llama"}},
      {"model.vocab_size", {"50257"}},
      {"model.hidden", {"72"}},
      {"model.layers", {"5"}},
      {"model.heads", {"8"}},
      {"model.kv_heads", {"1"}},
      {"model.ffn", {"123"}},
      {"model.seq_len", {"65"}},
      {"model.norm", {"rmsnorm"}},
      {"model.position", {"rope"}},
      {"model.activation", {"swiglu"}},
      {"model.swiglu_alpha", {"1.5"}},
      {"model.swiglu_limit", {"5"}},
      {"model.attention_sinks", {"true"}},
      {"model.bias", {"false"}},
      {"model.qkv_bias", {"true", "model.bias=false"}},
      {"model.head_dim", {"24"}},
      {"model.tied_embeddings", {"false"}},
      {"model.dropout", {"0.1"}},
      {"model.rope_theta", {"1234.5"}},
      {"model.rope_scaling", {"linear", "model.position=rope"}},
      {"model.rope_scaling_factor", scaled("8")},
      {"model.rope_low_freq_factor", scaled("1.5")},
      {"model.rope_high_freq_factor", scaled("8")},
      {"model.rope_original_seq_len", scaled("64")},
      {"model.norm_placement", {"sandwich"}},
      {"model.norm_offset", {"1"}},
      {"model.rope_local_theta", {"100", "model.position=\"rope\"", "model.window=4"}},
      {"model.rope_beta_fast", scaled("16")},
      {"model.rope_beta_slow", scaled("2")},
      {"model.rope_attention_factor", scaled("1.5")},
      {"model.rope_truncate", scaled("false")},
      {"model.rope_short_factors", scaled("[1.0, 2.5]")},
      {"model.rope_long_factors", scaled("[1.5, 3]")},
      {"model.rope_scaling_layers", scaled("[1, 0]")},
      {"model.rope_query_beta", {"0.1", "model.position=\"rope\""}},
      {"model.qk_norm", {"full"}},
      {"model.embedding_multiplier", {"3", "model.position=\"rope\""}},
      {"model.attention_multiplier", {"0.25"}},
      {"model.residual_multiplier", {"0.5"}},
      {"model.logits_scaling", {"8"}},
      {"model.attention_softcap", {"50"}},
      {"model.logits_softcap", {"30"}},
      {"model.rope_fraction", {"0.5", "model.position=\"rope\""}},
      {"model.rope_pairs", {"neighbours"}},
      {"model.norm_eps", {"1e-6"}},
      {"model.window", {"[8, 0]"}},
      {"model.rope_layers", {"[1, 0]", "model.position=\"rope\""}},
      {"model.mla.kv_lora_rank", latent("kv_lora_rank", "5")},
      {"model.mla.q_lora_rank", latent("q_lora_rank", "7")},
      {"model.mla.qk_nope_head_dim", latent("qk_nope_head_dim", "6")},
      {"model.mla.qk_rope_head_dim", latent("qk_rope_head_dim", "2")},
      {"model.mla.v_head_dim", latent("v_head_dim", "6")},
      {"model.mla.norm_eps", latent("norm_eps", "1e-5")},
      {"model.moe.experts", {"4"}},
      {"model.moe.top_k", {"3", "model.moe.experts=4"}},
      {"model.moe.every", {"2", "model.moe.experts=4"}},
      {"model.moe.first_dense", {"1", "model.moe.experts=4"}},
      {"model.moe.ffn", {"24", "model.moe.experts=4"}},
      {"model.moe.shared_ffn", {"48", "model.moe.experts=4"}},
      {"model.moe.bias", {"true", "model.moe.experts=4"}},
      {"model.moe.shared_gate", {"true", "model.moe.experts=4", "model.moe.shared_ffn=32"}},
      {"model.moe.score", {"sigmoid", "model.moe.experts=4"}},
      {"model.moe.normalize", {"false", "model.moe.experts=4"}},
      {"model.moe.scale", {"2.5", "model.moe.experts=4"}},
      {"model.moe.groups", {"2", "model.moe.experts=4", "model.moe.group_top_k=2"}},
      {"model.moe.group_top_k", {"1", "model.moe.experts=4", "model.moe.groups=2"}},
      {"model.moe.bias_update_rate", {"0.001", "model.moe.experts=4"}},
      {"model.moe.choice_bias", {"true", "model.moe.experts=4"}},
      {"model.moe.aux_loss", {"global", "model.moe.experts=4"}},
      {"model.moe.aux_coefficient", {"0.02", "model.moe.experts=4"}},
      {"model.moe.z_coefficient", {"0.001", "model.moe.experts=4"}},
      {"model.moe.jitter", {"0.01", "model.moe.experts=4"}},
      {"model.moe.capacity_factor", {"1.25", "model.moe.experts=4"}},
      {"model.moe.buffer_factor", {"1.5", "model.moe.experts=4"}},
      {"model.mtp.depth", {"2", "model.position=\"rope\""}},
      {"model.mtp.loss_weight", {"0.1", "model.mtp.depth=1", "model.position=\"rope\""}},
      {"parallel.dp", {"3"}},
      {"parallel.tp", {"2"}},
      {"parallel.pp", {"2"}},
      {"parallel.cp", {"2"}},
      {"context.order", {"striped"}},
      {"context.exchange", {"[2, 1]", "parallel.cp=2"}},
      {"parallel.etp", {"2", "model.moe.experts=4", "parallel.dp=2"}},
      {"parallel.ep", {"2", "model.moe.experts=4", "parallel.dp=2"}},
      {"parallel.order", {"dp-pp-tp"}},
      {"parallel.sequence", {"true", "parallel.tp=2"}},
      {"parallel.embedding", {"replicated", "parallel.tp=2", "model.tied_embeddings=false"}},
      {"batch.micro", {"2"}},
      {"batch.global", {"7"}},
      {"batch.microbatches", {"7"}},
      {"batch.variable", {"true", "data.shuffle=documents", "data.format=megatron"}},
      {"pipeline.schedule", {"gpipe"}},
      {"pipeline.virtual_stages", {"1"}},
      {"pipeline.microbatch_group_size", {"3", "pipeline.schedule=interleaved_1f1b"}},
      {"pipeline.flush", {"always"}},
      {"pipeline.p2p", {"ring"}},
      {"pipeline.lookahead", {"0"}},
      {"pipeline.file", {std::string(P3D_SOURCE_DIR) + "/LICENSE", "pipeline.schedule=file"}},
      {"pipeline.vocab_parallel", {"true"}},
      {"pipeline.weight_deferral_limit", {"3"}},
      {"pipeline.max_memory", {"1.5", "pipeline.schedule=auto"}},
      {"pipeline.layers_per_stage", {"[1, 1]", "parallel.pp=2"}},
      {"pipeline.delays", {"[1, 0]", "model.tied_embeddings=false"}},
      {"data.format", {"text"}},
      {"data.path", {"[\"/a b\", '/c\"d']"}},
      {"data.source",
       {std::string("[{path = '") + P3D_SOURCE_DIR + "/LICENSE', weight = 2}, {path = '" + P3D_SOURCE_DIR +
            "/inputs', weight = 0.5}]",
        "data.format=text", "data.path=[]"}},
      {"data.tokenizer", {std::string(P3D_SOURCE_DIR) + "/tests/unit/text/tokenizers/gpt2.json"}},
      {"data.tokenizer_pattern",
       {"llama3", std::string("data.tokenizer=") + P3D_SOURCE_DIR + "/tests/unit/text/tokenizers/ranks.tiktoken"}},
      {"data.shuffle", {"documents", "data.format=megatron"}},
      {"data.eod_token", {"10"}},
      {"data.eod_mask_loss", {"true", "data.eod_token=0"}},
      {"data.pack", {"true", "data.eod_token=0"}},
      {"data.reset_positions", {"true", "data.eod_token=0"}},
      {"data.split", {"0.25"}},
      {"optimizer.type", {"sgd"}},
      {"optimizer.lr", {"3e-4"}},
      {"optimizer.min_lr", {"0"}},
      {"optimizer.lr_schedule", {"linear"}},
      {"optimizer.warmup_steps", {"7"}},
      {"optimizer.beta1", {"0.8"}},
      {"optimizer.beta2", {"0.999"}},
      {"optimizer.eps", {"1e-9"}},
      {"optimizer.weight_decay", {"0"}},
      {"optimizer.grad_clip", {"0.30000000000000004"}},
      {"optimizer.post_validation", {"true"}},
      {"optimizer.delay", {"1"}},
      {"comm.timeout_s", {"1e7"}},
      {"comm.bucket_mb", {"0.001"}},
      {"comm.bucket_layers", {"4"}},
      {"comm.overlap_tp", {"bulk"}},
      {"comm.gpu_aware", {"off"}},
      {"comm.allreduce", {"tree"}},
      {"comm.backend", {"mpi"}},
      {"comm.backend_axes", {"dp-tp"}},
      {"model.moe.dispatch", {"gather", "model.moe.experts=4"}},
      {"comm.overlap_experts", {"true", "model.moe.experts=4", "parallel.dp=2", "parallel.ep=2"}},
      {"comm.compress", {"int8", "comm.workers=1"}},
      {"comm.workers", {"2", "comm.compress=int8", "batch.global=2"}},
      {"comm.powersgd_rank", {"2", "comm.compress=powersgd", "comm.workers=1"}},
      {"comm.topk", {"0.05", "comm.compress=topk", "comm.workers=1"}},
      {"linalg.host", {"blas"}},
      {"linalg.attention", {"gemms"}},
      {"timers.level", {"2"}},
      {"timers.barrier", {"true"}},
      {"linalg.tf32", {"true", "run.precision=fp32"}},
      {"precision.autocast", {"bf16", "run.precision=fp32"}},
      {"precision.gradients", {"bf16", "run.precision=bf16"}},
      {"precision.moments", {"bf16"}},
      {"precision.reduction", {"bf16"}},
      {"precision.pipeline", {"bf16"}},
      {"precision.loss_scale", {"128", "run.precision=fp16"}},
      {"precision.loss_scale_initial", {"1024", "run.precision=fp16"}},
      {"precision.loss_scale_growth", {"1.5", "run.precision=fp16"}},
      {"precision.loss_scale_backoff", {"0.25", "run.precision=fp16"}},
      {"precision.loss_scale_interval", {"7", "run.precision=fp16"}},
      {"precision.loss_scale_hysteresis", {"1", "run.precision=fp16"}},
      {"precision.loss_scale_floor", {"2", "run.precision=fp16"}},
      {"precision.stochastic_rounding", {"true", "run.precision=bf16"}},
      {"memory.preset", {"low"}},
      {"memory.limit", {"1.5"}},
      {"memory.recompute", {"[\"rotary\", \"norm\"]"}},
      {"memory.recompute_every", {"2", "memory.recompute=full"}},
      {"memory.recompute_layers", {"1", "memory.recompute=full"}},
      {"memory.recompute_group", {"2", "memory.recompute=full"}},
      {"memory.recompute_microbatches_kept", {"3", "memory.recompute=full"}},
      {"memory.recompute_communication", {"false", "memory.recompute=full", "parallel.tp=2"}},
      {"memory.share_saved_inputs", {"true", "memory.recompute=full", "parallel.tp=2"}},
      {"memory.shard", {"optimizer", "parallel.dp=2"}},
      {"memory.shard_over", {"2", "memory.shard=optimizer", "parallel.dp=4"}},
      {"memory.shard_layers", {"2"}},
      {"memory.gather", {"microbatch", "memory.shard=parameters", "parallel.dp=2"}},
      {"memory.reduce", {"microbatch", "memory.shard=gradients", "parallel.dp=2"}},
      {"memory.offload_optimizer", {"disk"}},
      {"memory.offload_parameters", {"disk"}},
      {"memory.offload_activations", {"disk", "batch.global=8"}},
      {"memory.offload_dir", {"/x/y"}},
      {"sample.tokens", {"7"}},
      {"sample.prompt", {"\"a\\\"b\\\\c\\n\\t\\u0001\xc3\xa9\""}},
      {"sample.temperature", {"0"}},
      {"sample.top_k", {"40"}},
      {"sample.top_p", {"0.9"}},
      {"sample.stop", {"[\"\\n\\n\", \"END\"]"}},
      {"run.trace", {"true"}},
      {"run.time_limit", {"90s"}},
      {"run.file_timeout_s", {"7.5"}},
      {"checkpoint.dir", {"/x/z"}},
      {"checkpoint.every", {"\"30min\""}},
      {"checkpoint.keep", {"0"}},
      {"checkpoint.resume", {"none"}},
      {"checkpoint.load", {"weights", std::string("checkpoint.resume=") + P3D_SOURCE_DIR + "/LICENSE"}},
      {"checkpoint.at_start", {"true"}},
      {"checkpoint.async", {"false"}},
      {"checkpoint.buffer_mb", {"7"}},
      {"checkpoint.on_error", {"continue"}},
      {"parallel.layout", {"auto", "batch.global=7"}},
      {"plan.cluster", {"/machine.toml"}},
      {"plan.kernels", {"fused"}}};
  return map;
}

Config changed(std::string const& key) { return good(change_base(), change_of(key)); }

/// False where this build lacks types of 16 bits, which the values name.
bool build_has(std::vector<std::string> const& values) {
  return P3D_16BIT || std::none_of(values.begin(), values.end(), [](auto const& value) {
           return value.find("bf16") != std::string::npos || value.find("fp16") != std::string::npos;
         });
}

TEST(Canonical, EveryKeyIsCoveredHere) {
  std::set<std::string> known, here;
  for (auto const& key : key_help()) known.insert(key.key);
  for (auto const& [key, values] : changes()) here.insert(key);
  EXPECT_EQ(known, here);
}

TEST(Canonical, EveryKeyChangesTheTextAndTheHashAndIsReproduced) {
  auto const base = good(change_base());
  std::set<std::uint64_t> hashes{hash(base)};
  std::set<std::string> texts{canonical_toml(base)};
  for (auto const& [key, values] : changes()) {
    if (!build_has(values)) continue;
    auto const config = changed(key);
    EXPECT_NE(config, base) << key;
    EXPECT_TRUE(texts.insert(canonical_toml(config)).second || key == "batch.microbatches") << key;
    EXPECT_TRUE(hashes.insert(hash(config)).second || key == "batch.microbatches")
        << key;  // the same as batch.global = 7
    EXPECT_NE(hash(config), hash(base)) << key;
    EXPECT_EQ(reparsed(config), config) << key;
    EXPECT_EQ(canonical_toml(reparsed(config)), canonical_toml(config)) << key;
  }
}

TEST(Canonical, HoldsEveryKeyOnceAndInOrder) {
  std::istringstream lines(canonical_toml(good("")));
  std::vector<std::string> written, known;
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('['))
      section = line.substr(1, line.size() - 2);
    else if (auto const equals = line.find(" = "); equals != line.npos)
      written.push_back(section + "." + line.substr(0, equals));
  }
  for (auto const& help : key_help()) known.push_back(help.key);
  EXPECT_EQ(written, known);
}

TEST(Canonical, PresetsAreReproducedWithAllTheirKeys) {
  for (auto const& name : preset_names()) {
    auto const config = good("", {"model.preset=" + name, "model.dropout=0.5"});
    EXPECT_EQ(reparsed(config), config) << name;
  }
}

TEST(Canonical, DerivedValuesAreFixedByIt) {
  auto const config = good("[parallel]\ntp = 2\n", {}, 6);
  auto const text = canonical_toml(config);
  expect_contains(text, "\ndp = 3\n");
  EXPECT_EQ(only_error(parse_text(text, "r.toml", "", {}, 4)).key, "parallel.dp");
}

TEST(Canonical, FloatsAreTheShortestThatReadBackTheSame) {
  auto config = good("");
  for (double value : {0.1, 1.0 / 3.0, 3e-4, 1e-8, 5e-324, 1e15, 1e16, 1e22, 123456789.0, 0.30000000000000004}) {
    config.optimizer.grad_clip = value;
    EXPECT_EQ(reparsed(config).optimizer.grad_clip, value);
  }
  config.optimizer.grad_clip = 2.0;
  expect_contains(canonical_toml(config), "\ngrad_clip = 2.0\n");
  config.optimizer.grad_clip = 0.1;
  expect_contains(canonical_toml(config), "\ngrad_clip = 0.1\n");
}

TEST(Canonical, EqualInputsOfDifferentSpellingHashTheSame) {
  EXPECT_EQ(hash(good("[optimizer]\nlr = 0.001\n[run]\nsteps = 1_000\n")),
            hash(good("[run]\nsteps = 1000\n", {"optimizer.lr=1e-3"})));
  EXPECT_EQ(hash(good("[model]\ndropout = -0.0\n")), hash(good("[model]\ndropout = 0\n")));
}

TEST(KeyHelp, SaysSomethingAboutEveryKey) {
  for (auto const& key : key_help()) {
    EXPECT_FALSE(key.type.empty()) << key.key;
    EXPECT_FALSE(key.help.empty()) << key.key;
    EXPECT_FALSE(key.default_text.empty()) << key.key;
    EXPECT_EQ(key.help.find('\n'), std::string::npos) << key.key;
  }
}

}  // namespace

std::string change_base() {
  return std::string("[data]\nformat = \"synthetic\"\npath = \"") + P3D_SOURCE_DIR + "/LICENSE\"\n";
}

std::vector<std::string> change_of(std::string const& key) {
  auto out = changes().at(key);
  out.front() = key + "=" + out.front();
  return out;
}

std::vector<std::string> changed_keys() {
  std::vector<std::string> out;
  for (auto const& [key, values] : changes()) {
    if (build_has(values)) out.push_back(key);
  }
  return out;
}

}  // namespace p3d::config::test
