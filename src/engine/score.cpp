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
  // No target of such a sample is masked, and every rank knows the whole batch.
  if (training && sampler.varies() && config.data.eod_token < 0) return tokens_of(batch);
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
Score Trainer<P>::State::score(ScoredWindows const& windows, ScoreOptions const& options) {
  prepare_to_read();
  Score out;
  out.windows = options.most > 0 ? std::min(options.most, windows.count) : windows.count;
  double sum = 0.0;
  std::int64_t counted = 0;
  auto const length = static_cast<std::size_t>(config.model.seq_len), used = static_cast<std::size_t>(windows.length);
  auto const read = [&](std::int64_t first, auto const& with) {
    for (std::int64_t b = 0; b < config.batch.micro; ++b) {
      auto const at = static_cast<std::size_t>(b) * length;
      std::span<int> const in(inputs.data() + at, length), target(targets.data() + at, length);
      auto const own = documents_at(at);
      // The last batch is filled up with windows, and a window with tokens, that count nothing.
      auto const real = first + b < out.windows ? used : 0;
      std::fill(in.begin() + static_cast<std::ptrdiff_t>(real), in.end(), 0);
      std::fill(target.begin() + static_cast<std::ptrdiff_t>(real), target.end(), -1);
      if (!own.empty()) std::ranges::fill(own.subspan(real), static_cast<int>(real));
      if (real > 0) windows.read(first + b, in.first(real), target.first(real), own.empty() ? own : own.first(real));
      with(target);
    }
  };
  for (std::int64_t batch = 0; batch * config.batch.global < out.windows; ++batch) {
    auto const first_of = [&](int microbatch) { return first_sample(config, batch, here.dp, microbatch); };
    for (int m = 0; sampler.masks() && m < config.batch.microbatches; ++m) {
      read(first_of(m),
           [&](auto target) { counted += std::count_if(target.begin(), target.end(), [](int t) { return t >= 0; }); });
    }
    Hooks hooks;
    if (sampler.varies())
      hooks.length = [&](int microbatch) {
        std::int64_t longest = 1;
        auto const first = first_of(microbatch);
        for (auto b = first; b < std::min(first + config.batch.micro, out.windows); ++b)
          longest = std::max(longest, windows.length_of(b));
        return padded_length(config, longest);
      };
    hooks.load = [&](int stage, int slot, int microbatch) {
      read(first_of(microbatch), [](auto) {});
      load_microbatch(stage, slot, first_of(microbatch));
    };
    hooks.load_part = [&](schedule::Op op, int slot, int microbatch) {
      read(first_of(microbatch), [](auto) {});
      load_drawn_part(op, slot);
    };
    executor->run(plan.evaluation, steps_done, 0.0, hooks);
    sum += take_loss();
    if (options.progress) options.progress(std::min((batch + 1) * config.batch.global, out.windows), out.windows);
  }
  if (sampler.masks()) {
    mesh.along("dp").all_reduce(&counted, 1, comm::Type::int64, comm::Reduction::sum).wait();
  } else {
    counted = out.windows * windows.length;
  }
  if (!counts_loss()) sum = 0.0;
  out.loss = collectives::all_reduce(mesh.world(), sum) / mean_over(counted);
  return out;
}

namespace {
[[noreturn]] void refuse_short(std::int64_t window, std::int64_t found, data::TokenSource const& source) {
  throw base::Error(
      {.expected = fmt::format("at least {} tokens to evaluate: a window of {}, and a target", window + 1, window),
       .found = fmt::format("{}", found),
       .where = source.describe(),
       .fix = "give a longer text, or shorter windows"},
      base::ExitCode::bad_input);
}
}  // namespace

template <class P>
Score Trainer<P>::score(std::vector<layout::Range> const& parts, data::TokenSource const* given,
                        ScoreOptions const& options) {
  auto& s = *state_;
  auto const& source = given != nullptr ? *given : *s.source;
  P3D_REQUIRE(!s.sampler.varies(), "the windows of a text have one length");
  auto const window = options.window > 0 ? options.window : s.config.model.seq_len;
  P3D_REQUIRE(window <= s.config.model.seq_len, "a window is a sequence of the model at most");
  std::vector<std::int64_t> first_windows{0};  // of each part, and the end
  std::int64_t tokens = 0;
  for (auto const& part : parts) {
    tokens += part.size();
    first_windows.push_back(first_windows.back() + std::max<std::int64_t>(0, part.size() - 1) / window);
  }
  if (first_windows.back() == 0) refuse_short(window, tokens, source);
  typename State::ScoredWindows windows;
  windows.count = first_windows.back();
  windows.length = window;
  windows.read = [&](std::int64_t number, std::span<int> in, std::span<int> target, std::span<int> documents) {
    auto const next = std::upper_bound(first_windows.begin(), first_windows.end(), number);
    auto const& part = parts[static_cast<std::size_t>(next - first_windows.begin() - 1)];
    s.sampler.window(source, part.begin + (number - *(next - 1)) * window, in, target, documents);
  };
  return s.score(windows, options);
}

template <class P>
Score Trainer<P>::score_validation(ScoreOptions const& options) {
  auto& s = *state_;
  typename State::ScoredWindows windows;
  windows.count = s.sampler.num_eval_windows();
  windows.length = s.config.model.seq_len;
  P3D_REQUIRE(options.window == 0 || options.window == windows.length, "the samples are those of training");
  if (windows.count == 0) {
    std::int64_t tokens = 0;
    for (auto const& part : s.sampler.held_out()) tokens += part.size();
    refuse_short(windows.length, tokens, *s.source);
  }
  windows.read = [&](std::int64_t number, std::span<int> in, std::span<int> target, std::span<int> documents) {
    s.sampler.held_out(number, in, target, documents);
  };
  windows.length_of = [&](std::int64_t number) { return s.sampler.held_out_length(number); };
  return s.score(windows, options);
}

#define P3D_INSTANTIATE(P)                                                                                            \
  template std::int64_t Trainer<P>::State::count_targets(bool, std::int64_t);                                         \
  template Score Trainer<P>::State::score(ScoredWindows const&, ScoreOptions const&);                                 \
  template Score Trainer<P>::score(std::vector<layout::Range> const&, data::TokenSource const*, ScoreOptions const&); \
  template Score Trainer<P>::score_validation(ScoreOptions const&);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
