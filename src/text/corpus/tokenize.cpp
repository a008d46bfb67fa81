// SPDX-License-Identifier: Apache-2.0
// The job of p3d data tokenize. PREFIX.parts/ holds a plan (tokenizer, options, files with sizes and times, parts) and
// the finished parts: a later start with the same plan does only the missing ones. Part i belongs to rank i mod ranks,
// whose threads take its parts in order; rank 0 then joins all parts. Example: 200 MiB of text are 64 parts of about 3
// MiB, for 4 ranks 16 each.
#include <p3d/text/token_origin.hpp>
#include <p3d/text/tokenize.hpp>

#include "text/corpus/byte_stream.hpp"
#include "text/corpus/part.hpp"
#include "text/output_file.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/process.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace p3d::text {

namespace fs = std::filesystem;

namespace {

base::Error bad_words(std::string expected, std::string found, std::string fix) {
  return {{.expected = std::move(expected), .found = std::move(found), .where = "command line", .fix = std::move(fix)},
          base::ExitCode::bad_input};
}

}  // namespace

/// The state of a job on one rank.
struct TokenizeJob::State {
  TokenizeOptions options;
  std::unique_ptr<Tokenizer> tokenizer;
  PartOptions part_options;
  std::vector<CorpusFile> files;
  std::vector<std::string> left_out;  ///< files that are not text, each with the reason
  std::vector<CorpusPart> parts;
  std::string folder;  ///< PREFIX.parts
  std::string plan;    ///< everything on which the parts depend
  std::int64_t input_bytes = 0, done_before = 0;
  /// Descriptor of PREFIX.parts/lock, which rank 0 holds locked.
  int lock = -1;

  /// The parts that this rank has to do.
  std::vector<std::size_t> mine;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable changed;
  /// The next part to take (index into mine), threads at work, and the lowest part that has failed. `mutex` guards
  /// them.
  std::size_t next = 0, working = 0, failed_at = ~std::size_t{0};
  std::exception_ptr failure;
  /// Bytes that this start has read.
  std::atomic<std::int64_t> read{0};

  /// A job that is destroyed early ends its threads after their current parts.
  ~State() {
    stop();
    if (lock >= 0) ::close(lock);
  }
  void stop() {
    {
      std::lock_guard const guard(mutex);
      next = mine.size();
    }
    for (auto& t : threads) t.join();
    threads.clear();
  }
  std::string plan_file() const { return folder + "/plan"; }
  /// Chooses the options that depend on the tokenizer, and refuses those that do not fit it.
  void choose();
  void write_plan();
  /// Takes parts until none is left; runs in each thread.
  void work();
};

void TokenizeJob::State::choose() {
  auto const vocabulary = tokenizer->vocab_size();
  auto const end = tokenizer->end_of_document();
  if (options.end_of_document.value_or(false) && end < 0) {
    throw bad_words("a tokenizer that names the token that ends a document",
                    fmt::format("{}, which names none", tokenizer->describe()), "leave out --append-eod");
  }
  part_options = {.documents = {.json_key = options.json_key, .cuts = tokenizer->cuts_at_lines()},
                  .type = options.type.value_or(token_type(vocabulary)),
                  .end_of_document = options.end_of_document.value_or(true) ? end : -1,
                  .special = options.special};
  if (part_options.type == TokenType::u16 && vocabulary > 65536) {
    throw bad_words(fmt::format("tokens that fit into 2 bytes: at most 65536 of them (--dtype u16)"),
                    fmt::format("{}", tokenizer->describe()), "leave out --dtype");
  }
}

/// Writes the plan as lines of text, so that a person can see what the folder belongs to.
void TokenizeJob::State::write_plan() {
  plan = fmt::format("{} of version 1\ntokenizer {:016x}\ntype {}\nend {}\nspecial {}\nkey {}\n", parts_title,
                     tokenizer->hash(), static_cast<int>(part_options.type), part_options.end_of_document,
                     part_options.special, options.json_key);
  for (auto const& f : files) plan += fmt::format("file {} {} {}\n", f.bytes, f.changed, f.path);
  for (auto const& p : parts) {
    for (auto const& s : p) plan += fmt::format("{} {}-{};", s.file, s.begin, s.end);
    plan += '\n';
  }
}

