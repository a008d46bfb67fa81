// SPDX-License-Identifier: Apache-2.0
// How many targets a loss is the mean of, and the loss of stretches of tokens.

#include "trainer_state.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::engine {

template <class P>
std::int64_t Trainer<P>::State::count_targets(bool training, std::int64_t batch) {
  if (!sampler.masks()) return tokens_per_step();
  std::vector<int> in(static_cast<std::size_t>(config.model.seq_len)), target(in.size());
  std::int64_t counted = 0;
  for (int m = 0; m < config.batch.microbatches; ++m) {
    auto const first = first_sample(config, training ? batch : 0, here.dp, m);
    for (std::int64_t b = first; b < first + config.batch.micro; ++b) {
      training ? sampler.train(b, in, target) : sampler.eval(batch, b, in, target);
      counted += std::count_if(target.begin(), target.end(), [](int t) { return t >= 0; });
    }
  }
  mesh.along("dp").all_reduce(&counted, 1, comm::Type::int64, comm::Reduction::sum).wait();
  return counted;
}

template <class P>
typename Trainer<P>::Score Trainer<P>::score(std::vector<layout::Range> const& parts, data::TokenSource const* given) {
  auto& s = *state_;
  auto const& source = given != nullptr ? *given : *s.source;
  s.prepare_to_read();
  auto const seq = s.config.model.seq_len;
  std::vector<std::int64_t> first_windows{0};  // of each part, and the end
  std::int64_t tokens = 0;
  for (auto const& part : parts) {
    tokens += part.size();
    first_windows.push_back(first_windows.back() + std::max<std::int64_t>(0, part.size() - 1) / seq);
  }
  Score out;
  out.windows = first_windows.back();
  if (out.windows == 0) {
    throw base::Error({.expected = fmt::format("at least {} tokens to evaluate (model.seq_len + 1)", seq + 1),
                       .found = fmt::format("{}", tokens),
                       .where = source.describe(),
                       .fix = "give a longer text"},
                      base::ExitCode::bad_input);
  }
  double sum = 0.0;
  std::int64_t counted = 0;
  auto const length = static_cast<std::size_t>(seq);
  auto const read = [&](std::int64_t first, auto const& with) {
    for (std::int64_t b = 0; b < s.config.batch.micro; ++b) {
      auto const at = static_cast<std::size_t>(b) * length;
      std::span<int> const in(s.inputs.data() + at, length), target(s.targets.data() + at, length);
      if (first + b < out.windows) {
        auto const next = std::upper_bound(first_windows.begin(), first_windows.end(), first + b);
        auto const& part = parts[static_cast<std::size_t>(next - first_windows.begin() - 1)];
        auto const begin = part.begin + (first + b - *(next - 1)) * seq;
        s.sampler.window(source, begin, in, target, s.documents_at(at));
      } else {  // the last batch is filled up with windows that count nothing
        std::fill(in.begin(), in.end(), 0);
        std::fill(target.begin(), target.end(), -1);
        std::ranges::fill(s.documents_at(at), 0);
      }
      with(target);
    }
  };
  for (std::int64_t batch = 0; batch * s.config.batch.global < out.windows; ++batch) {
    for (int m = 0; s.sampler.masks() && m < s.config.batch.microbatches; ++m) {
      read(first_sample(s.config, batch, s.here.dp, m),
           [&](auto target) { counted += std::count_if(target.begin(), target.end(), [](int t) { return t >= 0; }); });
    }
    Hooks hooks;
    hooks.load = [&](int stage, int slot, int microbatch) {
      auto const first = first_sample(s.config, batch, s.here.dp, microbatch);
      read(first, [](auto) {});
      s.load_microbatch(stage, slot, first);
    };
    hooks.load_part = [&](schedule::Op op, int slot, int microbatch) {
      read(first_sample(s.config, batch, s.here.dp, microbatch), [](auto) {});
      s.load_drawn_part(op, slot);
    };
    s.executor->run(s.plan.evaluation, s.steps_done, 0.0, hooks);
    sum += s.take_loss();
  }
  if (s.sampler.masks()) {
    s.mesh.along("dp").all_reduce(&counted, 1, comm::Type::int64, comm::Reduction::sum).wait();
  } else {
    counted = out.windows * seq;
  }
  if (!s.counts_loss()) sum = 0.0;
  out.loss = collectives::all_reduce(s.mesh.world(), sum) / s.mean_over(counted);
  return out;
}

#define P3D_INSTANTIATE(P)                                                    \
  template std::int64_t Trainer<P>::State::count_targets(bool, std::int64_t); \
  template typename Trainer<P>::Score Trainer<P>::score(std::vector<layout::Range> const&, data::TokenSource const*);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
