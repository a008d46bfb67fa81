// SPDX-License-Identifier: Apache-2.0
#include "config/limits.hpp"
#include "config/rules.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::config {

namespace {

// Products of keys are taken in floating point: they may exceed 64 bits, and all that counts is whether they come near.
double real(std::int64_t n) { return static_cast<double>(n); }

/// Parameters, gradients and moments must fit into a memory that could exist.
void check_parameters(Check const& c) {
  auto const& m = c.config.model;
  if (!c.known({"model.hidden", "model.layers", "model.ffn", "model.vocab_size", "model.seq_len"})) return;
  bool const heads = c.known({"model.heads", "model.head_dim"});
  double const attention = heads ? real(m.heads) * real(m.head_dim()) : real(m.hidden);
  double matrices = 4.0 * real(m.hidden) * attention + 3.0 * real(m.hidden) * real(m.ffn);
  bool const experts = m.moe.on() && c.known({"model.moe.experts", "model.moe.ffn", "model.moe.shared_ffn"});
  if (experts) matrices += 3.0 * real(m.hidden) * (real(m.moe.experts) * real(m.moe.ffn) + real(m.moe.shared_ffn));
  double const numbers = real(m.layers) * matrices + (2.0 * real(m.vocab_size) + real(m.seq_len)) * real(m.hidden);
  double const bytes = 4.0 * 8.0 * numbers;  // 8 bytes for each value, gradient and two moments
  if (bytes <= real(limits::bytes)) return;
  std::vector<std::string_view> keys{"model.hidden", "model.layers", "model.ffn", "model.vocab_size"};
  if (experts) keys.insert(keys.end(), {"model.moe.experts", "model.moe.ffn"});
  c.error(keys, fmt::format("a model of at most {} with gradients and moments", base::human_bytes(real(limits::bytes))),
          fmt::format("up to {} parameters, {}", base::human_count(numbers), base::human_bytes(bytes)),
          fmt::format("lower model.hidden, model.layers, model.ffn{} or model.vocab_size",
                      experts ? ", model.moe.experts, model.moe.ffn" : ""));
}

/// The largest tensor of a microbatch must fit into a memory that could exist.
void check_microbatch(Check const& c) {
  auto const& m = c.config.model;
  if (!c.known({"batch.micro", "model.seq_len", "model.hidden", "model.ffn", "model.vocab_size"})) return;
  double const tokens = real(c.config.batch.micro) * real(m.seq_len);
  bool const experts = m.moe.on() && c.known({"model.moe.experts", "model.moe.top_k", "model.moe.ffn"});
  double const routed = experts ? real(m.moe.top_k) * real(m.moe.ffn) : 0.0;
  double const attention = c.known({"model.heads", "model.head_dim"}) ? real(m.heads) * real(m.head_dim()) : 0.0;
  double const width = std::max({real(std::max({m.hidden, m.ffn, m.vocab_size})), routed, attention});
  double const scores = c.known({"model.heads"}) ? real(m.heads) * real(m.seq_len) : 0.0;
  double const bytes = 8.0 * tokens * std::max(width, scores);
  if (bytes <= real(limits::bytes)) return;
  c.error({"batch.micro", "model.seq_len", "model.hidden", "model.ffn", "model.vocab_size"},
          fmt::format("at most {} for one number for each token of a microbatch and each of hidden, ffn, vocab_size or "
                      "heads x seq_len",
                      base::human_bytes(real(limits::bytes))),
          fmt::format("{} tokens, {}", base::human_count(tokens), base::human_bytes(bytes)),
          "lower batch.micro or model.seq_len");
}

/// The tokens of a run must be countable.
void check_tokens(Check const& c) {
  if (!c.known({"run.steps", "batch.global", "model.seq_len"})) return;
  double const tokens = real(c.config.run.steps) * real(c.config.batch.global) * real(c.config.model.seq_len);
  if (tokens <= real(limits::tokens)) return;
  c.error({"run.steps", "batch.global", "model.seq_len"},
          fmt::format("at most {} tokens in a run (steps x global x seq_len)", base::human_count(real(limits::tokens))),
          base::human_count(tokens), "lower run.steps, batch.global or model.seq_len");
}

}  // namespace

void check_size(Check const& check) {
  check_parameters(check);
  check_microbatch(check);
  check_tokens(check);
}

}  // namespace p3d::config
