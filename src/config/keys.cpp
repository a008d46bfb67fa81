// SPDX-License-Identifier: Apache-2.0
// The table of keys, one function per section; keys_model.cpp and its neighbours hold the larger or
// newer ones. A row has everything that is known about a key, for example
//
//     s.integer("steps", &Run::steps, {1, limits::steps}, "optimizer steps");
//
// says name, member, range and help of run.steps. A new key needs a member in config.hpp and a row here, and is then
// parsed, checked, printed and explained.
#include "config/keys.hpp"

#include "config/limits.hpp"
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
    return Mismatch{&node, base::counted(static_cast<std::int64_t>(name.size()), "byte"),
                    "choose a shorter name; a letter outside of ASCII takes 2 to 4 bytes"};
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
  s.add("name", fmt::format("string of 1 to {} bytes without '/', not \".\" or \"..\"", limits::name),
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
        "heads; [a, r]: all-to-all in groups of a neighbours, a ring over r groups; auto: the ring or [a, r] that "
        "waits least",
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
  s.integer("delay", &Optimizer::delay, {0, Optimizer::most_delay},
            "updates by which gradients are late: 1 takes the gradient of an update at the weights before the newest "
            "(PipeDream-2BW) on every layout; each more is one more copy of the weights");
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
  s.choice(
      "overlap_tp", &Comm::overlap_tp,
      "what hides messages over tp: none; bulk: GEMMs that need no message, as those of weight gradients; chunks: "
      "also the GEMM in front of a sum or behind a gather, up to 8 chunks of tokens; microbatch: as chunks, and the "
      "forward or backward of another microbatch; auto: two chunks from 1 MiB and 256 tokens of each rank on, and with "
      "run.deterministic = false up to 8 where a trial finds that nodes are slowly connected");
  s.flag("overlap_experts", &Comm::overlap_experts, "compute one microbatch while rows of another go to experts");
  s.choice(
      "compress", &Comm::compress,
      "what travels of gradients over dp: all (none); 8 bits a number, rounded at random, and a scale for 128 (int8); "
      "the numbers that changed most, while the others keep their last values (topk); two thin "
      "factors of each matrix (powersgd). Set comm.workers too");
  s.integer(
      "workers", &Comm::workers, {0, 1 << 16},
      "equal parts of the global batch whose gradients are compressed apart; a multiple of parallel.dp. The answer "
      "depends on it, and not on dp. 0: nothing is compressed");
  s.integer("powersgd_rank", &Comm::powersgd_rank, {1, 1024},
            "columns of each of the two factors of a matrix with compress = \"powersgd\"");
  s.number("topk", &Comm::topk, {.max = 1.0, .min_open = true},
           "share of the numbers of each row, or column where tp cuts rows, that travel with compress = \"topk\"");
}

/// Reads precision.loss_scale: "none", "dynamic" or a number.
/// Loss scales whose reciprocals are finite in fp32, too.
constexpr NumberRange loss_scales{.min = 0x1p-120, .max = 0x1p120};

MaybeMismatch read_loss_scale(toml::node const& node, std::string const&, Config& config) {
  auto& p = config.precision;
  if (node.is_string()) return read_enum(node, p.loss_scaling);
  auto const mismatch = read_number(node, loss_scales, p.loss_scale);
  if (!mismatch) p.loss_scaling = LossScaling::fixed;
  return mismatch;
}

void add_precision(std::vector<Key>& table) {
  using Options = PrecisionOptions;
  Section<Options> s(table, "precision", &Config::precision);
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
  s.number("loss_scale_initial", &Options::loss_scale_initial, loss_scales, "dynamic: its first value");
  s.number("loss_scale_growth", &Options::loss_scale_growth, {.min = 1.0, .max = 1e6, .min_open = true},
           "dynamic: factor by which it grows");
  s.number("loss_scale_backoff", &Options::loss_scale_backoff, {.max = 1.0, .min_open = true, .max_open = true},
           "dynamic: factor by which it falls after an overflow");
  s.integer("loss_scale_interval", &Options::loss_scale_interval, {1, limits::steps},
            "dynamic: it grows after so many steps in a row without overflow");
  s.integer("loss_scale_hysteresis", &Options::loss_scale_hysteresis, {1, limits::steps},
            "dynamic: it falls from so many overflows on, counted since it last grew");
  s.number("loss_scale_floor", &Options::loss_scale_floor, loss_scales,
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