TokenizeJob::TokenizeJob(TokenizeOptions options) : state_(std::make_unique<State>()) {
  auto& s = *state_;
  s.options = std::move(options);
  s.tokenizer = make_tokenizer(s.options.tokenizer, s.options.pattern);
  s.choose();
  s.files = find_corpus(s.options.inputs, s.left_out);
  for (auto const& f : s.files) s.input_bytes += f.bytes;
  s.parts = divide_corpus(s.files, s.part_options.documents.cuts);
  s.folder = s.options.prefix + ".parts";
  s.write_plan();
}

TokenizeJob::~TokenizeJob() = default;
std::int64_t TokenizeJob::input_bytes() const { return state_->input_bytes; }
std::vector<std::string> const& TokenizeJob::left_out() const { return state_->left_out; }
std::int64_t TokenizeJob::parts() const { return std::ssize(state_->parts); }

std::string TokenizeJob::describe() const {
  auto const& s = *state_;
  auto const end = s.part_options.end_of_document;
  return fmt::format("{}, {}; {}; {} bytes a token, {}", base::counted(std::ssize(s.files), "file"),
                     base::human_bytes(static_cast<double>(s.input_bytes)), s.tokenizer->describe(),
                     size_of(s.part_options.type),
                     end < 0 ? "nothing after a document" : fmt::format("{} after each document", end));
}

