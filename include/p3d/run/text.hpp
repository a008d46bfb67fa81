// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text in, text out: a tokenizer around Trainer::sample.

#include <p3d/data/tokenizer.hpp>
#include <p3d/engine/trainer.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace p3d::run {

/// The tokenizer of a run, and what its checkpoints say of it: with its file where `keep_file`.
struct RunTokenizer {
  std::unique_ptr<data::Tokenizer> tokenizer;
  io::StoredTokenizer stored;
};
RunTokenizer open_tokenizer(config::Config const& config, bool keep_file);
/// The same of a file, for a model of `vocab_size` tokens.
RunTokenizer open_tokenizer(std::string const& path, std::string const& pattern, std::int64_t vocab_size,
                            bool keep_file);

struct TextOptions {
  engine::SampleOptions draw;       ///< stop_tokens and complete are set here
  std::vector<std::string> stop;    ///< texts that end a text; they are left out of it
  bool ends = true;                 ///< the token for the end of a document ends a text too
  std::optional<int> document_end;  ///< that token (-1: none), where it is not the tokenizer's
  std::int64_t logprobs = 0;        ///< so many of the likeliest tokens are told for each one that was drawn
};

/// A token and its log-probability at temperature 1.
struct TokenLogprob {
  int token = 0;
  double logprob = 0.0;
};

struct DrawnText {
  std::string text;
  std::vector<int> prompt_tokens, tokens;
  std::vector<std::vector<TokenLogprob>> logprobs;  ///< of each of `tokens`, the likeliest first
};

/// Continues each prompt. What a prompt says of special tokens becomes their ids; an empty one stands for the end of a
/// document, after which a new one begins, or for a line break where the tokenizer has no such token. Only tokens that
/// the tokenizer knows are drawn. Throws base::Error (bad_input) for a prompt that the model has no tokens for.
/// Collective.
template <class P>
std::vector<DrawnText> continue_texts(engine::Trainer<P>& trainer, data::Tokenizer const& tokenizer,
                                      std::vector<std::string> const& prompts, TextOptions options);

}  // namespace p3d::run
