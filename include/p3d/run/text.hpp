// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text in, text out: a tokenizer around Trainer::sample. p3d generate and the sample at the end of a run use it.

#include <p3d/text/tokenizer.hpp>
#include <p3d/engine/trainer.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace p3d::run {

/// The tokenizer of a run, and what its checkpoints say of it. `stored` has the text of its file where `keep_file`.
struct RunTokenizer {
  std::unique_ptr<text::Tokenizer> tokenizer;
  io::StoredTokenizer stored;
};
/// Opens the tokenizer of data.tokenizer; "bytes" gives the built-in one. Throws base::Error (bad_input).
RunTokenizer open_tokenizer(config::Config const& config, bool keep_file);
/// Opens the tokenizer file `path`, for a model of `vocab_size` tokens. `pattern` is data.tokenizer_pattern.
RunTokenizer open_tokenizer(std::string const& path, std::string const& pattern, std::int64_t vocab_size,
                            bool keep_file);

/// How texts are drawn, and where they end.
struct TextOptions {
  engine::SampleOptions draw;       ///< continue_texts() adds stop_tokens, vocabulary, complete and observe
  std::vector<std::string> stop;    ///< a text ends before the first of these, which is left out of it
  bool ends = true;                 ///< the token for the end of a document ends a text too
  std::optional<int> document_end;  ///< the id of the end of a document (-1: none), where it is not the tokenizer's own
  std::int64_t logprobs = 0;        ///< number of likeliest tokens that are returned for each drawn one
};

/// A token and the natural logarithm of its probability at temperature 1.
struct TokenLogprob {
  int token = 0;
  double logprob = 0.0;
};

/// The continuation of one prompt.
struct DrawnText {
  std::string text;                                 ///< without the prompt and without the stop text
  std::vector<int> prompt_tokens, tokens;           ///< `tokens` are the drawn ones
  std::vector<std::vector<TokenLogprob>> logprobs;  ///< for each of `tokens`, the likeliest first
};

/// Continues each prompt. The text of a special token in a prompt becomes its id. An empty prompt stands for the end of
/// a document, after which a new one begins, or for a line break where the tokenizer has no such token. Only tokens
/// that the tokenizer knows are drawn. Throws base::Error (bad_input) for a prompt that the model has no tokens for.
/// Collective.
std::vector<DrawnText> continue_texts(engine::AnyTrainer& trainer, text::Tokenizer const& tokenizer,
                                      std::vector<std::string> const& prompts, TextOptions options);

}  // namespace p3d::run
