// SPDX-License-Identifier: Apache-2.0
// Computes the loss of a trained model. The data are one of three: a text that a tokenizer turns into tokens, a text
// that the model reads byte by byte, or the validation split of the run that wrote the checkpoint. They are chosen
// before the model is loaded, since they decide how it is read (config::Reading). Example: "p3d eval runs/tiny --file
// book.txt --seq-len 512".
#include "stored_model.hpp"
#include "text_commands.hpp"
#include "words.hpp"

#include <p3d/run/checkpoint.hpp>
#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/data/token_source.hpp>
#include <p3d/text/text_files.hpp>
#include <p3d/text/tokenize.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

namespace p3d::app {

namespace {

/// The options beside the model.
struct EvalWords {
  std::vector<std::string> texts;
  std::int64_t seq_len = 0;  ///< tokens of a window; 0: the model's
  double progress_s = 10.0;
};

/// The data to evaluate on; chosen before the model is loaded.
struct EvalData {
  config::Reading reading;
  /// Set for a text that a tokenizer reads; null: the trainer opens the data.
  std::unique_ptr<data::TokenSource> tokens;
  engine::ScoreOptions score;
};

/// Paths that do not depend on the current directory, as an input's data.path needs them.
std::vector<std::string> absolute(std::vector<std::string> const& texts) {
  std::vector<std::string> out;
  for (auto const& text : texts) out.push_back(std::filesystem::absolute(text).string());
  return out;
}

/// Throws for a text that is shorter than one window.
[[noreturn]] void refuse_short(std::int64_t window, char const* unit, std::int64_t found, std::string const& where) {
  base::refuse({.expected = fmt::format("a text of at least {} {}s: the model reads windows of {} tokens", window + 1,
                                        unit, window),
                .found = base::counted(found, unit),
                .where = where,
                .fix = "give a longer text, or shorter windows: --seq-len"});
}

/// The bytes of all text files; an error names --file. Warns of files that are no text.
std::int64_t text_bytes(std::vector<std::string> const& paths) {
  try {
    if (auto const note = text::note_about_binaries(paths, "--file"); !note.empty()) base::warn_root(note);
    return text::total_bytes(text::find_text_files(paths));
  } catch (base::Error const& e) {
    throw base::Error({.expected = e.text().expected,
                       .found = e.text().found,
                       .where = "--file",
                       .fix = "correct the path, or make it readable on every node"},
                      e.code());
  }
}

/// Turns a text into tokens, for a model with a tokenizer.
EvalData tokenized_text(EvalWords const& words, StoredModel const& model, ModelLine const& line) {
  auto const tokenizer = stored_tokenizer(model, line);
  auto const paths = absolute(words.texts);
  text_bytes(paths);
  EvalData out;
  out.tokens = data::make_tokenized_text(paths, *tokenizer);
  auto const window = words.seq_len > 0 ? words.seq_len : model.config.model.seq_len;
  if (out.tokens->size() <= window)
    refuse_short(window, "token", out.tokens->size(), "--file " + base::join(words.texts));
  auto const& stored = model.config.data;
  auto& d = out.reading.data;
  d.eod_token = stored.eod_token;
  d.reset_positions = stored.reset_positions;
  // Where the run's files said where documents end, the tokens between two files say it in this text.
  if (stored.pack && d.eod_token < 0) d.eod_token = tokenizer->end_of_document();
  d.pack = stored.pack && d.eod_token >= 0 && d.eod_token < model.config.model.vocab_size;
  return out;
}

/// Prepares a text for a model that reads bytes.
EvalData byte_text(EvalWords const& words, config::Config const& stored) {
  if (stored.model.vocab_size < 256) {
    base::refuse({.expected = "a model of at least 256 tokens: text is read one token a byte",
                  .found = fmt::format("model.vocab_size = {}", stored.model.vocab_size),
                  .where = "the checkpoint",
                  .fix = "evaluate it on the data of its run: leave out --file"});
  }
  EvalData out;
  auto& d = out.reading.data;
  d.format = config::DataFormat::text;
  d.path = absolute(words.texts);
  d.eod_token = stored.data.eod_token;
  d.pack = stored.data.pack;
  d.reset_positions = stored.data.reset_positions;
  auto const bytes = text_bytes(d.path);
  auto const window = words.seq_len > 0 ? words.seq_len : stored.model.seq_len;
  if (bytes <= window) refuse_short(window, "byte", bytes, "--file " + base::join(words.texts));
  return out;
}

/// The number of windows that a validation of the run reads; 0: it makes none.
std::int64_t windows_of_the_run(config::Config const& c) { return c.run.eval_batches * c.batch.global; }

/// Throws where the data files of the run are not what it was trained on: their validation split is another one.
void require_same_data(StoredModel const& model, data::TokenSource const& source) {
  auto const& header = model.checkpoint->header;
  if (header.data_hash == 0 || header.data_hash == source.hash()) return;  // an imported model has no hash of data
  base::refuse({.expected = "the data that the run was trained on",
                .found = run::data_difference(header, source.hash()),
                .where = source.describe(),
                .fix = "restore the files of data.path or data.source, or give a text to evaluate on: --file"});
}

/// Throws where the windows that --seq-len asks for are longer than the parts of the data. The data are opened with the
/// training part, which must hold a window too.
void require_windows(std::int64_t window, data::TokenSource const& source, double split) {
  std::int64_t training = source.size(), held_out = 0;
  for (std::size_t i = 0; i < source.parts(); ++i) {
    auto const part = data::split_source(source.part(i), split);
    training = std::min(training, part.training.size());
    held_out = std::max(held_out, part.held_out.size());
  }
  auto const most = std::min(training, held_out) - 1;
  if (window <= most) return;
  throw wrong_words(fmt::format("--seq-len of at most {}: the data of the run ({}) have no longer windows",
                                std::max<std::int64_t>(most, 1), source.describe()),
                    fmt::format("{}", window), "give shorter windows, or a text: --file");
}

/// Prepares the validation split of the run that wrote the checkpoint. Synthetic data have no end: for them it takes
/// the windows that one validation of the run reads.
EvalData own_data(EvalWords const& words, StoredModel const& model) {
  auto const& stored = model.config;
  if (!model.checkpoint || stored.data.split <= 0.0) {
    base::refuse({.expected = "a run with a validation split, or a text to evaluate on",
                  .found = model.checkpoint ? "a run that trained on all of its data (data.split = 0)"
                                            : "the folder of a model, which names no data",
                  .where = model.checkpoint ? "the checkpoint" : model.path,
                  .fix = "give a text: p3d eval CHECKPOINT --file text.txt"});
  }
  EvalData out;
  out.reading.data = config::own_data(stored);
  out.reading.variable = stored.batch.variable;
  if (stored.data.format == config::DataFormat::synthetic) {
    auto const one = windows_of_the_run(stored);
    out.score.most = one > 0 ? one : config::Run{}.eval_batches * stored.batch.global;
    return out;
  }
  auto const source = data::make_token_source(stored);
  require_same_data(model, *source);
  if (words.seq_len > stored.model.seq_len && !stored.batch.variable && stored.model.position == config::Position::rope)
    require_windows(words.seq_len, *source, stored.data.split);
  return out;
}

/// Applies --seq-len. Rotary positions have any length. Learned positions are limited, so windows become shorter than
/// the model's sequences.
void choose_length(EvalWords const& words, config::Config const& stored, EvalData& data) {
  if (words.seq_len == 0 || words.seq_len == stored.model.seq_len) return;
  if (stored.model.position == config::Position::rope) {
    data.reading.seq_len = words.seq_len;
    return;
  }
  bool const longer = words.seq_len > stored.model.seq_len;
  if (longer || data.reading.variable) {
    throw wrong_words(fmt::format("--seq-len of {}{}: {}", longer ? "at most " : "", stored.model.seq_len,
                                  longer ? "the model has so many learned positions"
                                         : "the samples of the run (batch.variable) are cut there"),
                      fmt::format("{}", words.seq_len),
                      longer ? fmt::format("leave it out, or give at most {}", stored.model.seq_len)
                             : "leave it out, or give a text: --file");
  }
  data.score.window = words.seq_len;
}

/// Chooses the data by the options.
EvalData choose_data(EvalWords const& words, StoredModel const& model, ModelLine const& line) {
  bool const bytes = line.tokenizer.empty() ? model.tokenizer.name.empty() : line.tokenizer == "bytes";
  auto out = words.texts.empty() ? own_data(words, model)
             : bytes             ? byte_text(words, model.config)
                                 : tokenized_text(words, model, line);
  choose_length(words, model.config, out);
  return out;
}

/// A function that prints a line on stderr now and then while windows are read; empty on other ranks than 0.
std::function<void(std::int64_t, std::int64_t)> progress_lines(double seconds) {
  if (base::log_rank() != 0 || seconds <= 0.0) return {};
  return [watch = base::Stopwatch(), next = seconds, seconds](std::int64_t read, std::int64_t of) mutable {
    auto const now = watch.seconds();
    if (now < next || read == of) return;
    next = now + seconds;
    auto const left = now / static_cast<double>(read) * static_cast<double>(of - read);
    fmt::print(stderr, "{} of {} read in {}, about {} left\n", read, base::counted(of, "window"),
               base::human_seconds(now), base::human_seconds(left));
  };
}

/// The windows in words: "12 windows of 64 tokens"; for the run's own data also how many of them a validation of the
/// run reads, which its loss is the mean of, unless its windows have another length.
std::string describe_windows(engine::Score const& score, std::int64_t window, bool own, config::Config const& stored,
                             data::Sampler const& sampler) {
  auto text =
      fmt::format("{} of {}{}", base::counted(score.windows, stored.batch.variable && own ? "sample" : "window"),
                  stored.batch.variable && own ? "up to " : "", base::counted(window, "token"));
  if (!own || stored.data.format == config::DataFormat::synthetic) return text;
  text += ", the whole validation split";
  auto const once = windows_of_the_run(stored);
  if (once == 0 || window != stored.model.seq_len) return text;
  auto const read = sampler.eval_reads(once);
  if (read.windows < score.windows && once == read.windows)
    text += fmt::format(" (each validation of the run itself reads {} of them)", once);
  else if (read.windows < score.windows)
    text += fmt::format(" (each validation of the run itself makes {} reads of {} of them)", once, read.windows);
  else if (!read.evenly)
    text += fmt::format(" (each validation of the run itself makes {} reads of them, some more often)", once);
  return text;
}

}  // namespace

int eval_command(int argc, char** argv) {
  ModelLine line;
  EvalWords words;
  CLI::App app{"Loss and perplexity of a trained model, on a text or on the validation split of its run."};
  app.name("p3d eval");
  app.add_option("--file", words.texts,
                 "text file or folder, may be given again; without it the validation split of the run's own data (of "
                 "synthetic data, which have no end, as many windows as one validation reads)")
      ->allow_extra_args(false);
  app.add_option("--seq-len", words.seq_len, "tokens of a window (model.seq_len)")->check(count_from(1, 1 << 24));
  app.add_option("--progress", words.progress_s, "seconds between lines of progress on stderr; 0: none (10)")
      ->check(number_from(0, 1e9));
  add_tokenizer_option(app, line);
  app.get_option("--tokenizer")->needs("--file");  // the run's own data are tokens already
  if (auto const code = parse_model_line(app, line, argc, argv)) return *code;
  line.seq_len = words.seq_len;
  EvalData data;
  auto const prepare = [&](comm::Communicator& world, StoredModel const& model) {
    data = comm::agree(world, "open what is evaluated", [&] { return choose_data(words, model, line); });
    return data.reading;
  };
  return with_stored_model(argc, argv, line, prepare, [&](auto& trainer, StoredModel const& model) {
    auto const& c = trainer.config();
    auto const& source = data.tokens ? *data.tokens : trainer.source();
    bool const own = words.texts.empty();
    data.score.progress = progress_lines(words.progress_s);
    auto const score =
        own && data.score.window == 0
            ? trainer.score_validation(data.score)
            : trainer.score(own ? trainer.sampler().held_out() : std::vector<layout::Range>{{0, source.size()}},
                            &source, data.score);
    auto const name = model.checkpoint ? fmt::format("step {}", model.checkpoint->header.step) : model.path;
    base::log_root(fmt::format("{}: loss {:.10f} nats per token, perplexity {:.4f}; {}; {}", name, score.loss,
                               std::exp(score.loss),
                               describe_windows(score, data.score.window > 0 ? data.score.window : c.model.seq_len, own,
                                                model.config, trainer.sampler()),
                               source.describe()));
    if (!std::isfinite(score.loss))
      throw base::Error(
          {.expected = "a finite loss",
           .found = fmt::format("loss {}", score.loss),
           .where = model.path,
           .fix = "take an earlier checkpoint (p3d checkpoint show FILE --norms tells whether its numbers "
                  "are finite), or a wider --precision"},
          base::ExitCode::not_finite);
    return 0;
  });
}

}  // namespace p3d::app
