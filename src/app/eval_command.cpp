// SPDX-License-Identifier: Apache-2.0
#include "stored_model.hpp"
#include "text_commands.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/data/token_source.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

namespace p3d::app {

namespace {

/// The value of a key of [data] as a canonical input says it; none in files of versions that did not know it.
std::optional<std::string> stored_if_any(std::string const& input, char const* key) {
  auto const section = input.find("\n[data]");
  auto const end = section == std::string::npos ? section : input.find("\n[", section + 1);
  auto const begin = section == std::string::npos ? section : input.find(fmt::format("\n{} = ", key), section);
  if (begin == std::string::npos || begin > end) return {};
  auto const value = input.find(" = ", begin) + 3;
  return input.substr(value, input.find('\n', value) - value);
}

std::string stored_value(std::string const& input, char const* key) {
  if (auto const value = stored_if_any(input, key)) return *value;
  throw base::Error({.expected = fmt::format("the key data.{} in the input of the checkpoint", key),
                     .found = "none",
                     .where = "the checkpoint",
                     .fix = "give a text: --file"},
                    base::ExitCode::bad_input);
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

/// A text for a model with a tokenizer: it is made into tokens here.
std::unique_ptr<data::TokenSource> tokenized(std::vector<std::string> const& texts, data::Tokenizer const& tokenizer) {
  std::vector<std::string> paths;
  for (auto const& text : texts) paths.push_back(std::filesystem::absolute(text).string());
  text_bytes(paths, "--file", "correct the path, or make it readable on every node");
  return data::make_tokenized_text(paths, tokenizer);
}

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
  out.changes = {"data.format=" + stored_value(input, "format"), "data.path=" + stored_value(input, "path"), split};
  for (char const* key : {"source", "eod_mask_loss", "reset_positions"}) {
    if (auto const value = stored_if_any(input, key)) out.changes.push_back(fmt::format("data.{}={}", key, *value));
  }
  return out;
}

}  // namespace

int eval_command(int argc, char** argv) {
  ModelLine line;
  std::vector<std::string> texts;
  CLI::App app{"Loss and perplexity of the model of a checkpoint, on a text or on the validation split of its run."};
  app.name("p3d eval");
  app.add_option("--file", texts,
                 "text file or folder, may be given again; without it the validation split of the run's own data (of "
                 "synthetic data, which have no end, the windows of one validation pass)")
      ->allow_extra_args(false);
  add_tokenizer_option(app, line);
  if (auto const code = parse_model_line(app, line, argc, argv)) return *code;
  std::int64_t most_windows = 0;
  auto const with_data = [&](io::CheckpointHeader const& header, config::Config const& stored) {
    bool const bytes = line.tokenizer.empty() ? header.tokenizer.name.empty() : line.tokenizer == "bytes";
    if (!texts.empty() && !bytes) return Overrides{};
    auto const data = texts.empty() ? own_data(header.input, stored) : given_text(texts, stored);
    most_windows = data.most_windows;
    return data.changes;
  };
  return with_stored_model(argc, argv, line, with_data, [&](auto& trainer, io::CheckpointHeader const& header) {
    auto const& c = trainer.config();
    std::unique_ptr<data::TokenSource> made;
    if (!texts.empty() && c.data.format != config::DataFormat::text)
      made = comm::agree(trainer.mesh().world(), "make tokens of the text",
                         [&] { return tokenized(texts, *stored_tokenizer(header, line, c.model.vocab_size)); });
    auto const& source = made ? *made : trainer.source();
    auto tokens = trainer.sampler().held_out();
    if (!texts.empty()) tokens = {{0, source.size()}};
    for (auto& part : tokens) {
      if (most_windows > 0) part.end = std::min(part.end, part.begin + most_windows * c.model.seq_len + 1);
    }
    auto const score = trainer.score(tokens, made.get());
    base::log_root(fmt::format("step {}: loss {:.10f} nats per token, perplexity {:.4f}; {} of {}; {}", header.step,
                               score.loss, std::exp(score.loss), base::counted(score.windows, "window"),
                               base::counted(c.model.seq_len, "token"), source.describe()));
    return 0;
  });
}

}  // namespace p3d::app