std::string TokenizeJob::prepare() {
  auto& s = *state_;
  std::error_code why;
  auto const parent = fs::path(s.options.prefix).parent_path();
  if (!parent.empty()) fs::create_directories(parent, why);
  bool const was_there = fs::exists(s.folder, why);
  if (!was_there) {
    for (char const* ending : {".bin", ".idx"}) {
      if (!fs::exists(s.options.prefix + ending, why)) continue;
      throw bad_words("the name of a dataset that is not there yet", fmt::format("{}{}", s.options.prefix, ending),
                      "remove it, or give another --out");
    }
  }
  fs::create_directories(s.folder, why);
  if (why) throw bad_words("a place that can be written to", fmt::format("{}: {}", s.folder, why.message()), "--out");
  s.lock = ::open((s.folder + "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  if (s.lock >= 0 && ::flock(s.lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw bad_words("no other process that makes the same dataset", "one that does", "wait for its end");
  std::ifstream in(s.plan_file(), std::ios::binary);
  std::string const before{std::istreambuf_iterator<char>(in), {}};
  if (before == s.plan) {
    std::int64_t done = 0;
    for (std::size_t i = 0; i < s.parts.size(); ++i) done += done_part(s.folder, i, s.part_options.type).has_value();
    return fmt::format("going on: {} of {} are done", done, base::counted(std::ssize(s.parts), "part"));
  }
  for (auto const& entry : fs::directory_iterator(s.folder)) {
    if (entry.path().filename() != "lock") fs::remove(entry.path(), why);
  }
  OutputFile plan(s.plan_file());
  plan.write(s.plan.data(), s.plan.size());
  plan.finish();
  if (before.empty()) return "";
  return fmt::format("starting over: what is in {} was made of other files, or with other options", s.folder);
}

void TokenizeJob::State::work() {
  for (;;) {
    std::size_t part = 0;
    {
      std::lock_guard const guard(mutex);
      // Parts before one that failed are still done, so that the error of the first one is reported, whatever the
      // threads do.
      if (next >= mine.size() || mine[next] > failed_at) {
        --working;
        changed.notify_all();
        return;
      }
      part = mine[next++];
    }
    try {
      tokenize_part(files, parts[part], *tokenizer, part_options, folder, part,
                    [&](std::int64_t bytes) { read += bytes; });
    } catch (...) {
      std::lock_guard const guard(mutex);
      if (part < failed_at) {
        failed_at = part;
        failure = std::current_exception();
      }
    }
  }
}

void TokenizeJob::start(int rank, int ranks, int threads) {
  auto& s = *state_;
  std::ifstream in(s.plan_file(), std::ios::binary);
  std::string const plan{std::istreambuf_iterator<char>(in), {}};
  if (plan != s.plan) {
    base::refuse({.expected = "the same files, on a file system that all ranks share",
                  .found = fmt::format("other ones than rank 0 found: {} does not say the same", s.plan_file()),
                  .where = "",
                  .fix = "start on nodes that see the same files"});
  }
  for (std::size_t i = 0; i < s.parts.size(); ++i) {
    if (static_cast<int>(i % static_cast<std::size_t>(ranks)) != rank) continue;
    if (done_part(s.folder, i, s.part_options.type)) {
      for (auto const& segment : s.parts[i]) s.done_before += segment.end - segment.begin;
      continue;
    }
    s.mine.push_back(i);
  }
  base::SignalsBlocked const blocked;
  s.working = std::min<std::size_t>(static_cast<std::size_t>(threads), s.mine.size());
  for (std::size_t i = 0, n = s.working; i < n; ++i) s.threads.emplace_back([&s] { s.work(); });
}

std::int64_t TokenizeJob::progress() const {
  return std::min<std::int64_t>(state_->done_before + state_->read, state_->input_bytes);
}
std::int64_t TokenizeJob::done_before() const { return state_->done_before; }

bool TokenizeJob::wait(double seconds) {
  auto& s = *state_;
  std::unique_lock guard(s.mutex);
  return s.changed.wait_for(guard, std::chrono::duration<double>(seconds), [&] { return s.working == 0; });
}

bool TokenizeJob::failed() const {
  std::lock_guard const guard(state_->mutex);
  return state_->failure != nullptr;
}

void TokenizeJob::finish_parts() {
  state_->stop();
  if (state_->failure) std::rethrow_exception(state_->failure);
}

TokenizeSummary TokenizeJob::join() {
  auto& s = *state_;
  TokenizeSummary out;
  OutputFile tokens(s.options.prefix + ".bin");
  std::string bytes(std::size_t{1} << 22, '\0');
  for (std::size_t i = 0; i < s.parts.size(); ++i) {
    auto const counts = done_part(s.folder, i, s.part_options.type);
    if (!counts) {
      throw base::Error({.expected = "all parts",
                         .found = fmt::format("no whole part {}", i),
                         .where = s.folder,
                         .fix = "run the same command again"});
    }
    out.tokens += counts->tokens;
    out.text_bytes += counts->text_bytes;
    auto const stream = open_bytes(part_file(s.folder, i, "bin"));
    for (std::size_t got = 0; (got = stream->read(bytes.data(), bytes.size())) > 0;) tokens.write(bytes.data(), got);
  }
  if (out.tokens == 0) {
    base::refuse({.expected = "text that becomes tokens",
                  .found = fmt::format("none in {}", base::counted(std::ssize(s.files), "file")),
                  .where = base::join(s.options.inputs),
                  .fix = "name files with text"});
  }
  // A document may go on over several parts: its entries are added up.
  auto const each = [&](std::function<void(std::int64_t)> const& take) {
    std::int64_t length = -1;
    for (std::size_t i = 0; i < s.parts.size(); ++i) {
      read_lengths(s.folder, i, [&](std::int64_t tokens_here, bool begins) {
        if (begins && length >= 0) take(length);
        length = begins ? tokens_here : length + tokens_here;
      });
    }
    if (length >= 0) take(length);
  };
  tokens.close();
  auto const counts = write_index(s.options.prefix + ".idx", s.part_options.type, each);
  write_origin(s.options.prefix, {.tokenizer = fs::path(s.options.tokenizer).filename().string(),
                                  .pattern = s.options.pattern,
                                  .hash = s.tokenizer->hash(),
                                  .vocab_size = s.tokenizer->vocab_size(),
                                  .end_of_document = s.part_options.end_of_document,
                                  .bytes = tokens.bytes()});
  tokens.finish();
  out.documents = counts.documents;
  out.empty = counts.documents - counts.sequences;
  std::error_code ignored;
  fs::remove_all(s.folder, ignored);
  return out;
}

}  // namespace p3d::text
