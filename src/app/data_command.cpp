// SPDX-License-Identifier: Apache-2.0
// Inspects files of tokens: show (facts), head (the first documents), check (all errors), stats (lengths and frequent
// ids). All of them read through data::TokenFiles, one source for each path. Example: "p3d data head PREFIX --tokenizer
// tokenizer.json" prints the ids and the text of the first three documents.
#include "data_command.hpp"

#include "command_line.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/printable.hpp>
#include <p3d/base/text.hpp>
#include <p3d/data/statistics.hpp>
#include <p3d/data/token_files.hpp>
#include <p3d/text/token_origin.hpp>
#include <p3d/text/tokenizer.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <vector>

namespace p3d::app {

namespace {

using data::TokenFiles;

/// The options of all subcommands.
struct Line {
  std::vector<std::string> paths;
  std::string format, tokenizer, pattern;
  std::int64_t documents = 3, tokens = 64, vocabulary = TokenFiles::most_tokens, eod = -1, top = 10;
};

/// Opens a path in the format that the options give, or else in the one that it seems to have.
TokenFiles open(Line const& line, std::string const& path, TokenFiles::Check check = TokenFiles::Check::sample) {
  using Format = config::DataFormat;
  auto format = data::guess_format(path);
  for (auto f : {Format::text, Format::megatron, Format::llmc, Format::npy}) {
    if (line.format == to_string(f)) format = f;
  }
  return {format, {path}, line.vocabulary, path, check};
}

/// Prints the note about the tokenizer of a pair, if there is one.
void say_origin(std::string const& prefix) {
  auto const origin = text::read_origin(prefix);
  if (!origin) return;
  say(fmt::format("  made with {}{}, {} (hash {:016x}); {}", origin->tokenizer,
                  origin->pattern.empty() ? "" : ", pattern " + origin->pattern,
                  base::counted(origin->vocab_size, "token"), origin->hash,
                  origin->end_of_document < 0 ? "nothing after a document"
                                              : fmt::format("token {} after each document", origin->end_of_document)));
}

/// Prints a line of facts for each file.
int show(Line const& line) {
  say(fmt::format("{:<9} {:<7} {:>15} {:>12} {:>12} {:>11}  {:<16}  {}", "format", "type", "tokens", "documents",
                  "sequences", "bytes", "hash", "file"));
  for (auto const& path : line.paths) {
    auto const source = open(line, path);
    for (auto const& file : source.files()) {
      auto const count = [](std::int64_t n) { return n > 0 ? fmt::format("{}", n) : std::string("-"); };
      say(fmt::format("{:<9} {:<7} {:>15} {:>12} {:>12} {:>11}  {:016x}  {}", to_string(source.format()), file.type,
                      file.tokens, count(file.documents), count(file.sequences),
                      base::human_bytes(static_cast<double>(file.bytes)), source.hash(), file.path));
      if (source.format() == config::DataFormat::megatron) say_origin(file.path);
    }
  }
  return 0;
}

/// Prints the first ids of a document, and their text where a tokenizer is given.
void say_tokens(TokenFiles const& source, layout::Range tokens, Line const& line, text::Tokenizer const* tokenizer) {
  auto const shown = std::min(tokens.size(), line.tokens);
  std::vector<int> ids(static_cast<std::size_t>(shown));
  source.read(tokens.begin, ids);
  std::string list, text;
  for (int const id : ids) {
    list += fmt::format(" {}", id);
    if (tokenizer != nullptr) tokenizer->decode(id, text);
  }
  char const* const more = shown < tokens.size() ? " ..." : "";
  say(fmt::format("  ids:{}{}", list, more));
  if (tokenizer != nullptr) say(fmt::format("  text: {}{}", base::printable_line(text), more));
}

/// Throws for token files whose note names another tokenizer than the one that is given: its text would be wrong.
void require_their_tokenizer(TokenFiles const& source, Line const& line, text::Tokenizer const& tokenizer) {
  if (source.format() != config::DataFormat::megatron) return;
  text::TokenOrigin const given{.tokenizer = line.tokenizer, .pattern = line.pattern, .hash = tokenizer.hash()};
  for (auto const& file : source.files()) {
    auto const origin = text::read_origin(file.path);
    if (!origin || text::same_tokenizer(*origin, given)) continue;
    base::refuse(
        {.expected = "tokens of " + text::tokenizer_in_words(given),
         .found =
             fmt::format("tokens of {}, as {} says", text::tokenizer_in_words(*origin), text::origin_file(file.path)),
         .where = "--tokenizer, and " + file.path,
         .fix = fmt::format("name {}: --tokenizer, or leave the option out to see ids alone", origin->tokenizer)});
  }
}

/// Prints the first documents; of a file that knows no documents, its first tokens.
int head(Line const& line) {
  std::unique_ptr<text::Tokenizer> tokenizer;
  if (!line.tokenizer.empty()) tokenizer = text::make_tokenizer(line.tokenizer, line.pattern);
  for (auto const& path : line.paths) {
    auto const source = open(line, path);
    if (tokenizer) require_their_tokenizer(source, line, *tokenizer);
    say(source.describe());
    if (source.documents() == 0) {
      say_tokens(source, {0, source.size()}, line, tokenizer.get());
      continue;
    }
    for (std::int64_t d = 0; d < std::min(line.documents, source.documents()); ++d) {
      auto const tokens = source.document(d);
      say(fmt::format("document {}: {}", d, base::counted(tokens.size(), "token")));
      say_tokens(source, tokens, line, tokenizer.get());
    }
  }
  return 0;
}

/// Reads every token of every path, and prints errors: at most 20, as one slip makes thousands. Goes on with the next
/// path after an error that ends a file.
int check(Line const& line) {
  constexpr std::int64_t most = 20;
  std::int64_t all = 0;
  auto const tell = [&](base::ErrorText const& e) {
    if (all++ < most) say(fmt::format("{}: expected {}, found {}", e.where, e.expected, e.found));
    return true;
  };
  for (auto const& path : line.paths) {
    auto const before = all;
    try {
      auto const source = open(line, path, TokenFiles::Check::header);
      source.walk(tell);
      if (source.format() == config::DataFormat::megatron) {
        for (auto const& file : source.files()) text::read_origin(file.path);
      }
      if (all == before) say(fmt::format("{}: good", source.describe()));
    } catch (base::Error const& e) {
      tell(e.text());
    }
  }
  if (all > most) say(fmt::format("and {} more", base::counted(all - most, "error")));
  return all > 0 ? static_cast<int>(base::ExitCode::bad_input) : 0;
}

/// Prints the lengths of documents as a histogram by powers of two.
void say_lengths(data::TokenStatistics const& s) {
  say(fmt::format("tokens per document   min {}, median {}, mean {:.1f}, max {}", s.lengths.begin()->first, s.median(),
                  s.mean(), s.lengths.rbegin()->first));
  std::map<unsigned, std::int64_t> rows;  // by number of bits of the length
  for (auto const& [length, count] : s.lengths) rows[std::bit_width(static_cast<std::uint64_t>(length))] += count;
  std::int64_t highest = 0;
  for (auto const& [bits, count] : rows) highest = std::max(highest, count);
  for (auto const& [bits, count] : rows) {
    auto const least = bits == 0 ? 0 : std::int64_t{1} << (bits - 1), last = (std::int64_t{1} << bits) - 1;
    auto const bar = static_cast<std::size_t>(std::max<std::int64_t>(1, 40 * count / highest));
    say(fmt::format("  {:>10} to {:<10} {:>12}  {}", least, last, count, std::string(bar, '#')));
  }
}

/// Counts what is in the tokens of each path: lengths of documents, ids, and the most frequent ones.
int stats(Line const& line) {
  for (auto const& path : line.paths) {
    auto const source = open(line, path);
    auto const s = data::measure(source, static_cast<int>(line.eod), static_cast<std::size_t>(line.top));
    auto const share = [&](std::int64_t n) { return 100.0 * static_cast<double>(n) / static_cast<double>(s.tokens); };
    say(fmt::format("{}\ntokens                {}\ndocuments             {}", source.describe(), s.tokens,
                    s.lengths.empty() ? "-" : fmt::format("{}", s.documents())));
    if (!s.lengths.empty()) say_lengths(s);
    say(fmt::format("ids                   {} different ones, the highest {}", s.distinct, s.highest));
    if (line.eod >= 0) say(fmt::format("end of document ({})   {} ({:.3f} %)", line.eod, s.ends, share(s.ends)));
    say("most frequent ids");
    for (auto const& [id, count] : s.most_frequent)
      say(fmt::format("  {:>10} {:>12} {:>7.3f} %", id, count, share(count)));
  }
  return 0;
}

}  // namespace

int data_command(int argc, char** argv) {
  if (launcher_rank() != 0) return 0;  // started on several ranks by mistake: one rank does the work
  CLI::App app{
      "Makes files of tokens (tokenize), and looks into them: Megatron-LM (.bin and .idx), llm.c, numpy, or text. One "
      "process is enough."};
  app.name("p3d data");
  app.require_subcommand(1);
  Line line;
  constexpr std::uint64_t many = std::uint64_t{1} << 40;
  auto const add = [&](char const* name, char const* what) {
    auto* const sub = app.add_subcommand(name, what);
    sub->add_option("files", line.paths, "files or folders; of a pair the path with or without .bin or .idx")
        ->required();
    sub->add_option("--format", line.format, "text, megatron, llmc or npy (as the file looks)")
        ->check(CLI::IsMember({"text", "megatron", "llmc", "npy"}));
    return sub;
  };
  auto const* const sh = add("show", "format, type, tokens, documents, bytes and hash");
  auto* const he = add("head", "the first documents");
  he->add_option("--documents", line.documents, "how many documents (3)")->check(count_from(1, many));
  he->add_option("--tokens", line.tokens, "most tokens of a document (64)")->check(count_from(1, 1 << 24));
  he->add_option("--tokenizer", line.tokenizer, "file, or bytes: print the text too");
  he->add_option("--tokenizer-pattern", line.pattern, "of a *.tiktoken file: how text is split")->needs("--tokenizer");
  auto* const ch = add("check", "read everything; exit code 2, and at most 20 errors, when something is wrong");
  ch->add_option("--vocab", line.vocabulary, "ids must be below")->check(count_from(1, TokenFiles::most_tokens));
  // A command that main calls elsewhere stands here so that this help lists it.
  app.add_subcommand("tokenize", "make token files of text: p3d data tokenize --help");
  auto* const st = add("stats", "lengths of documents, ids that occur, the most frequent ones");
  st->add_option("--eod", line.eod, "token that ends a document")->check(count_from(0, TokenFiles::most_tokens - 1));
  st->add_option("--top", line.top, "most frequent ids (10)")->check(count_from(0, 1 << 20));
  if (auto const code = parse_words(app, argc, argv)) return *code;
  if (*sh) return show(line);
  if (*he) return head(line);
  if (*ch) return check(line);
  return stats(line);
}

}  // namespace p3d::app
