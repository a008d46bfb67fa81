// SPDX-License-Identifier: Apache-2.0
#pragma once
// A corpus of text files to a Megatron IndexedDataset, by any number of ranks and threads: the same bytes for all of
// them. The corpus is divided into parts, which depend on the files alone. Each becomes two files below PREFIX.parts/;
// at the end rank 0 joins them. What was finished before an interruption is not done again.

#include <p3d/data/indexed_dataset_writer.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace p3d::data {

struct TokenizeOptions {
  std::vector<std::string> inputs =
      {};                   ///< text files, .jsonl or .json (a document a line), folders; also .gz and .zst
  std::string prefix = {};  ///< of the files written
  std::string tokenizer = "bytes";
  std::string pattern = {};  ///< of a tiktoken file
  std::string json_key = "text";
  std::optional<bool> end_of_document = {};  ///< none: where the tokenizer names a token for it
  std::optional<TokenType> type = {};        ///< none: as Megatron chooses
  bool special = false;                      ///< special tokens in text become their ids
};

/// Of text files whose bytes a run trains on (data.format = "text"): what there is to say of those that are no text, or
/// "". Throws as find_text_files does.
std::string note_about_binaries(std::vector<std::string> const& paths);

/// What a finished dataset holds.
struct TokenizeSummary {
  std::int64_t documents = 0, empty = 0, tokens = 0, text_bytes = 0;
};

/// The calls in their order; every rank makes all of them, with the same options. All throw base::Error.
class TokenizeJob {
public:
  /// Reads the tokenizer and lists the files. Nothing is written yet.
  explicit TokenizeJob(TokenizeOptions options);
  ~TokenizeJob();
  /// Bytes of all input files.
  std::int64_t input_bytes() const;
  std::int64_t parts() const;
  /// The files of folders that are no text, each with the reason.
  std::vector<std::string> const& left_out() const;
  /// "5 files, 1.2 GiB; tokenizer.json: byte-level BPE, 50257 tokens; a token of 2 bytes"
  std::string describe() const;

  /// Rank 0, before the others go on: makes PREFIX.parts/, or keeps what an equal job has left there. Returns what
  /// there is to say of that, or "". Refuses outputs that are there already, and a folder that another process works
  /// in.
  std::string prepare();
  /// Starts `threads` threads on the parts of this rank that are not done.
  void start(int rank, int ranks, int threads);
  /// Bytes of the input that this rank has read, or found done.
  std::int64_t progress() const;
  /// Of these, bytes that an earlier start had done.
  std::int64_t done_before() const;
  /// Waits at most so long; true: the threads have nothing more to do, or one has failed.
  bool wait(double seconds);
  bool failed() const;
  /// Ends the threads. Throws what the first part that failed has thrown.
  void finish_parts();
  /// Rank 0, when all are through: joins the parts and removes PREFIX.parts/.
  TokenizeSummary join();

private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace p3d::data
