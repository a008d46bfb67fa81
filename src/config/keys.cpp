// SPDX-License-Identifier: Apache-2.0
// The table of keys, one function per section; keys_data.cpp, keys_linalg.cpp, keys_memory.cpp, keys_moe.cpp and
// keys_pipeline.cpp hold the larger or newer ones. A row has everything that is known about a key, for example
//
//     s.integer("steps", &Run::steps, {1, limits::steps}, "optimizer steps");
//
// says name, member, range and help of run.steps. A new key needs a member in config.hpp and a row here, and is then
// parsed, checked, printed and explained.
#include "config/keys.hpp"

#include "config/limits.hpp"
#include "config/presets.hpp"
#include "config/section.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

namespace p3d::config {

namespace {

/// Reads run.name, which becomes a part of paths.
MaybeMismatch read_run_name(toml::node const& node, std::string const&, Config& config) {
  std::string name;
  if (auto mismatch = read_string(node, false, name)) return mismatch;
  auto const unseen = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (name.size() > limits::name)
    return Mismatch{&node, base::counted(static_cast<std::int64_t>(name.size()), "character"), "choose a shorter name"};
  if (name == "." || name == ".." || name.find('/') != std::string::npos)
    return Mismatch{&node, toml_string(name),
                    "choose a plain name; run.output_dir and checkpoint.dir say in which folders files go"};
  if (std::any_of(name.begin(), name.end(), unseen) || name.find_first_not_of(' ') == std::string::npos)
    return Mismatch{&node, toml_string(name), "choose a name that can be read, without line breaks"};
  config.run.name = name;
  return {};
}

void add_run(std::vector<Key>& table) {
  Section<Run> s(table, "run", &Config::run);
  s.add("name", fmt::format("string of 1 to {} characters without '/', not \".\" or \"..\"", limits::name),
        "name of the run, for messages, the default output folder and the files of checkpoints", nullptr, read_run_name,
        [](Config const& config) { return toml_string(config.run.name); });
  s.integer("seed", &Run::seed, {0}, "seed of weights, data order and dropout");
  s.integer("steps", &Run::steps, {1, limits::steps}, "optimizer steps");
  s.output_path("output_dir", &Run::output_dir, "folder for results, relative to the current directory",
                "runs/<run.name>");
  s.integer("log_every", &Run::log_every, {1}, "steps between log lines");
  s.integer("eval_every", &Run::eval_every, {0}, "steps between evaluations; 0: only at the end");
  s.integer("eval_batches", &Run::eval_batches, {0, limits::steps}, "global batches per evaluation; 0: never evaluate");
  s.choice("precision", &Run::precision,
           "bf16, fp16: weights and activations of 16 bits; sums, gradients and the optimizer in fp32; fp64 is for "
           "verification");
  s.flag("deterministic", &Run::deterministic,
         "the same bits from every repetition; reductions over ranks in a fixed order");
  s.flag("trace", &Run::trace,
         "record when every action of the schedule ran on every rank: trace.json, trace.svg, costs.csv in output_dir");
  s.flag("ceiling", &Run::ceiling,
         "measure the model's GEMMs at the start (a second or so) and end with the MFU against them");
  s.add(
      "time_limit", "string: \"\" | wall time such as \"90s\", \"30min\", \"2h\"",
      "stop in time before it, with a checkpoint; \"\": Slurm's end time where there is one", "\"\"",
      [](toml::node const& node, std::string const&, Config& config) -> MaybeMismatch {
        auto const* text = node.as_string();
        if (text && text->get().empty()) return config.run.time_limit = {}, MaybeMismatch{};
        return read_duration(node, config.run.time_limit.seconds);
      },
      [](Config const& config) {
        auto const limit = config.run.time_limit;
        return toml_string(limit.seconds > 0 ? to_string(limit) : "");
      });
  s.number("file_timeout_s", &Run::file_timeout_s, {.max = 3.6e7, .min_open = true},
           "seconds after which one open, read, write, fsync or rename of a file ends the run; ranks that wait for it "
           "meanwhile are not taken for stuck (comm.timeout_s)",
           "1800, or comm.timeout_s if longer");
}

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
  s.of_layers("window", &Model::window, limits::width, 0, "integer >= 0 | list of integers >= 0",
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

/// The names of axes, as words of a message.
std::vector<std::string> words_of(AxisSet axes) {
  std::vector<std::string> out;
  for (auto a : axes.list()) out.emplace_back(name(a));
  return out;
}

/// Reads parallel.order.
MaybeMismatch read_mesh_order(toml::node const& node, std::string const&, Config& config) {
  std::string text;
  auto const fix = "name them in another order, such as " + toml_string(Parallel{}.order);
  if (auto mismatch = read_string(node, false, text)) {
    mismatch->fix = fix;
    return mismatch;
  }
  auto const order = read_order(text);
  if (!order.error.empty()) return Mismatch{&node, fmt::format("{}: {}", toml_string(text), order.error), fix};
  config.parallel.order = text;
  return {};
}

void add_parallel(std::vector<Key>& table) {
  Section<Parallel> s(table, "parallel", &Config::parallel);
  for (auto const& axis : axis_table) {
    if (!axis.has_key) continue;
    s.integer(axis.name, static_cast<int Parallel::*>(PerAxis::member(axis.axis)), {1, limits::axis}, axis.help,
              axis.default_text);
  }
  s.flag("sequence", &Parallel::sequence,
         "sequence parallelism (arXiv 2205.05198): between the GEMMs of a layer tokens are divided over tp, and so are "
         "the activations of norms, residuals and dropout and what stages send");
  s.choice("embedding", &Parallel::embedding,
           "the rows of the token embedding over tp: sharded; replicated: all on each rank, which takes the memory of "
           "the whole matrix and saves a sum over tp of each microbatch");
  s.add("order", fmt::format("string: names of axes joined by '-', each once: {}", base::join(words_of(dense_axes))),
        "axes of the mesh, neighbouring ranks first; one of size 1 may be left out", nullptr, read_mesh_order,
        [](Config const& config) { return toml_string(config.parallel.order); });
  s.choice(
      "layout", &Parallel::layout,
      "who chooses the sizes of the mesh, batch.micro, the schedule, recomputation and sharding that the input does "
      "not set: given: their defaults do; auto: the layout that is quickest on the machine of plan.cluster, of those "
      "that fit it and memory.limit");
}

/// Reads context.exchange: a name, or [a, r].
MaybeMismatch read_exchange(toml::node const& node, std::string const&, Config& config) {
  auto& c = config.context;
  if (auto const* list = node.as_array()) {
    std::vector<std::int64_t> sizes;
    auto const read_one = [&](toml::node const& element) {
      return read_integer(element, {1, limits::axis}, sizes.emplace_back());
    };
    if (auto mismatch = read_list(*list, read_one)) return mismatch;
    if (sizes.size() != 2)
      return Mismatch{&node, base::counted(static_cast<std::int64_t>(sizes.size()), "number"),
                      "give two: the ranks of an all-to-all and the groups in the ring, such as [2, 4]"};
    c.exchange = ContextExchange::nested;
    c.all_to_all = static_cast<int>(sizes[0]);
    c.ring = static_cast<int>(sizes[1]);
    return {};
  }
  return read_enum(node, c.exchange);
}

void add_context(std::vector<Key>& table) {
  Section<Context> s(table, "context", &Config::context);
  s.choice("order", &Context::order,
           "which tokens of a sequence each rank of cp has; zigzag and striped make causal attention even",
           "zigzag; with data.pack: striped");
  s.add("exchange", "string: auto | ring | gather | all_to_all, or a list [a, r]",
        "how attention brings the tokens together: keys and values go round, are gathered, or tokens are exchanged for "
        "heads; [a, r]: all-to-all in groups of a neighbours, a ring over r groups; auto: what sends the fewest bytes",
        nullptr, read_exchange, [](Config const& config) {
          auto const& c = config.context;
          return c.exchange == ContextExchange::nested ? fmt::format("[{}, {}]", c.all_to_all, c.ring)
                                                       : toml_string(to_string(c.exchange));
        });
}

void add_batch(std::vector<Key>& table) {
  Section<Batch> s(table, "batch", &Config::batch);
  s.integer("micro", &Batch::micro, {1, limits::axis}, "sequences in a microbatch");
  s.integer("global", &Batch::global, {1, limits::batch}, "sequences per step over all ranks; a multiple of micro x dp",
            "micro x microbatches x dp");
  s.integer("microbatches", &Batch::microbatches, {1, limits::axis},
            "microbatches per step on each data-parallel replica",
            "global / (micro x dp); without global: parallel.pp");
  s.flag("variable", &Batch::variable,
         "a sample is a document, or a part of model.seq_len tokens of a longer one: microbatches are as long as their "
         "longest sample");
}

/// Reads data.path: one path, or a list of them.
MaybeMismatch read_data_path(toml::node const& node, std::string const& folder, Config& config) {
  std::vector<std::string> paths;
  auto const read_one = [&](toml::node const& element) {
    std::string path;
    auto mismatch = read_string(element, false, path);
    if (!mismatch) paths.push_back(absolute_path(path, folder));
    return mismatch;
  };
  auto const* list = node.as_array();
  auto mismatch = list ? read_list(*list, read_one) : read_one(node);
  if (!mismatch) config.data.path = paths;
  return mismatch;
}

MaybeMismatch read_tokenizer(toml::node const& node, std::string const& folder, Config& config) {
  std::string name;
  auto mismatch = read_string(node, false, name);
  if (!mismatch) config.data.tokenizer = name == "bytes" ? name : absolute_path(name, folder);
  return mismatch;
}

void add_data(std::vector<Key>& table) {
  Section<Data> s(table, "data", &Config::data);
  s.choice("format", &Data::format,
           "text files; token files of Megatron-LM (.bin and .idx), llm.c or numpy; or tokens made up on the spot");
  s.add("path", "string or list of strings",
        "file(s) or folder(s), of megatron also without .bin and .idx, relative to the input file",
        "none; needed for files", read_data_path, [](Config const& config) {
          std::vector<std::string> paths;
          for (auto const& path : config.data.path) paths.push_back(absolute_path(path, ""));
          return toml_list(paths);
        });
  add_data_sources(table);
  s.add("tokenizer", "\"bytes\" | file",
        "how text becomes tokens; bytes: one token per byte; or tokenizer.json, *.tiktoken, *.model, relative to the "
        "input file",
        nullptr, read_tokenizer, [](Config const& config) { return toml_string(config.data.tokenizer); });
  s.name("tokenizer_pattern", &Data::tokenizer_pattern, {"", "gpt2", "cl100k", "o200k", "llama3", "qwen2"},
         "how a .tiktoken file, which does not say it, splits text");
  s.choice("shuffle", &Data::shuffle,
           "what every epoch puts in a new order: windows of seq_len tokens; documents, and then the windows cut from "
           "them; whole documents only, so that the samples of a batch are neighbouring windows of few documents; or "
           "both as Megatron-LM does");
  s.integer("eod_token", &Data::eod_token, {-1, limits::width}, "token that ends a document; -1: none");
  s.flag("eod_mask_loss", &Data::eod_mask_loss, "the token after eod_token is not to be predicted");
  s.flag("pack", &Data::pack,
         "the documents of a sample do not see each other, each begins at position 0, and its last token predicts "
         "nothing");
  s.flag("reset_positions", &Data::reset_positions, "positions begin anew after eod_token");
  s.number("split", &Data::split, {.max = 0.9},
           "fraction of the tokens (of files with documents: of these, at least one), at the end, that are the "
           "validation split");
}

void add_optimizer(std::vector<Key>& table) {
  Section<Optimizer> s(table, "optimizer", &Config::optimizer);
  NumberRange const below_one{.max = 1.0, .max_open = true};
  s.choice("type", &Optimizer::type, "update rule");
  s.number("lr", &Optimizer::lr, {.max = 1e30}, "highest learning rate");
  s.number("min_lr", &Optimizer::min_lr, {.max = 1e30}, "learning rate of the last step; at most lr", "lr / 10");
  s.choice("lr_schedule", &Optimizer::lr_schedule, "from lr, after the warm-up, down to min_lr");
  s.integer("warmup_steps", &Optimizer::warmup_steps, {0, limits::steps}, "steps from 0 up to lr; may outlast the run");
  s.number("beta1", &Optimizer::beta1, below_one, "decay of the first moment");
  s.number("beta2", &Optimizer::beta2, below_one, "decay of the second moment");
  s.number("eps", &Optimizer::eps, {.max = 1.0, .min_open = true}, "added to the root of the second moment");
  s.number("weight_decay", &Optimizer::weight_decay, {.max = 1e6}, "decoupled; not on biases and norms");
  s.number("grad_clip", &Optimizer::grad_clip, {.max = 1e30}, "largest global norm of the gradient; 0: no clipping");
  s.flag("post_validation", &Optimizer::post_validation,
         "update, and begin the next step, before the global norm is known; a wrong update is taken back: the same "
         "numbers, no wait at the end of a step (zb_h2, zb_v), a second copy of weights and moments");
}

/// Reads comm.backend_axes.
MaybeMismatch read_backend_axes(toml::node const& node, std::string const&, Config& config) {
  auto const fix = "name them joined by '-', such as " + toml_string(names(stage_axes, "-"));
  std::string text;
  if (auto mismatch = read_string(node, false, text)) {
    mismatch->fix = fix;
    return mismatch;
  }
  auto order = read_order(text);
  AxisSet axes;
  for (auto a : order.axes) {
    if (!stage_axes.has(a)) order.error = fmt::format("messages along {} go by MPI", name(a));
    axes = axes.plus({a});
  }
  if (!order.error.empty()) return Mismatch{&node, fmt::format("{}: {}", toml_string(text), order.error), fix};
  config.comm.backend_axes = axes;
  return {};
}

void add_comm(std::vector<Key>& table) {
  Section<Comm> s(table, "comm", &Config::comm);
  s.number("timeout_s", &Comm::timeout_s, {.max = 3.6e7, .min_open = true},
           "seconds after which a wait, or a blocking call of MPI, ends the run with a report");
  s.number("bucket_mb", &Comm::bucket_mb, {.max = 1 << 20, .min_open = true},
           "gradients are reduced over dp in buckets of at least this many MiB, within a layer");
  s.integer("bucket_layers", &Comm::bucket_layers, {0, 1 << 16},
            "gradients are reduced over dp in buckets of so many layers, as far as they are summed over the same "
            "ranks; 0: by "
            "comm.bucket_mb");
  s.choice("allreduce", &Comm::allreduce,
           "algorithm of all-reduces: MPI's (mpi), p3d's by send and receive (ring, tree), or through a node's shared "
           "memory (shared, hierarchical); auto: by place, and by length where ranks share no memory");
  s.choice(
      "gpu_aware", &Comm::gpu_aware,
      "give MPI GPU memory; off: through pinned host memory; auto: for messages, where a trial at the start succeeds "
      "and NCCL is not in use");
  s.choice("backend", &Comm::backend,
           "what carries collectives of GPU memory; auto: NCCL where p3d has it and each rank has a GPU");
  s.add("backend_axes", fmt::format("string: names of axes joined by '-', of {}", base::join(words_of(stage_axes))),
        "axes along which NCCL may be used; MPI along the others", nullptr, read_backend_axes,
        [](Config const& config) { return toml_string(names(config.comm.backend_axes, "-")); });
  s.choice("overlap_tp", &Comm::overlap_tp,
           "what hides messages over tp: none; bulk: GEMMs that need no message, as those of weight gradients; chunks: "
           "also the "
           "GEMM in front of a sum, up to 8 chunks of tokens; auto: two chunks from 1 MiB on");
  s.flag("overlap_experts", &Comm::overlap_experts, "compute one microbatch while rows of another go to experts");
}

/// Reads precision.loss_scale: "none", "dynamic" or a number.
MaybeMismatch read_loss_scale(toml::node const& node, std::string const&, Config& config) {
  auto& p = config.precision;
  if (node.is_string()) return read_enum(node, p.loss_scaling);
  auto const mismatch = read_number(node, {.max = 0x1p120, .min_open = true}, p.loss_scale);
  if (!mismatch) p.loss_scaling = LossScaling::fixed;
  return mismatch;
}

void add_precision(std::vector<Key>& table) {
  using Options = PrecisionOptions;
  Section<Options> s(table, "precision", &Config::precision);
  NumberRange const scale{.max = 0x1p120, .min_open = true};
  s.choice("autocast", &Options::autocast,
           "with run.precision = \"fp32\": the type to which GEMMs, attention's too, round what they multiply; sums, "
           "results, weights and gradients stay in fp32. Quick on NVIDIA's GPUs; slower than fp32 on processors");
  s.choice("gradients", &Options::gradients, {Precision::fp64, Precision::fp32, Precision::bf16},
           "type in which gradients of weights are added up; bf16 with bf16: half the memory, and small ones get lost",
           "fp64 with fp64, else fp32");
  s.choice("moments", &Options::moments, {Precision::fp64, Precision::fp32, Precision::bf16},
           "type of the optimizer's moments; bf16: half the memory", "fp64 with fp64, else fp32");
  s.choice("reduction", &Options::reduction, {Precision::fp64, Precision::fp32, Precision::bf16},
           "type in which gradients travel when replicas sum them; bf16: half the bytes, and losses depend on dp",
           "precision.gradients");
  s.choice("pipeline", &Options::pipeline,
           "type in which activations and their gradients travel between stages; bf16 with fp32: half the bytes, and "
           "losses depend on pp",
           "run.precision");
  s.add("loss_scale", "\"none\" | \"dynamic\" | number > 0",
        "factor on the loss, so that small gradients do not vanish in fp16; dynamic: as large as does not overflow",
        "\"dynamic\" with fp16 (precision.autocast too), else \"none\"", read_loss_scale, [](Config const& config) {
          auto const& p = config.precision;
          return p.loss_scaling == LossScaling::fixed ? toml_float(p.loss_scale)
                                                      : toml_string(to_string(p.loss_scaling));
        });
  s.number("loss_scale_initial", &Options::loss_scale_initial, scale, "dynamic: its first value");
  s.number("loss_scale_growth", &Options::loss_scale_growth, {.min = 1.0, .max = 1e6, .min_open = true},
           "dynamic: factor by which it grows");
  s.number("loss_scale_backoff", &Options::loss_scale_backoff, {.max = 1.0, .min_open = true, .max_open = true},
           "dynamic: factor by which it falls after an overflow");
  s.integer("loss_scale_interval", &Options::loss_scale_interval, {1, limits::steps},
            "dynamic: it grows after so many steps in a row without overflow");
  s.integer("loss_scale_hysteresis", &Options::loss_scale_hysteresis, {1, limits::steps},
            "dynamic: it falls from so many overflows on, counted since it last grew");
  s.number("loss_scale_floor", &Options::loss_scale_floor, scale,
           "dynamic: it does not fall below; an overflow there ends the run");
  s.flag("stochastic_rounding", &Options::stochastic_rounding,
         "round weights to bf16 up or down at random, in the mean to their value; the same on every layout");
}

/// Reads sample.stop.
MaybeMismatch read_stops(toml::node const& node, std::string const&, Config& config) {
  auto const* list = node.as_array();
  if (!list) return Mismatch{&node, describe(node), "give a list of strings, such as [\"\\n\\n\"]"};
  std::vector<std::string> stops;
  auto mismatch =
      read_list(*list, [&](toml::node const& element) { return read_string(element, false, stops.emplace_back()); });
  if (!mismatch) config.sample.stop = stops;
  return mismatch;
}

void add_sample(std::vector<Key>& table) {
  Section<Sample> s(table, "sample", &Config::sample);
  s.integer("tokens", &Sample::tokens, {0, limits::width}, "tokens drawn from the model at the end; 0: none");
  s.string("prompt", &Sample::prompt, true, "text to continue");
  s.number("temperature", &Sample::temperature, {.max = 1e6}, "0: always the most likely token");
  s.integer("top_k", &Sample::top_k, {0, limits::width}, "only the k most likely tokens; 0: all");
  s.number("top_p", &Sample::top_p, {.max = 1.0}, "only the most likely tokens that together reach this probability");
  s.add("stop", "list of strings", "texts that end the sample; so does the tokenizer's end of a document", "[]",
        read_stops, [](Config const& config) { return toml_list(config.sample.stop); });
}

void add_timers(std::vector<Key>& table) {
  Section<Timers> s(table, "timers", &Config::timers);
  s.integer(
      "level", &Timers::level, {0, 2},
      "times in the log and in timers.csv, every run.log_every steps, as least, mean and most over the ranks; 0: none; "
      "1: "
      "phases of a step, evaluation, checkpoints; 2: also each kind of action of the schedule, and GPUs are waited "
      "for after each");
  s.flag("barrier", &Timers::barrier,
         "ranks wait for each other before each step: no time has what a slow one left over");
}

void add_plan(std::vector<Key>& table) {
  Section<Planning> s(table, "plan", &Config::plan);
  s.input_path("cluster", &Planning::cluster, "string: \"\" | a file, relative to the input file",
               "the machine (docs/plan.md): the end of a run compares the time of a step with what was predicted for "
               "it; parallel.layout = \"auto\" chooses by it");
  s.choice("kernels", &Planning::kernels,
           "the generation of software that predictions assume; auto: as the cluster file says (docs/plan.md)");
}

/// Reads checkpoint.every: "end", steps or a wall time.
MaybeMismatch read_every(toml::node const& node, std::string const&, Config& config) {
  std::int64_t every = 0;
  Duration period;
  MaybeMismatch mismatch;
  if (!node.is_string())
    mismatch = read_integer(node, {0, limits::steps}, every);
  else if (node.as_string()->get() == "end")
    every = Checkpoint::only_at_end;
  else
    mismatch = read_duration(node, period.seconds);
  if (mismatch)
    mismatch->fix = "write \"end\", a number of steps, or a wall time such as \"30min\"; 0: no checkpoints at all";
  else
    config.checkpoint.every = every, config.checkpoint.period = period;
  return mismatch;
}

void add_checkpoint(std::vector<Key>& table) {
  Section<Checkpoint> s(table, "checkpoint", &Config::checkpoint);
  s.output_path("dir", &Checkpoint::dir, "folder of the checkpoints, relative to the current directory",
                "<run.output_dir>/checkpoints");
  s.add("every", "\"end\" | integer >= 0 (steps) | string: wall time such as \"30min\"",
        "when a checkpoint is written: \"end\": at the end and before a stop; steps or a time: so often too; 0: none "
        "at all, so that a run that is stopped cannot be resumed",
        nullptr, read_every, [](Config const& config) {
          auto const& c = config.checkpoint;
          if (c.period.seconds > 0) return toml_string(to_string(c.period));
          return c.every == Checkpoint::only_at_end ? toml_string("end") : fmt::format("{}", c.every);
        });
  s.integer("keep", &Checkpoint::keep, {0, limits::steps}, "newest checkpoints that are kept; 0: all");
  s.add(
      "resume", "string: auto | none | a checkpoint file, relative to the current directory",
      "where to start: the newest valid checkpoint in dir, at step 0, or at a given checkpoint", nullptr,
      [](toml::node const& node, std::string const&, Config& config) {
        std::string text;
        auto const mismatch = read_string(node, false, text);
        if (!mismatch) config.checkpoint.resume = text == "auto" || text == "none" ? text : absolute_path(text, "");
        return mismatch;
      },
      [](Config const& config) { return toml_string(config.checkpoint.resume); });
  s.choice(
      "load", &Checkpoint::load,
      "what resume takes from the file: all, or the weights alone to start at step 0 (fine-tuning; the same command "
      "again goes on from that run's own newest checkpoint)");
  s.flag("at_start", &Checkpoint::at_start, "write one of step 0 too, before the first step");
  s.flag("async", &Checkpoint::async,
         "write while training goes on, from a copy in host memory, every rank its share; false: training waits while "
         "rank 0 writes for all (no copy; for NFS)");
  s.integer("buffer_mb", &Checkpoint::buffer_mb, {1, 1 << 20}, "MiB of buffer on each rank for writing and reading");
  s.choice("on_error", &Checkpoint::on_error, "what to do when a checkpoint cannot be written");
}

}  // namespace

std::vector<Key> const& keys() {
  static std::vector<Key> const table = [] {
    std::vector<Key> t;
    for (auto* const add : {add_run, add_model, add_mla, add_moe, add_mtp, add_parallel, add_context, add_batch,
                            add_pipeline, add_data, add_optimizer, add_comm, add_precision, add_linalg, add_memory,
                            add_sample, add_timers, add_checkpoint, add_plan})
      add(t);
    return t;
  }();
  return table;
}

Key const* find_key(std::string_view full) {
  auto const& table = keys();
  auto const it = std::find_if(table.begin(), table.end(), [&](Key const& key) { return key.full() == full; });
  return it == table.end() ? nullptr : &*it;
}

std::vector<std::string> const& sections() {
  static std::vector<std::string> const names = [] {
    std::vector<std::string> out;
    for (auto const& key : keys()) {
      if (out.empty() || out.back() != key.section) out.push_back(key.section);
    }
    return out;
  }();
  return names;
}

std::vector<std::string> keys_of(std::string_view section) {
  std::vector<std::string> out;
  for (auto const& key : keys()) {
    if (key.section == section) out.push_back(key.name);
  }
  return out;
}

std::string absolute_path(std::string const& path, std::string const& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // without a current directory, relative paths start at the root and are reported as missing
  auto out = ("/" / fs::current_path(ignored) / folder / path).lexically_normal();
  if (!out.has_filename() && out.has_relative_path()) out = out.parent_path();
  return out.string();
}

std::vector<KeyHelp> key_help() {
  std::vector<KeyHelp> out;
  for (auto const& key : keys()) out.push_back({key.full(), key.type, key.help, key.default_text});
  return out;
}

}  // namespace p3d::config
