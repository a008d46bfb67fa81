// SPDX-License-Identifier: Apache-2.0
// Which tokens a microbatch has, on this rank.

#include "trainer_state.hpp"

#include <algorithm>

namespace p3d::engine {

template <class P>
std::int64_t Trainer<P>::State::length_of(std::int64_t sample, bool training, std::int64_t eval_batch) {
  std::int64_t longest = 1;
  if (training) {
    auto const& batch = batch_of(sample / config.batch.global);
    auto const first = batch.lengths.begin() + sample % config.batch.global;
    longest = *std::max_element(first, first + config.batch.micro);
  } else {
    for (auto b = sample; b < sample + config.batch.micro; ++b)
      longest = std::max(longest, sampler.eval_length(eval_batch, b));
  }
  return padded_length(config, longest);
}

template <class P>
DealtBatch const& Trainer<P>::State::batch_of(std::int64_t step) {
  if (dealt.step != step) dealt = deal_batch(config, sampler, step);
  return dealt;
}

template <class P>
std::int64_t Trainer<P>::State::tokens_of(std::int64_t step) {
  return sampler.varies() ? batch_of(step).balance.tokens : tokens_per_step();
}

template <class P>
void Trainer<P>::State::draw_microbatch(std::int64_t sample, bool training, std::int64_t eval_batch,
                                        std::int64_t index) {
  auto const seq = static_cast<std::size_t>(config.model.seq_len);
  for (std::int64_t b = 0; b < config.batch.micro; ++b) {
    auto const at = static_cast<std::size_t>(b) * seq;
    std::span<int> const in(inputs.data() + at, seq), out(targets.data() + at, seq);
    if (training) {
      sampler.train(sample + b, in, out, documents_at(at));
    } else {
      sampler.eval(eval_batch, index + b, in, out, documents_at(at));
    }
  }
}

template <class P>
void Trainer<P>::State::load(int stage, int slot, std::int64_t sample, bool training, std::int64_t eval_batch,
                             std::int64_t index) {
  draw_microbatch(sample, training, eval_batch, index);
  load_microbatch(stage, slot, sample);
}

template <class P>
std::vector<int> Trainer<P>::State::own_tokens(std::span<int const> whole, base::TokenSet const& tokens) const {
  auto const seq = static_cast<std::size_t>(config.model.seq_len);
  std::vector<int> own;
  for (std::size_t at = 0; at < whole.size(); at += seq)
    for (std::int64_t i = 0; i < tokens.size(); ++i) own.push_back(whole[at + static_cast<std::size_t>(tokens.at(i))]);
  return own;
}

template <class P>
std::int64_t Trainer<P>::State::training_sample(std::int64_t step, int microbatch) {
  auto const sample = first_sample(config, step, here.dp, microbatch);
  if (!(config.data.pack || config.batch.variable) || config.parallel.dp == 1) return sample;
  auto const begin = step * config.batch.global;
  auto const place = static_cast<std::size_t>((sample - begin) / config.batch.micro);
  return begin + batch_of(step).order[place] * config.batch.micro;
}

template <class P>
void Trainer<P>::State::load_microbatch(int stage, int slot, std::int64_t sample) {
  auto const seq = static_cast<std::size_t>(config.model.seq_len);
  bool const divided = config.parallel.cp > 1;
  positions.resize(divided || sampler.resets_positions() ? inputs.size() : 0);
  for (std::size_t at = 0; at < positions.size(); at += seq) {
    sampler.positions(std::span(inputs).subspan(at, seq), documents_at(at), std::span(positions).subspan(at, seq));
  }
  auto& to = units.at(stage)->stage;
  auto const length = to.length(slot);
  kernels::TokenRows rows{sample, config.batch.micro, length};
  if (!divided && length == config.model.seq_len) return to.load(slot, rows, {inputs, targets, positions, documents});
  auto tokens = base::TokenSet::range(0, length);
  if (divided) {
    tokens = rows.tokens = context.division().of_length(length).tokens(here.cp);
    rows.seq_len = tokens.size();
    rows.sample_tokens = length;
  }
  // Every number of a token goes with it.
  auto const in = own_tokens(inputs, tokens), out = own_tokens(targets, tokens), at = own_tokens(positions, tokens);
  to.load(slot, rows, {in, out, at, documents});
}

#define P3D_INSTANTIATE(P)                                                                                    \
  template std::int64_t Trainer<P>::State::length_of(std::int64_t, bool, std::int64_t);                       \
  template DealtBatch const& Trainer<P>::State::batch_of(std::int64_t);                                       \
  template std::int64_t Trainer<P>::State::tokens_of(std::int64_t);                                           \
  template void Trainer<P>::State::draw_microbatch(std::int64_t, bool, std::int64_t, std::int64_t);           \
  template std::vector<int> Trainer<P>::State::own_tokens(std::span<int const>, base::TokenSet const&) const; \
  template std::int64_t Trainer<P>::State::training_sample(std::int64_t, int);                                \
  template void Trainer<P>::State::load(int, int, std::int64_t, bool, std::int64_t, std::int64_t);            \
  template void Trainer<P>::State::load_microbatch(int, int, std::int64_t);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
