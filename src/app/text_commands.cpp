#include "text_commands.hpp"

#include "command_line.hpp"
#include "guard.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/data/token_source.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/linalg/blas_threads.hpp>
#include <p3d/engine/trainer.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>

namespace p3d::app {

namespace {

using base::ExitCode;
using Overrides = std::vector<std::string>;

/// What both commands are told.
struct Line {
  std::string checkpoint;
  Overrides layout;  ///< "parallel.tp=2", ...
};

/// Parses the words after the command; an exit code when there is nothing more to do.
std::optional<int> parse(CLI::App& app, Line& line, int argc, char** argv) {
  std::vector<std::string> words, args;
  app.add_option("words", words, "checkpoint, then where it runs: parallel.dp=, parallel.tp=, parallel.pp=")
      ->required()
      ->type_name("CHECKPOINT [parallel.AXIS=N ...]");
  for (int i = argc - 1; i > 0; --i) {
    if (!std::string_view(argv[i]).starts_with("--kokkos-")) args.emplace_back(argv[i]);
  }
  bool const speaks = launcher_rank() == 0;
  auto const wrong = [&](std::string const& text) {
    if (speaks) std::fputs((text + "\n").c_str(), stderr);
    return static_cast<int>(ExitCode::bad_input);
  };
  try {
    app.parse(args);
  } catch (CLI::ParseError const& e) {
    std::ostringstream out, err;
    int const code = app.exit(e, out, err);
    if (speaks) std::fputs(out.str().c_str(), stdout);
    return code == 0 ? 0 : wrong(err.str());
  }
  for (auto const& word : words) {
    if (word.starts_with("parallel."))
      line.layout.push_back(word);
    else if (line.checkpoint.empty())
      line.checkpoint = word;
    else
      return wrong(fmt::format("expected: one checkpoint and keys of [parallel]\nfound:    {}", word));
  }
  if (line.checkpoint.empty()) return wrong("expected: a checkpoint\nfound:    none");
  return {};
}

/// The value of "parallel.<axis>=N" among the overrides.
std::optional<int> given(Overrides const& layout, char const* axis) {
  auto const key = fmt::format("parallel.{}=", axis);
  for (auto const& word : layout) {
    if (word.starts_with(key)) return std::atoi(word.c_str() + key.size());
  }
  return {};
}

/// The input of the run that wrote the checkpoint, changed to what only reads: no optimizer state, the plainest
/// schedule, the layout of the run where its ranks are there, else copies (or what the command line says). `changes`
/// come last.
config::Config make_config(io::CheckpointHeader const& header, Line const& line, int ranks, Overrides const& changes) {
  Overrides plain{
      "data.format=synthetic",          "data.path=[]",        "data.split=0.0",         "optimizer.type=sgd",
      "optimizer.warmup_steps=0",       "run.eval_batches=0",  "run.time_limit=\"\"",    "checkpoint.every=0",
      "checkpoint.resume=none",         "checkpoint.load=all", "pipeline.schedule=1f1b", "pipeline.virtual_stages=0",
      "pipeline.layers_per_stage=even", "sample.tokens=0"};
  auto const stored = config::parse_text(header.input, "the input in the checkpoint", "/", plain, 0);
  if (!stored.config) throw config::InputError(stored.faults);
  auto sizes = stored.config->parallel;
  bool const same = stored.config->num_ranks() == ranks && line.layout.empty();
  if (!same) {
    sizes.tp = given(line.layout, "tp").value_or(1);
    sizes.pp = given(line.layout, "pp").value_or(1);
    sizes.dp = given(line.layout, "dp").value_or(std::max(1, ranks / std::max(1, sizes.tp * sizes.pp)));
  }
  auto all = plain;
  for (auto const& word : {fmt::format("parallel.dp={}", sizes.dp), fmt::format("parallel.tp={}", sizes.tp),
                           fmt::format("parallel.pp={}", sizes.pp)}) {
    all.push_back(word);
  }
  all.insert(all.end(), line.layout.begin(), line.layout.end());
  all.push_back(fmt::format("batch.microbatches={}", sizes.pp));
  all.push_back(fmt::format("batch.global={}", stored.config->batch.micro * sizes.pp * sizes.dp));
  all.insert(all.end(), changes.begin(), changes.end());
  auto const result = config::parse_text(header.input, "the input in the checkpoint", "/", all, ranks);
  if (!result.config) throw config::InputError(result.faults);
  return *result.config;
}

/// Loads the weights and calls work(trainer, header).
template <class T, class Work>
int with_model(config::Config const& c, io::Checkpoint const& file, comm::Communicator& world, Work const& work) {
  engine::Trainer<T> trainer(c, world);
  io::load_parts(world, file, sizeof(T) == 8 ? io::Element::float64 : io::Element::float32,
                 trainer.checkpoint_parts(false), c.checkpoint.buffer_mb << 20);
  return work(trainer, file.header);
}

/// The keys of [data] as a canonical input says them, as overrides.
Overrides stored_data(std::string const& input) {
  Overrides out;
  for (char const* key : {"format", "path", "split"}) {
    auto const begin = input.find(fmt::format("\n{} = ", key), input.find("\n[data]"));
    auto const value = input.find(" = ", begin) + 3;
    out.push_back(fmt::format("data.{}={}", key, input.substr(value, input.find('\n', value) - value)));
  }
  return out;
}

/// Reads the checkpoint and calls work(trainer, header); changes(header) gives overrides of its input.
template <class Changes, class Work>
int run(int argc, char** argv, Line const& line, Changes const& changes, Work const& work) {
  return with_ranks(argc, argv, [&](comm::Communicator& world) {
    linalg::set_blas_threads(device::host_threads());
    auto const file = io::read_checkpoint(world, line.checkpoint);
    auto const c = comm::agree(world, "use the input in the checkpoint",
                               [&] { return make_config(file.header, line, world.size(), changes(file.header)); });
    return c.run.precision == config::Precision::fp64 ? with_model<double>(c, file, world, work)
                                                      : with_model<float>(c, file, world, work);
  });
}

}  // namespace

int generate_command(int argc, char** argv) {
  Line line;
  engine::SampleOptions o;
  o.tokens = 200;
  o.temperature = 0.8;
  CLI::App app{
      "Continues a text with the model of a checkpoint, one byte a token. The same text on every layout, up to "
      "rounding."};
  app.name("p3d generate");
  app.add_option("--prompt", o.prompt, "text to continue");
  app.add_option("--tokens", o.tokens, "tokens to add (200)")->check(CLI::NonNegativeNumber);
  app.add_option("--temperature", o.temperature, "0: always the most likely token (0.8)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--top-k", o.top_k, "only the k most likely tokens; 0: all")->check(CLI::NonNegativeNumber);
  app.add_option("--top-p", o.top_p, "only the most likely tokens that together reach this probability (1)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", o.seed, "another seed, another text (1)");
  if (auto const code = parse(app, line, argc, argv)) return *code;
  return run(
      argc, argv, line, [](auto const&) { return Overrides{}; },
      [&](auto& trainer, auto const&) {
        auto const text = trainer.sample(o);
        if (base::log_rank() == 0) {
          std::fputs(o.prompt.c_str(), stdout);
          std::fwrite(text.data(), 1, text.size(), stdout);
          std::fputs("\n", stdout);
          std::fflush(stdout);
        }
        return 0;
      });
}

int eval_command(int argc, char** argv) {
  Line line;
  std::vector<std::string> texts;
  CLI::App app{"Loss and perplexity of the model of a checkpoint, on text of your own or on what its run held out."};
  app.name("p3d eval");
  app.add_option("--file", texts,
                 "text file or folder, may be given again; without it the held-out part of the run's own data")
      ->allow_extra_args(false);
  if (auto const code = parse(app, line, argc, argv)) return *code;
  Overrides changes;
  if (!texts.empty()) {
    std::string list;
    for (auto const& text : texts)
      list += fmt::format("{}'''{}'''", list.empty() ? "" : ", ", std::filesystem::absolute(text).string());
    changes = {"data.format=text", "data.path=[" + list + "]", "data.split=0.0"};
  }
  auto const with_data = [&](io::CheckpointHeader const& header) {
    return texts.empty() ? stored_data(header.input) : changes;
  };
  return run(argc, argv, line, with_data, [&](auto& trainer, io::CheckpointHeader const& header) {
    auto const& c = trainer.config();
    auto const split = data::split_tokens(trainer.source().size(), c.data.split);
    auto const score = trainer.score(texts.empty() ? split.held_out : split.training);
    base::log_root(fmt::format("step {}: loss {:.10f} nats per token, perplexity {:.4f}; {} windows of {} tokens; {}",
                               header.step, score.loss, std::exp(score.loss), score.windows, c.model.seq_len,
                               trainer.source().describe()));
    return 0;
  });
}

}  // namespace p3d::app
