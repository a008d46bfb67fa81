// SPDX-License-Identifier: Apache-2.0
// Text from the model: the tail of what there is so far is run forward, and the next token is drawn from the last
// logits.

#include "trainer_state.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace p3d::engine {

namespace {

/// Probabilities softmax(logits / temperature) of the tokens that top_k and top_p leave, not normalised; 0 for the
/// others.
std::vector<double> weights(std::vector<double> const& logits, SampleOptions const& o) {
  double const top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p(logits.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] = std::exp((logits[i] - top) / o.temperature);
  if (o.top_k <= 0 && o.top_p >= 1.0) return p;
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return p[a] > p[b]; });
  double reached = 0.0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    bool const within_k = o.top_k <= 0 || rank < static_cast<std::size_t>(o.top_k);
    bool const within_p = rank == 0 || reached < o.top_p * sum;  // the one that crosses the border still counts
    reached += p[order[rank]];
    if (!within_k || !within_p) p[order[rank]] = 0.0;
  }
  return p;
}

/// Draws a token with these weights, u uniform in (0, 1].
int draw(std::vector<double> const& logits, SampleOptions const& o, double u) {
  auto const likeliest = static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (o.temperature <= 0.0) return likeliest;
  auto const p = weights(logits, o);
  double sum = 0.0;
  for (double x : p) sum += x;
  double reach = u * sum;
  for (std::size_t i = 0; i < p.size(); ++i) {
    reach -= p[i];
    if (p[i] > 0.0 && reach <= 0.0) return static_cast<int>(i);
  }
  return likeliest;
}

}  // namespace

void require_byte_tokens(std::int64_t vocab_size, std::string const& prompt) {
  if (vocab_size > 256) {
    throw base::Error(
        {.expected = "a model of at most 256 tokens: text is written one byte a token",
         .found = fmt::format("model.vocab_size = {}", vocab_size),
         .where = "the model",
         .fix = "p3d has no other tokenizer yet: its tokens can be trained on, and not be written as text"},
        base::ExitCode::bad_input);
  }
  for (char const byte : prompt) {
    auto const token = static_cast<unsigned char>(byte);
    if (token < vocab_size) continue;
    throw base::Error({.expected = fmt::format("a prompt of tokens below model.vocab_size = {}", vocab_size),
                       .found = fmt::format("byte {}", token),
                       .where = "the prompt",
                       .fix = "leave out what the model has no token for"},
                      base::ExitCode::bad_input);
  }
}

template <class P>
std::string Trainer<P>::sample(std::string const& prompt, std::int64_t tokens, double temperature) {
  SampleOptions o;
  o.prompt = prompt;
  o.tokens = tokens;
  o.temperature = temperature;
  o.seed = state_->config.run.seed;
  return sample(o);
}

template <class P>
std::string Trainer<P>::sample(SampleOptions const& options) {
  auto const& prompt = options.prompt;
  auto& s = *state_;
  s.refresh_weights();
  std::vector<int> text;
  for (char c : prompt) text.push_back(static_cast<unsigned char>(c));
  require_byte_tokens(s.config.model.vocab_size, prompt);
  if (text.empty()) text.push_back(static_cast<int>(std::min<std::int64_t>('\n', s.config.model.vocab_size - 1)));
  auto const key = base::random_key(options.seed, "sample");
  auto const seq = s.config.model.seq_len;
  auto const vocab = static_cast<std::size_t>(s.config.model.vocab_size);
  int const last_stage = s.plan.stages.num_stages() - 1;
  // The rank that draws: the first of those that hold the last stage. The others take its word.
  int const source = s.plan.grid.rank(layout::PerAxis::only(layout::Axis::pp, s.plan.stages.pipeline_rank(last_stage)));

  s.stopped_early = false;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    auto const length = std::min<std::int64_t>(seq, static_cast<std::int64_t>(text.size()));
    // Positions after the text are filled with zeros: attention is causal, so they change nothing before them.
    std::fill(s.inputs.begin(), s.inputs.end(), 0);
    std::copy(text.end() - length, text.end(), s.inputs.begin());
    std::fill(s.targets.begin(), s.targets.end(), -1);
    Hooks hooks;
    int slot_used = 0;
    hooks.load = [&](int stage, int slot, int) {
      slot_used = slot;
      s.units.at(stage)->stage.load(slot, {0, s.config.batch.micro, seq}, s.inputs, s.targets);
    };
    s.executor->run(s.plan.probe, s.steps_done, 0.0, hooks);

    std::int32_t next = 0;
    if (auto const unit = s.units.find(last_stage); unit != s.units.end()) {
      // One row of logits, put together over tp: vocab numbers.
      std::vector<double> row(vocab, 0.0);
      auto const local = unit->second->stage.logits(slot_used, length - 1);
      std::copy(local.begin(), local.end(), row.begin() + unit->second->stage.vocab().begin);
      s.tp.comm->all_reduce(row.data(), static_cast<std::int64_t>(vocab), comm::Type::float64, comm::Reduction::sum)
          .wait();
      auto const words = base::random_block(key, 0, static_cast<std::uint64_t>(i));
      next = draw(row, options, base::uniform_from(words.w[0], words.w[1]));
    }
    // The token of the rank that drew, and whether any rank was asked to stop.
    std::array<std::int32_t, 2> word{s.mesh.world().rank() == source ? next : 0,
                                     s.stop_asked && s.stop_asked() ? 1 : 0};
    s.mesh.world().all_reduce(word.data(), 2, comm::Type::int32, comm::Reduction::max).wait();
    text.push_back(word[0]);
    s.stopped_early = word[1] != 0;
    if (s.stopped_early) break;
  }
  std::string out;
  for (auto it = text.begin() + static_cast<std::ptrdiff_t>(prompt.empty() ? 1 : prompt.size()); it != text.end();
       ++it) {
    out.push_back(static_cast<char>(*it));
  }
  return out;
}

#define P3D_INSTANTIATE(P)                                       \
  template std::string Trainer<P>::sample(SampleOptions const&); \
  template std::string Trainer<P>::sample(std::string const&, std::int64_t, double);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
