// SPDX-License-Identifier: Apache-2.0
#include "text_commands.hpp"

#include "guard.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/data/token_source.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/engine/precision.hpp>
#include <p3d/io/checkpoint.hpp>
#include <p3d/linalg/blas_threads.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>

namespace p3d::app {

namespace {

using Overrides = std::vector<std::string>;

/// What both commands are told.
struct Line {
  std::string checkpoint;
  Overrides layout;  ///< "parallel.tp=2", ...
};

/// Parses the words after the command; an exit code when there is nothing more to do.
std::optional<int> parse(CLI::App& app, Line& line, int argc, char** argv) {
  Overrides words;
  app.add_option("words", words, "checkpoint, then where it runs: the keys of [parallel], such as parallel.tp=2")
      ->type_name("CHECKPOINT [parallel.AXIS=N ...]");
  if (auto const code = parse_words(app, argc, argv)) return code;
  for (auto const& word : words) {
    if (word.starts_with("parallel."))
      line.layout.push_back(word);
    else if (line.checkpoint.empty())
      line.checkpoint = word;
    else
      throw wrong_words("one checkpoint, and keys of [parallel]", word, app.get_name() + " --help lists what it takes");
  }
  if (line.checkpoint.empty())
    throw wrong_words("a checkpoint", "none", app.get_name() + " CHECKPOINT, a file below checkpoint.dir of its run");
  return {};
}

/// The value of a key such as "parallel.tp" among the overrides.
std::optional<int> given(Overrides const& layout, char const* key) {
  auto const start = std::string(key) + "=";
  std::optional<int> last;
  for (auto const& word : layout) {
    if (!word.starts_with(start)) continue;
    auto const size = read_count(word.substr(start.size()), 1, 1 << 20);
    if (!size)
      throw wrong_words(fmt::format("a size of the axis from 1 to {}", 1 << 20), word, "set it to the ranks it has");
    last = static_cast<int>(*size);
  }
  return last;
}

/// The stored input with what only reads in place of what trains: no optimizer state, the plainest schedule.
Overrides const only_reads = {
    "data.format=synthetic",
    "data.path=[]",
    "optimizer.type=sgd",
    "optimizer.warmup_steps=0",
    "run.time_limit=\"\"",
    "checkpoint.every=0",
    "checkpoint.resume=none",
    "checkpoint.load=all",
    "pipeline.schedule=1f1b",
    "pipeline.file=\"\"",
    "sample.tokens=0",
    "pipeline.virtual_stages=0",
    "pipeline.layers_per_stage=even",
};

/// only_reads, and the defaults of [memory]: nothing is trained, and its keys may not fit another layout.
Overrides read_only() {
  auto out = only_reads;
  out.emplace_back("parallel.sequence=false");
  auto const defaults = config::canonical_toml(config::Config{});
  auto const begin = defaults.find("\n[memory]\n");
  auto section = defaults.substr(begin + 1, defaults.find("\n[", begin + 1) - begin - 1);
  for (std::size_t at = section.find('\n') + 1; at < section.size();) {
    auto const end = std::min(section.find('\n', at), section.size());
    if (auto const equals = section.find(" = ", at); equals < end)
      out.push_back("memory." + section.substr(at, equals - at) + "=" + section.substr(equals + 3, end - equals - 3));
    at = end + 1;
  }
  return out;
}

config::Config parse_stored(std::string const& input, Overrides const& changes, int ranks) {
  auto result = config::parse_text(input, "the input in the checkpoint", "/", changes, ranks);
  if (!result.config) throw config::InputError(result.faults);
  return *std::move(result.config);
}

/// The input of the run that wrote the checkpoint, changed to what only reads, in the layout of the run where its ranks
/// are there, else replicas (or what the command line says). `changes` come last.
config::Config make_config(config::Config const& stored, std::string const& input, Line const& line, int ranks,
                           Overrides const& changes) {
  auto all = read_only();
  all.insert(all.end(), {"data.split=0.0", "run.eval_batches=0"});
  auto sizes = stored.parallel;
  bool const same = stored.num_ranks() == ranks && line.layout.empty();
  if (!same) {
    for (auto a : config::key_axes.list()) sizes[a] = given(line.layout, config::row_of(a).key).value_or(1);
    auto const others = sizes.product(config::dense_axes.minus({config::Axis::dp}));
    if (!given(line.layout, "parallel.dp")) sizes.dp = static_cast<int>(std::max<std::int64_t>(1, ranks / others));
  }
  for (auto a : config::key_axes.list()) all.push_back(fmt::format("{}={}", config::row_of(a).key, sizes[a]));
  all.insert(all.end(), line.layout.begin(), line.layout.end());
  all.push_back(fmt::format("batch.microbatches={}", sizes.pp));
  all.push_back(fmt::format("batch.global={}", stored.batch.micro * sizes.pp * sizes.dp));
  all.insert(all.end(), changes.begin(), changes.end());
  return parse_stored(input, all, ranks);
}

/// Loads the weights and calls work(trainer, header).
template <class P, class Work>
int with_model(config::Config const& c, io::Checkpoint const& file, comm::Communicator& world, Work const& work) {
  engine::Trainer<P> trainer(c, world);
  io::load_parts(world, file, io::element_of<typename P::Master>(), trainer.checkpoint_parts(false),
                 c.checkpoint.buffer_mb << 20);
  return work(trainer, file.header);
}

/// Reads the checkpoint and calls work(trainer, header); changes(header, config of its run) gives overrides.
template <class Changes, class Work>
int run(int argc, char** argv, Line const& line, Changes const& changes, Work const& work) {
  return with_ranks(argc, argv, [&](comm::Communicator& world) {
    linalg::set_blas_threads(device::host_threads());
    auto const file = base::as_bad_input([&] { return io::read_checkpoint(world, line.checkpoint); });
    auto const c = comm::agree(world, "use the input in the checkpoint", [&] {
      auto const& input = file.header.input;
      auto const stored = parse_stored(input, read_only(), 0);
      return make_config(stored, input, line, world.size(), changes(file.header, stored));
    });
    return engine::with_policy(c, [&](auto policy) { return with_model<decltype(policy)>(c, file, world, work); });
  });
}

/// The value of a key of [data] as a canonical input says it.
std::string stored_value(std::string const& input, char const* key) {
  auto const section = input.find("\n[data]");
  auto const begin = section == std::string::npos ? section : input.find(fmt::format("\n{} = ", key), section);
  if (begin == std::string::npos) {
    throw base::Error({.expected = fmt::format("the key data.{} in the input of the checkpoint", key),
                       .found = "none",
                       .where = "the checkpoint",
                       .fix = "give a text: --file"},
                      base::ExitCode::bad_input);
  }
  auto const value = input.find(" = ", begin) + 3;
  return input.substr(value, input.find('\n', value) - value);
}

std::int64_t text_bytes(std::vector<std::string> const& paths, std::string const& where, std::string const& fix) {
  try {
    return data::total_bytes(data::find_text_files(paths));
  } catch (base::Error const& e) {
    throw base::Error({.expected = e.text().expected, .found = e.text().found, .where = where, .fix = fix}, e.code());
  }
}

/// What `p3d eval` reads.
struct EvalData {
  Overrides changes;
  std::int64_t most_windows = 0;  ///< 0: all there are
};

EvalData given_text(std::vector<std::string> const& texts, config::Config const& stored) {
  if (stored.model.vocab_size < 256) {
    throw base::Error({.expected = "a model of at least 256 tokens: text is read one token a byte",
                       .found = fmt::format("model.vocab_size = {}", stored.model.vocab_size),
                       .where = "the checkpoint",
                       .fix = "evaluate it on the data of its run: leave out --file"},
                      base::ExitCode::bad_input);
  }
  std::string list;
  std::vector<std::string> paths;
  for (auto const& text : texts) {
    paths.push_back(std::filesystem::absolute(text).string());
    list += fmt::format("{}'''{}'''", list.empty() ? "" : ", ", paths.back());
  }
  auto const bytes = text_bytes(paths, "--file", "correct the path, or make it readable on every node");
  if (bytes <= stored.model.seq_len) {
    throw base::Error({.expected = fmt::format("a text of at least {} bytes: the model reads windows of {} tokens",
                                               stored.model.seq_len + 1, stored.model.seq_len),
                       .found = base::counted(bytes, "byte"),
                       .where = "--file " + base::join(texts),
                       .fix = "give a longer text"},
                      base::ExitCode::bad_input);
  }
  return {{"data.format=text", "data.path=[" + list + "]", "data.split=0.0"}};
}

/// The validation split of the run that wrote the checkpoint. Synthetic data have no end: of these, what a validation
/// pass of the run reads.
EvalData own_data(std::string const& input, config::Config const& stored) {
  if (stored.data.split <= 0.0) {
    throw base::Error({.expected = "a run with a validation split, or a text to evaluate on",
                       .found = "a run that trained on all of its data (data.split = 0)",
                       .where = "the checkpoint",
                       .fix = "give a text: p3d eval CHECKPOINT --file text.txt"},
                      base::ExitCode::bad_input);
  }
  EvalData out;
  auto const split = "data.split=" + stored_value(input, "split");
  if (stored_value(input, "format") == "\"synthetic\"") {
    auto const batches = stored.run.eval_batches > 0 ? stored.run.eval_batches : config::Run{}.eval_batches;
    out.most_windows = batches * stored.batch.global;
    out.changes = {"data.format=synthetic", split};
    return out;
  }
  out.changes = {"data.format=text", "data.path=" + stored_value(input, "path"), split};
  return out;
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
  constexpr std::uint64_t most = std::uint64_t{1} << 40;
  app.add_option("--prompt", o.prompt, "text to continue");
  app.add_option("--tokens", o.tokens, "tokens to add (200)")->check(count_from(0, most));
  app.add_option("--temperature", o.temperature, "0: always the most likely token (0.8)")->check(number_from(0, 1e6));
  app.add_option("--top-k", o.top_k, "only the k most likely tokens; 0: all")->check(count_from(0, most));
  app.add_option("--top-p", o.top_p, "only the most likely tokens that together reach this probability (1)")
      ->check(number_from(0, 1));
  app.add_option("--seed", o.seed, "another seed, another text (1)")->check(count_from(0, ~std::uint64_t{0}));
  if (auto const code = parse(app, line, argc, argv)) return *code;
  auto const plain = [&](auto const&, config::Config const& stored) {
    engine::require_byte_tokens(stored.model.vocab_size, o.prompt);
    return Overrides{};
  };
  return run(argc, argv, line, plain, [&](auto& trainer, auto const&) {
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
  CLI::App app{"Loss and perplexity of the model of a checkpoint, on a text or on the validation split of its run."};
  app.name("p3d eval");
  app.add_option("--file", texts,
                 "text file or folder, may be given again; without it the validation split of the run's own data (of "
                 "synthetic data, which have no end, the windows of one validation pass)")
      ->allow_extra_args(false);
  if (auto const code = parse(app, line, argc, argv)) return *code;
  std::int64_t most_windows = 0;
  auto const with_data = [&](io::CheckpointHeader const& header, config::Config const& stored) {
    auto const data = texts.empty() ? own_data(header.input, stored) : given_text(texts, stored);
    most_windows = data.most_windows;
    return data.changes;
  };
  return run(argc, argv, line, with_data, [&](auto& trainer, io::CheckpointHeader const& header) {
    auto const& c = trainer.config();
    auto const split = data::split_tokens(trainer.source().size(), c.data.split);
    auto tokens = texts.empty() ? split.held_out : split.training;
    if (most_windows > 0) tokens.end = std::min(tokens.end, tokens.begin + most_windows * c.model.seq_len + 1);
    auto const score = trainer.score(tokens);
    base::log_root(fmt::format("step {}: loss {:.10f} nats per token, perplexity {:.4f}; {} of {}; {}", header.step,
                               score.loss, std::exp(score.loss), base::counted(score.windows, "window"),
                               base::counted(c.model.seq_len, "token"), trainer.source().describe()));
    return 0;
  });
}

}  // namespace p3d::app
