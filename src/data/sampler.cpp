// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/sampler.hpp>

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace p3d::data {

std::uint64_t permute(base::RandomKey key, std::uint64_t epoch, std::uint64_t x, std::uint64_t count) {
  P3D_REQUIRE(x < count && count <= (std::uint64_t{1} << 62), "the permuted number is in range");
  unsigned bits = 2;
  while ((std::uint64_t{1} << bits) < count) bits += 2;
  unsigned const half = bits / 2;
  std::uint64_t const mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = x >> half, right = x & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      auto const mixed = left ^ (base::random_block(key, epoch, (round << 32) | right).w[0] & mask);
      left = right;
      right = mixed;
    }
    x = (left << half) | right;
  } while (x >= count);
  return x;
}

namespace {

std::int64_t windows(layout::Range part, std::int64_t seq_len) {
  return std::max<std::int64_t>(part.size() - 1, 0) / seq_len;
}

[[noreturn]] void too_short(char const* part, std::int64_t there, std::int64_t all, config::Config const& config,
                            std::string const& fix) {
  throw base::Error(
      {.expected = fmt::format("at least {} {} tokens (model.seq_len + 1)", config.model.seq_len + 1, part),
       .found = fmt::format("{} of the {} tokens (data.split = {:g})", there, all, config.data.split),
       .where = "data.path",
       .fix = fix},
      base::ExitCode::bad_input);
}

}  // namespace

Sampler::Sampler(TokenSource const& source, config::Config const& config)
    : source_(&source),
      split_(split_tokens(source.size(), config.data.split)),
      seq_len_(config.model.seq_len),
      global_batch_(config.batch.global),
      order_key_(base::random_key(config.run.seed, "data.order")),
      offset_key_(base::random_key(config.run.seed, "data.offset")) {
  P3D_REQUIRE(seq_len_ >= 1 && global_batch_ >= 1, "the batch is not empty");
  train_windows_ = windows(split_.training, seq_len_);
  eval_windows_ = windows(split_.held_out, seq_len_);
  if (train_windows_ == 0) {
    too_short("training", split_.training.size(), source.size(), config,
              "add text, or lower model.seq_len or data.split");
  }
  if (eval_windows_ == 0 && config.data.split > 0.0 && config.run.eval_batches > 0) {
    too_short("held-out", split_.held_out.size(), source.size(), config,
              "add text, lower model.seq_len, raise data.split, or set run.eval_batches = 0");
  }
  slack_ = split_.training.size() - 1 - train_windows_ * seq_len_;
}

void Sampler::window(std::int64_t first, std::span<int> inputs, std::span<int> targets) const {
  auto const length = static_cast<std::size_t>(seq_len_);
  P3D_REQUIRE(inputs.size() == length && targets.size() == length, "inputs and targets have seq_len tokens");
  source_->read(first, inputs);
  std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
  source_->read(first + seq_len_, targets.last(1));
}

void Sampler::train(std::int64_t sample, std::span<int> inputs, std::span<int> targets) const {
  P3D_REQUIRE(sample >= 0, "the sample number is not negative");
  auto const e = static_cast<std::uint64_t>(epoch(sample));
  auto const count = static_cast<std::uint64_t>(train_windows_);
  auto const chosen = permute(order_key_, e, static_cast<std::uint64_t>(sample) % count, count);
  auto const offset = base::random_below(offset_key_, 0, e, static_cast<std::uint64_t>(slack_) + 1);
  window(split_.training.begin + static_cast<std::int64_t>(offset) + static_cast<std::int64_t>(chosen) * seq_len_,
         inputs, targets);
}

void Sampler::eval(std::int64_t batch, std::int64_t index, std::span<int> inputs, std::span<int> targets) const {
  P3D_REQUIRE(eval_windows_ > 0, "something is held out");
  P3D_REQUIRE(batch >= 0 && index >= 0 && index < global_batch_, "the place in the evaluation batch exists");
  auto const chosen = global_sample(batch, index, global_batch_) % eval_windows_;
  window(split_.held_out.begin + chosen * seq_len_, inputs, targets);
}

}  // namespace p3d::data
