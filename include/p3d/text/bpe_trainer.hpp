// SPDX-License-Identifier: Apache-2.0
#pragma once
// Trains byte-level BPE: again and again the pair of tokens that occurs most often becomes a token (Sennrich et al.,
// arXiv 1508.07909). The result depends on the text and the options alone.

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::text {

/// Options of a training.
struct BpeTraining {
  std::vector<std::string> inputs;  ///< text files and folders, as TokenizeOptions::inputs
  std::string out;                  ///< path of the tokenizer.json to write
  std::int64_t vocab_size = 0;      ///< number of tokens, with the special tokens and the 256 bytes
  std::string pattern = "gpt2";     ///< name of the pattern that splits text into words
  std::vector<std::string> special = {"<|endoftext|>"};  ///< these have the first ids
  std::int64_t min_frequency = 2;                        ///< a pair that occurs less often is not merged
  std::string json_key = "text";                         ///< key of the text in lines of JSON
};

/// Counts of a finished training.
struct BpeTrained {
  std::int64_t words = 0, different_words = 0, tokens = 0, merges = 0;
  std::vector<std::string> left_out;  ///< files of folders that are not text, each with the reason
};

/// Trains a tokenizer and writes its file. Special tokens have the first ids, then come the bytes in the order of their
/// letters, then the merged tokens; among pairs that are equally frequent the one with the smaller ids is merged first.
/// The trainer of Hugging Face's tokenizers does the same. Throws base::Error (bad_input) for files that cannot be
/// read, and when there is nothing to learn from.
BpeTrained train_bpe(BpeTraining const& training);

}  // namespace p3d::text
