// SPDX-License-Identifier: Apache-2.0
// Makes files of tokens of text, on any number of ranks and threads. The text is cut into parts that do not depend on
// these numbers; each part becomes files of its own, and the parts are joined in order at the end. So the result has
// the same bytes on one rank and on a hundred, and after an interruption only the missing parts are made. Example:
// mpiexec -n 4 p3d data tokenize LICENSE --out licence writes licence.bin and licence.idx.
#include "tokenize_command.hpp"

#include "guard.hpp"
#include "words.hpp"

#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/text/tokenize.hpp>
#include <p3d/report/terminal.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <memory>

namespace p3d::app {

namespace {

// Seconds between two looks at the threads, which is also the time between two all-reduces.
constexpr double beat = 0.25;

/// Shows on a terminal how much all ranks have read.
class Display {
public:
  explicit Display(std::int64_t total)
      : total_(static_cast<double>(total)), columns_(base::log_rank() == 0 ? report::terminal_columns() : 0) {}

  /// Draws the line of progress. `before`: bytes that an earlier start had read, which do not count for the speed.
  void show(std::int64_t read, std::int64_t before) const {
    if (columns_ == 0) return;
    auto const now = static_cast<double>(read);
    auto const rate = (now - static_cast<double>(before)) / std::max(watch_.seconds(), 1e-3);
    auto line = fmt::format("tokenize  {:3.0f} %  {} of {}  {:.1f} MB/s", 100.0 * now / std::max(total_, 1.0),
                            base::human_bytes(now), base::human_bytes(total_), rate / 1e6);
    if (rate > 0 && now < total_) line += "  " + base::human_seconds((total_ - now) / rate) + " left";
    base::status_root(line.substr(0, static_cast<std::size_t>(columns_ - 1)));
  }

private:
  double total_;
  int columns_;
  base::Stopwatch watch_;
};

/// Does this rank's parts. All ranks meet in an all-reduce all the time, so that no wait is longer than comm.timeout_s,
/// however long a rank works. Returns the bytes that were read.
std::int64_t do_parts(text::TokenizeJob& job, comm::Communicator& world) {
  Display const display(job.input_bytes());
  std::array<std::int64_t, 4> all{};
  do {
    bool const done = job.wait(beat);
    // One all-reduce carries it all: ranks at work, ranks that failed, bytes that are read, bytes of earlier starts.
    all = {done ? 0 : 1, job.failed() ? 1 : 0, job.progress(), job.done_before()};
    world.all_reduce(all.data(), std::ssize(all), comm::Type::int64, comm::Reduction::sum).wait();
    display.show(all[2], all[3]);
  } while (all[0] > 0 && all[1] == 0);
  comm::agree(world, "tokenize its parts of the text", [&] { job.finish_parts(); });
  return all[2] - all[3];
}

/// Joins the parts on rank 0, in a thread; the ranks meet in all-reduces meanwhile.
text::TokenizeSummary join_parts(text::TokenizeJob& job, comm::Communicator& world) {
  std::future<text::TokenizeSummary> joined;
  if (world.rank() == 0) joined = std::async(std::launch::async, [&] { return job.join(); });
  std::int64_t working = 0;
  do {
    working = 0;
    if (joined.valid())
      working = joined.wait_for(std::chrono::duration<double>(beat)) == std::future_status::timeout ? 1 : 0;
    world.all_reduce(&working, 1, comm::Type::int64, comm::Reduction::max).wait();
  } while (working > 0);
  text::TokenizeSummary summary;
  comm::agree_on_root(world, [&] { summary = joined.get(); });
  return summary;
}

/// Makes the files of tokens. Collective.
int tokenize(text::TokenizeOptions const& options, int threads, comm::Communicator& world) {
  auto const job = comm::agree(world, "read the tokenizer and list the text files",
                               [&] { return std::make_unique<text::TokenizeJob>(options); });
  std::string note;
  comm::agree_on_root(world, [&] { note = job->prepare(); });
  for (auto const& words : left_out_lines(job->left_out())) base::log_root(words);
  base::log_root(job->describe());
  if (!note.empty()) base::log_root(note);
  auto const node = comm::node_share();
  if (threads == 0) threads = std::max(1, node.cores / node.ranks);
  comm::agree(world, "start", [&] { job->start(world.rank(), world.size(), threads); });
  base::Stopwatch const watch;
  auto const read = do_parts(*job, world);
  auto const summary = join_parts(*job, world);
  auto const seconds = watch.seconds();
  base::log_root(fmt::format(
      "{}{}, {}, {} of text, {:.3f} bytes a token; {} at {:.1f} MB/s: {}.bin, {}.idx",
      base::counted(summary.documents, "document"), summary.empty > 0 ? fmt::format(" ({} empty)", summary.empty) : "",
      base::counted(summary.tokens, "token"), base::counted(summary.text_bytes, "byte"),
      static_cast<double>(summary.text_bytes) / static_cast<double>(summary.tokens), base::human_seconds(seconds),
      static_cast<double>(read) / std::max(seconds, 1e-6) / 1e6, options.prefix, options.prefix));
  return 0;
}

}  // namespace

int tokenize_command(int argc, char** argv) {
  text::TokenizeOptions options;
  int threads = 0;
  bool append = false, leave = false;
  std::string type = "auto";
  CLI::App app{
      "Makes a dataset of tokens (Megatron's IndexedDataset: PREFIX.bin and PREFIX.idx) of text. The same bytes for "
      "any "
      "number of threads and ranks (mpiexec -n 4 p3d data tokenize ...). After an interruption the same command goes "
      "on."};
  app.name("p3d data tokenize");
  app.add_option("inputs", options.inputs,
                 "text files (one document each), .jsonl or .json files (one JSON object a line, a document each), or "
                 "folders of these (files of a folder that are no text are left out); any of them also .gz or .zst")
      ->required();
  app.add_option("--tokenizer", options.tokenizer, "\"bytes\", tokenizer.json, *.tiktoken or *.model")->required();
  app.add_option("--pattern", options.pattern,
                 "of a .tiktoken file, how it splits text: gpt2, cl100k, o200k, llama3, qwen2");
  app.add_option("--out", options.prefix, "PREFIX of the files to write")->required();
  app.add_option("--json-key", options.json_key, "key of the text in a JSON object (text)");
  app.add_flag("--append-eod", append,
               "end each document with the tokenizer's token for that (default, if it has one)");
  app.add_flag("--no-eod", leave, "do not");
  app.add_flag("--special-tokens", options.special, "read special tokens that the text spells out as such");
  app.add_option("--threads", threads, "threads on each rank (its share of the cores)")->check(count_from(1, 4096));
  app.add_option("--dtype", type, "auto, u16 or i32; auto: u16 below 65500 tokens")
      ->check(CLI::IsMember({"auto", "u16", "i32"}));
  if (auto const code = parse_words(app, argc, argv)) return *code;
  if (append && leave) throw wrong_words("one of --append-eod and --no-eod", "both", "leave one out");
  if (append || leave) options.end_of_document = append;
  if (type != "auto") options.type = type == "u16" ? text::TokenType::u16 : text::TokenType::i32;
  // Kokkos takes --threads for an option of its own, so it gets none of the words.
  return with_ranks(1, argv, [&](comm::Communicator& world) { return tokenize(options, threads, world); });
}

}  // namespace p3d::app
