// SPDX-License-Identifier: Apache-2.0
// Shows a tokenizer, turns text into tokens and back, and trains a new one. The output of encode can be given to
// decode: "p3d tokenizer encode FILE --text Hi | p3d tokenizer decode FILE" prints "Hi".
#include "tokenizer_command.hpp"

#include "command_line.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/printable.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/text_file.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/text/bpe_trainer.hpp>
#include <p3d/text/tokenizer.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace p3d::app {

namespace {

/// Prints what a tokenizer is: its kind, its vocabulary, its end of a document and its hash.
int show(text::Tokenizer const& tokenizer) {
  auto const end = tokenizer.end_of_document();
  std::string text;
  if (end >= 0) tokenizer.decode(end, text);
  say(tokenizer.describe());
  say(fmt::format("vocabulary       {}", tokenizer.vocab_size()));
  say(fmt::format("end of document  {}", end < 0 ? "none" : fmt::format("{} \"{}\"", end, base::printable_line(text))));
  say(fmt::format("hash             {:016x}", tokenizer.hash()));
  return 0;
}

/// Reads a stream to its end. A text may hold any bytes, so it is not read in lines.
std::string read_all(std::FILE* file) {
  std::string out;
  for (int c = 0; (c = std::fgetc(file)) != EOF;) out.push_back(static_cast<char>(c));
  return out;
}

/// The places where a text may come from.
struct Source {
  std::string text, file;
  bool given = false;
};

/// Reads the text of --text, or of a file, or of standard input.
std::string read_source(Source const& source) {
  if (source.given && !source.file.empty()) throw wrong_words("a text or a file", "both", "leave one out");
  if (source.given) return source.text;
  if (source.file.empty()) return read_all(stdin);
  return base::read_text_file(source.file, "a text file of at most 1 GiB", "command line", std::int64_t{1} << 30);
}

/// Prints the tokens of the text, in one line.
int encode(text::Tokenizer const& tokenizer, Source const& source, bool special) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(read_source(source), ids, special);
  std::string line;
  for (auto id : ids) {
    if (!line.empty()) line += ' ';
    line += fmt::format("{}", id);
  }
  say(line);
  return 0;
}

/// Prints the text of the tokens, without a line break at the end: the bytes may go into a file.
int decode(text::Tokenizer const& tokenizer, std::vector<std::string> words) {
  if (words.empty()) {
    auto const text = read_all(stdin);
    for (std::size_t at = 0; at < text.size();) {
      auto const begin = text.find_first_not_of(" \t\r\n", at);
      if (begin == std::string::npos) break;
      auto const end = std::min(text.find_first_of(" \t\r\n", begin), text.size());
      words.push_back(text.substr(begin, end - begin));
      at = end;
    }
  }
  std::vector<std::int32_t> ids;
  for (auto const& word : words) {
    auto const id = read_count(word, 0, std::numeric_limits<std::int32_t>::max());
    if (!id) throw wrong_words("tokens: whole numbers", word, "give what p3d tokenizer encode prints");
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  auto const text = tokenizer.decode(ids);
  auto const shown = text_for_output(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  return 0;
}

/// Trains a tokenizer and prints what became of it.
int train(text::BpeTraining const& training) {
  base::Stopwatch const watch;
  auto const result = text::train_bpe(training);
  for (auto const& words : left_out_lines(result.left_out)) say(words);
  say(fmt::format("{} of text, {} different; {} and {} in {}: {}", base::counted(result.words, "word"),
                  result.different_words, base::counted(result.tokens, "token"), base::counted(result.merges, "merge"),
                  base::human_seconds(watch.seconds()), training.out));
  if (result.tokens < training.vocab_size)
    say(fmt::format("fewer than {} tokens: no pair is left that occurs {} times", training.vocab_size,
                    training.min_frequency));
  return 0;
}

}  // namespace

int tokenizer_command(int argc, char** argv) {
  if (launcher_rank() != 0) return 0;  // started on several ranks by mistake: one rank does the work
  CLI::App app{"Shows, tries and trains tokenizers. One process is enough."};
  app.name("p3d tokenizer");
  app.require_subcommand(1);
  std::string file, pattern;
  Source source;
  bool special = false;
  std::vector<std::string> words;
  text::BpeTraining training;
  auto const with_file = [&](CLI::App* command) {
    command->add_option("file", file, "tokenizer.json, *.tiktoken, *.model, or \"bytes\"")->required();
    command->add_option("--pattern", pattern, "of a .tiktoken file: gpt2, cl100k, o200k, llama3, qwen2");
    return command;
  };
  auto* const sh = with_file(app.add_subcommand("show", "what a tokenizer is"));
  auto* const en = with_file(app.add_subcommand("encode", "print the tokens of a text"));
  en->add_option("input", source.file, "text file; without it and --text, standard input");
  auto* const text = en->add_option("--text", source.text, "the text itself");
  en->add_flag("--special-tokens", special, "read special tokens that the text spells out as such");
  auto* const de = with_file(app.add_subcommand("decode", "print the text of tokens"));
  de->add_option("tokens", words, "tokens; without them, those on standard input");
  auto* const tr = app.add_subcommand("train", "train a byte-level BPE tokenizer (tokenizer.json) on text");
  tr->add_option("inputs", training.inputs, "text files, .jsonl or .json files, folders; also .gz, .zst")->required();
  tr->add_option("--vocab-size", training.vocab_size, "number of tokens")->required()->check(count_from(256, 1 << 24));
  tr->add_option("--out", training.out, "file to write")->required();
  tr->add_option("--pattern", training.pattern, "how text is split: gpt2, cl100k, o200k, llama3, qwen2 (gpt2)");
  tr->add_option("--special", training.special, "special token, may be given again (<|endoftext|>)")
      ->allow_extra_args(false);
  tr->add_option("--min-frequency", training.min_frequency, "pairs that occur less often are not merged (2)")
      ->check(count_from(1, 1'000'000'000));
  tr->add_option("--json-key", training.json_key, "key of the text in a JSON object (text)");
  if (auto const code = parse_words(app, argc, argv)) return *code;
  source.given = text->count() > 0;
  if (*tr) {
    require_no_input(training.out, "--out", training.inputs);
    return train(training);
  }
  auto const tokenizer = text::make_tokenizer(file, pattern);
  if (*sh) return show(*tokenizer);
  return *en ? encode(*tokenizer, source, special) : decode(*tokenizer, words);
}

}  // namespace p3d::app
