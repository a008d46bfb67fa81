// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turns a corpus of text files into a Megatron IndexedDataset, by any number of ranks and threads; the bytes are the
// same for all of them. The corpus is divided into parts, which depend on the files alone. Each part becomes two files
// below PREFIX.parts/; at the end rank 0 joins them. Parts that were finished before an interruption are not done
// again.

#include <p3d/text/indexed_dataset_writer.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace p3d::text {

/// Options of a job.
struct TokenizeOptions {
  std::vector<std::string> inputs =
      {};                   ///< text files, .jsonl or .json (a document a line), folders; also .gz and .zst
  std::string prefix = {};  ///< the files written begin with it
  std::string tokenizer = "bytes";
  std::string pattern = {};  ///< pattern of a tiktoken file
  std::string json_key = "text";
  /// Append the token that ends documents; empty: where the tokenizer names one.
  std::optional<bool> end_of_document = {};
  std::optional<TokenType> type = {};  ///< type of stored tokens; empty: as Megatron chooses
  bool special = false;                ///< special tokens in text become their ids
};

/// A note about files whose bytes are read as a text (data.format = "text", p3d eval --file) and which are compressed,
/// lines of JSON or no text at all, or "". `key` names the paths. Throws as find_text_files does.
std::string note_about_binaries(std::vector<std::string> const& paths, char const* key);

/// Counts of a finished dataset.
struct TokenizeSummary {
  std::int64_t documents = 0, empty = 0, tokens = 0, text_bytes = 0;
};

/// One job of tokenizing. Every rank makes all calls in the order below, with the same options. All throw base::Error.
class TokenizeJob {
public:
  /// Reads the tokenizer and lists the files. Nothing is written yet.
  explicit TokenizeJob(TokenizeOptions options);
  ~TokenizeJob();
  /// Bytes of all input files.
  std::int64_t input_bytes() const;
  /// The number of parts.
  std::int64_t parts() const;
  /// Files of folders that are not text, each with the reason.
  std::vector<std::string> const& left_out() const;
  /// The job in words: "5 files, 1.2 GiB; tokenizer.json: byte-level BPE, 50257 tokens; 2 bytes a token, 50256 after
  /// each document".
  std::string describe() const;

  /// Makes PREFIX.parts/, or keeps what an equal job has left there. Rank 0 calls it, before the others go on. Returns
  /// a line about what it found there, or "". Refuses outputs that exist already, and a folder that another process
  /// works in.
  std::string prepare();
  /// Starts `threads` threads on the parts of this rank that are not done yet.
  void start(int rank, int ranks, int threads);
  /// Bytes of the input that this rank has read, or has found done.
  std::int64_t progress() const;
  /// The part of progress() that an earlier start had done.
  std::int64_t done_before() const;
  /// Waits for at most so long. True: the threads have nothing more to do, or one has failed.
  bool wait(double seconds);
  /// True when a part has failed.
  bool failed() const;
  /// Ends the threads. Throws the error of the first part that failed.
  void finish_parts();
  /// Joins the parts and removes PREFIX.parts/. Rank 0 calls it when all ranks are done.
  TokenizeSummary join();

private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace p3d::text
