// SPDX-License-Identifier: Apache-2.0
#include "config/files.hpp"
#include "config/rules.hpp"

#include <fmt/format.h>

namespace p3d::config {

namespace {

/// The tokenizer's file must be there, and tokenizer_pattern where it is needed. The content of the file is no business
/// of this room: text::require_vocabulary compares it with the model.
void check_tokenizer_file(Check const& c) {
  if (!c.known({"data.tokenizer", "data.tokenizer_pattern"})) return;
  auto const& d = c.config.data;
  bool const ranks = d.tokenizer.ends_with(".tiktoken");
  if (ranks && d.tokenizer_pattern.empty())
    c.error({"data.tokenizer_pattern", "data.tokenizer"}, "how the .tiktoken file splits text, which it does not say",
            "nothing", "set data.tokenizer_pattern, for example to \"gpt2\"");
  if (!ranks && !d.tokenizer_pattern.empty())
    c.error({"data.tokenizer_pattern", "data.tokenizer"}, "data.tokenizer_pattern only with a .tiktoken file",
            fmt::format("tokenizer {}", d.tokenizer), "remove data.tokenizer_pattern");
  if (d.tokenizer == "bytes") return;
  if (auto const wrong = no_file(d.tokenizer))
    c.error({"data.tokenizer"}, "\"bytes\", or the file of a tokenizer",
            fmt::format("{}: {}", d.tokenizer, wrong->found), wrong->fix);
}

/// Bytes need a vocabulary of 256.
void check_vocabulary(Check const& c) {
  if (!c.known({"data.format", "data.tokenizer", "model.vocab_size"})) return;
  if (c.config.data.format != DataFormat::text || c.config.data.tokenizer != "bytes" ||
      c.config.model.vocab_size >= 256)
    return;
  c.error({"model.vocab_size", "data.tokenizer"},
          "model.vocab_size at least 256: the tokenizer makes a token of each byte",
          fmt::format("vocab_size {}", c.config.model.vocab_size), "set model.vocab_size to 256");
}

/// A sample without a tokenizer needs tokens that are bytes: text goes in and comes out as one token per byte.
void check_sample(Check const& c) {
  if (!c.known({"sample.tokens", "sample.prompt", "model.vocab_size", "data.tokenizer"})) return;
  if (c.config.sample.tokens == 0 || c.config.data.tokenizer != "bytes") return;
  auto const vocabulary = c.config.model.vocab_size;
  if (vocabulary > 256) {
    c.error({"sample.tokens", "model.vocab_size"},
            "no sample.tokens where model.vocab_size is above 256 and data.tokenizer is \"bytes\": a token is printed "
            "as one "
            "byte",
            fmt::format("tokens {}, vocab_size {}", c.config.sample.tokens, vocabulary),
            "name the tokenizer (data.tokenizer), set sample.tokens to 0, or model.vocab_size to 256");
    return;
  }
  for (char const byte : c.config.sample.prompt) {
    auto const token = static_cast<unsigned char>(byte);
    if (token < vocabulary) continue;
    c.error({"sample.prompt", "model.vocab_size"},
            fmt::format("a prompt of tokens below model.vocab_size = {}", vocabulary), fmt::format("byte {}", token),
            "change the prompt, or set model.vocab_size to 256");
    return;
  }
}

void check_learning_rate(Check const& c) {
  auto const& o = c.config.optimizer;
  if (c.known({"optimizer.min_lr", "optimizer.lr"}) && o.min_lr > o.lr) {
    c.error({"optimizer.min_lr", "optimizer.lr"}, "optimizer.min_lr at most optimizer.lr",
            fmt::format("min_lr {}, lr {}", o.min_lr, o.lr), "lower min_lr, or remove it: it is lr / 10 by default");
  }
}

}  // namespace

void check_data(Check const& check) {
  check_data_files(check);
  check_tokenizer_file(check);
  check_vocabulary(check);
  check_sample(check);
  check_learning_rate(check);
}

}  // namespace p3d::config
