// SPDX-License-Identifier: Apache-2.0
#include "stored_model.hpp"

#include "words.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::app {

namespace {

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
    "model.load=\"\"",
    "data.format=synthetic",
    "data.source=[]",
    "data.shuffle=windows",
    "data.tokenizer=bytes",
    "data.tokenizer_pattern=\"\"",
    "data.path=[]",
    "data.source=[]",
    "data.shuffle=windows",
    "data.eod_mask_loss=false",
    "optimizer.type=sgd",
    "optimizer.warmup_steps=0",
    "optimizer.post_validation=false",
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
  if (!config::has_onednn()) out.emplace_back("linalg.host=blas");  // a run of another build
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

}  // namespace

std::optional<int> parse_model_line(CLI::App& app, ModelLine& line, int argc, char** argv) {
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

void add_tokenizer_option(CLI::App& app, ModelLine& line) {
  app.add_option("--tokenizer", line.tokenizer, "tokenizer instead of the run's own: a file, or \"bytes\"");
  app.add_option("--tokenizer-pattern", line.pattern, "of a *.tiktoken file: how text is split");
}

std::unique_ptr<data::Tokenizer> stored_tokenizer(io::CheckpointHeader const& header, ModelLine const& line,
                                                  std::int64_t vocab_size) {
  auto const& stored = header.tokenizer;
  if (line.tokenizer.empty() && !stored.name.empty() && stored.file.empty()) {
    throw base::Error({.expected = "a tokenizer in the checkpoint, or one that is named",
                       .found = fmt::format("only the name and the hash of {}: its file is large", stored.name),
                       .where = "the checkpoint",
                       .fix = "name the file: --tokenizer"},
                      base::ExitCode::bad_input);
  }
  auto out = line.tokenizer.empty() && !stored.name.empty()
                 ? data::parse_tokenizer(stored.name, stored.file, stored.pattern)
                 : data::make_tokenizer(line.tokenizer.empty() ? "bytes" : line.tokenizer, line.pattern);
  data::require_vocabulary(*out, vocab_size);
  return out;
}

config::Config stored_config(io::CheckpointHeader const& header) { return parse_stored(header.input, read_only(), 0); }

config::Config reading_config(config::Config const& stored, io::CheckpointHeader const& header, ModelLine const& line,
                              int ranks, Overrides const& changes) {
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
  return parse_stored(header.input, all, ranks);
}

}  // namespace p3d::app
