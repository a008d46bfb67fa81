// SPDX-License-Identifier: Apache-2.0
#pragma once
// Trains byte-level BPE: again and again the pair of tokens that occurs most often becomes a token (Sennrich et al.,
// arXiv 1508.07909). The result is a function of the text and the options alone.

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::data {

struct BpeTraining {
  std::vector<std::string> inputs;                       ///< as those of TokenizeOptions
  std::string out;                                       ///< tokenizer.json
  std::int64_t vocab_size = 0;                           ///< with the special tokens and the 256 bytes
  std::string pattern = "gpt2";                          ///< how text is split into words
  std::vector<std::string> special = {"<|endoftext|>"};  ///< these have the first ids
  std::int64_t min_frequency = 2;
  std::string json_key = "text";
};

struct BpeTrained {
  std::int64_t words = 0, different_words = 0, tokens = 0, merges = 0;
  std::vector<std::string> left_out;  ///< files of folders that are no text, each with the reason
};

/// Special tokens come first, then the bytes in the order of their letters, then what is merged; of pairs that are
/// equally frequent the one with the smaller ids goes first. So does the trainer of Hugging Face's tokenizers. Throws
/// base::Error (bad_input) for what cannot be read, and where nothing is to be learned.
BpeTrained train_bpe(BpeTraining const& training);

}  // namespace p3d::data
