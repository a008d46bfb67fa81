// SPDX-License-Identifier: Apache-2.0
// The loss of a stretch of tokens.

#include "trainer_state.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace p3d::engine {

template <class P>
typename Trainer<P>::Score Trainer<P>::score(layout::Range tokens) {
  auto& s = *state_;
  s.refresh_weights();
  auto const seq = s.config.model.seq_len;
  Score out;
  out.windows = std::max<std::int64_t>(0, tokens.size() - 1) / seq;
  if (out.windows == 0) {
    throw base::Error({.expected = fmt::format("at least {} tokens to evaluate (model.seq_len + 1)", seq + 1),
                       .found = fmt::format("{}", tokens.size()),
                       .where = s.source->describe(),
                       .fix = "give a longer text"},
                      base::ExitCode::bad_input);
  }
  double sum = 0.0;
  auto const length = static_cast<std::size_t>(seq);
  for (std::int64_t batch = 0; batch * s.config.batch.global < out.windows; ++batch) {
    Hooks hooks;
    hooks.load = [&](int stage, int slot, int microbatch) {
      auto const first = first_sample(s.config, batch, s.here.dp, microbatch);
      for (std::int64_t b = 0; b < s.config.batch.micro; ++b) {
        auto const at = static_cast<std::size_t>(b) * length;
        std::span<int> const in(s.inputs.data() + at, length), target(s.targets.data() + at, length);
        if (first + b < out.windows) {
          auto const begin = tokens.begin + (first + b) * seq;
          s.source->read(begin, in);
          std::copy(in.begin() + 1, in.end(), target.begin());
          s.source->read(begin + seq, target.last(1));
        } else {  // the last batch is filled up with windows that count nothing
          std::fill(in.begin(), in.end(), 0);
          std::fill(target.begin(), target.end(), -1);
        }
      }
      s.units.at(stage)->stage.load(slot, {first, s.config.batch.micro, seq}, s.inputs, s.targets);
    };
    sum += s.executor->run(s.plan.evaluation, s.steps_done, 0.0, hooks);
  }
  if (!s.counts_loss()) sum = 0.0;
  out.loss = collectives::all_reduce(s.mesh.world(), sum) / static_cast<double>(out.windows * seq);
  return out;
}

#define P3D_INSTANTIATE(P) template typename Trainer<P>::Score Trainer<P>::score(layout::Range);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
