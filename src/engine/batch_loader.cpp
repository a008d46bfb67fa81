// SPDX-License-Identifier: Apache-2.0
// Reads whole samples into buffers of its own, and hands out spans of them: all, or the rank's tokens of each sample
// where cp divides these. Example: with cp = 2 and samples of 4 tokens in stripes, the first rank gets tokens 0 and 2
// of each sample, and of a block of multi-token prediction the targets of these two, which lie on both ranks.
#include "batch_loader.hpp"

#include <p3d/base/error.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/engine/run_plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace p3d::engine {

BatchLoader::BatchLoader(config::Config const& config, layout::StageMap const& stages, layout::PerAxis here,
                         std::unique_ptr<data::TokenSource> source, data::Sampler sampler)
    : config_(&config),
      stages_(&stages),
      here_(here),
      source_(std::move(source)),
      sampler_(std::move(sampler)),
      division_(layout::context_division(config)) {
  auto const tokens = static_cast<std::size_t>(config.batch.micro) * seq_len();
  inputs_.resize(tokens);
  targets_.resize(tokens);
  documents_.resize(config.data.pack ? tokens : 0);
  positions_.resize(config.parallel.cp > 1 || sampler_.resets_positions() ? tokens : 0);
  auto const& own = stages.stages_of(here.pp);
  bool const for_stage = std::ranges::any_of(own, [this](int stage) {
    auto const wanted = of_stage(stage);
    return wanted.inputs || wanted.targets;
  });
  reads_files_ = config.data.format != config::DataFormat::synthetic &&
                 (for_stage || sampler_.masks() || sampler_.resets_positions());
}

DealtBatch const& BatchLoader::batch_of(std::int64_t step) {
  if (dealt_.step != step) dealt_ = deal_batch(*config_, sampler_, step);
  return dealt_;
}

std::int64_t BatchLoader::tokens_of(std::int64_t step) {
  return sampler_.varies() ? batch_of(step).balance.tokens : config_->batch.global * config_->model.seq_len;
}

SampleSource BatchLoader::training(std::int64_t step) {
  bool const dealt = (config_->data.pack || config_->batch.variable) && config_->parallel.dp > 1;
  return {[this, step, dealt](int microbatch) {
            auto const sample = first_sample(*config_, step, here_.dp, microbatch);
            if (!dealt) return sample;
            auto const begin = step * config_->batch.global, micro = config_->batch.micro;
            return begin + batch_of(step).order[static_cast<std::size_t>((sample - begin) / micro)] * micro;
          },
          [this](std::int64_t number, std::span<int> inputs, std::span<int> targets, std::span<int> documents) {
            sampler_.train(number, inputs, targets, documents);
          },
          [this](std::int64_t number) { return sampler_.length(number); }, config_->model.mtp.on()};
}

SampleSource BatchLoader::evaluation(std::int64_t batch) const {
  return {[this](int microbatch) { return first_sample(*config_, 0, here_.dp, microbatch); },
          [this, batch](std::int64_t number, std::span<int> inputs, std::span<int> targets, std::span<int> documents) {
            sampler_.eval(batch, number, inputs, targets, documents);
          },
          [this, batch](std::int64_t number) { return sampler_.eval_length(batch, number); }};
}

template <class First, class Body>
void BatchLoader::for_samples(First const& first, Body const& body) const {
  for (int m = 0; m < config_->batch.microbatches; ++m) {
    auto const begin = first(m);
    for (auto number = begin; number < begin + config_->batch.micro; ++number) body(number);
  }
}

std::vector<std::int64_t> BatchLoader::count_targets(SampleSource const& samples) const {
  std::vector<int> in(seq_len()), target(seq_len()), ahead;
  std::vector<std::int64_t> counted(samples.predicts ? 1 + static_cast<std::size_t>(config_->model.mtp.depth) : 1);
  for_samples(samples.first, [&](std::int64_t number) {
    samples.read(number, in, target, {});
    ahead = target;
    for (std::size_t k = 0; k < counted.size(); ++k) {
      if (k > 0) data::move_targets(target, static_cast<std::int64_t>(k), ahead);
      counted[k] += std::ranges::count_if(ahead, [](int t) { return t >= 0; });
    }
  });
  return counted;
}

// Samples are taken as they are numbered, not as they are dealt out: whichever replica finds a bad one, all stop.
void BatchLoader::check_training(std::int64_t step) const {
  if (!reads_files_) return;
  std::vector<int> in(seq_len()), target(seq_len());
  for_samples([&](int m) { return first_sample(*config_, step, here_.dp, m); },
              [&](std::int64_t number) { sampler_.train(number, in, target, {}); });
}

void BatchLoader::check_evaluation(std::int64_t batches) const {
  if (!reads_files_) return;
  auto const windows = sampler_.num_eval_windows();
  std::vector<int> in(seq_len()), target(seq_len());
  if (batches <= windows / config_->batch.global) {
    for (std::int64_t batch = 0; batch < batches; ++batch) {
      auto const samples = evaluation(batch);
      for_samples(samples.first, [&](std::int64_t number) { samples.read(number, in, target, {}); });
    }
  } else {
    for (auto number = std::int64_t{here_.dp}; number < windows; number += config_->parallel.dp)
      sampler_.held_out(number, in, target);
  }
}

std::int64_t BatchLoader::length(SampleSource const& samples, int microbatch) const {
  if (!sampler_.varies()) return config_->model.seq_len;
  std::int64_t longest = 1;
  auto const first = samples.first(microbatch);
  for (auto number = first; number < first + config_->batch.micro; ++number)
    longest = std::max(longest, samples.length(number));
  return padded_length(*config_, longest);
}

WantedTokens BatchLoader::of_stage(int stage) const {
  return {.inputs = stages_->has_embedding(stage), .targets = stages_->has_head(stage), .places = true};
}

std::span<int const> BatchLoader::own_tokens(std::vector<int> const& whole, base::TokenSet const& tokens,
                                             std::vector<int>& own) const {
  own.clear();
  for (std::size_t begin = 0; begin < whole.size(); begin += seq_len())
    for (std::int64_t i = 0; i < tokens.size(); ++i)
      own.push_back(whole[begin + static_cast<std::size_t>(tokens.at(i))]);
  return own;
}

std::span<int const> BatchLoader::mtp_targets(base::TokenSet const* tokens) {
  mtp_targets_.clear();
  ahead_ = targets_;
  for (std::int64_t k = 1; k <= config_->model.mtp.depth; ++k) {
    for (std::size_t begin = 0; begin < targets_.size(); begin += seq_len())
      data::move_targets(std::span(targets_).subspan(begin, seq_len()), k, std::span(ahead_).subspan(begin, seq_len()));
    std::span<int const> const block = tokens ? own_tokens(ahead_, *tokens, own_ahead_) : ahead_;
    mtp_targets_.insert(mtp_targets_.end(), block.begin(), block.end());
  }
  return mtp_targets_;
}

LoadedTokens BatchLoader::load(SampleSource const& samples, int microbatch, WantedTokens wanted, std::int64_t length) {
  auto const first = samples.first(microbatch);
  bool const divided = config_->parallel.cp > 1, read_for_places = wanted.places && sampler_.resets_positions();
  for (std::int64_t b = 0; b < config_->batch.micro; ++b) {
    auto const begin = static_cast<std::size_t>(b) * seq_len();
    auto const in = std::span(inputs_).subspan(begin, seq_len()), out = std::span(targets_).subspan(begin, seq_len());
    if (wanted.inputs || wanted.targets || read_for_places) samples.read(first + b, in, out, documents_at(begin));
    if (wanted.places && !positions_.empty())
      sampler_.positions(in, documents_at(begin), std::span(positions_).subspan(begin, seq_len()));
  }
  LoadedTokens out{{first, config_->batch.micro, length}, {}, {}, {}, {}, {}};
  bool const predicts = wanted.targets && samples.predicts;
  if (wanted.places) out.documents = documents_;
  if (!divided && length == config_->model.seq_len) {
    if (wanted.inputs) out.inputs = inputs_;
    if (wanted.targets) out.targets = targets_;
    if (wanted.places) out.positions = positions_;
    if (predicts) out.mtp_targets = mtp_targets(nullptr);
    return out;
  }
  auto tokens = base::TokenSet::range(0, length);
  if (divided) {
    tokens = out.rows.tokens = division_.of_length(length).tokens(here_.cp);
    out.rows.seq_len = tokens.size();
    out.rows.sample_tokens = length;
  }
  if (wanted.inputs) out.inputs = own_tokens(inputs_, tokens, own_inputs_);
  if (wanted.targets) out.targets = own_tokens(targets_, tokens, own_targets_);
  if (wanted.places) out.positions = own_tokens(positions_, tokens, own_positions_);
  if (predicts) out.mtp_targets = mtp_targets(&tokens);
  return out;
}

void require_same_input(config::Config const& config, data::TokenSource const& source, comm::Communicator& world) {
  // Equal hashes have equal minimum and maximum; the complement turns the maximum into a second minimum.
  std::array<std::uint64_t, 4> h{config::hash(config), ~config::hash(config), source.hash(), ~source.hash()};
  world.all_reduce(h.data(), 4, comm::Type::uint64, comm::Reduction::min).wait();
  for (std::size_t i : {std::size_t{0}, std::size_t{2}}) {
    if (h[i] == ~h[i + 1]) continue;
    base::refuse({.expected = i == 0 ? "the same input on every rank" : "the same training data on every rank",
                  .found = fmt::format("different {} on some ranks (hash of this rank's: {:016x})",
                                       i == 0 ? "inputs" : "data", i == 0 ? config::hash(config) : source.hash()),
                  .where = i == 0 ? "" : fmt::format("data.path: {}", source.describe()),
                  .fix = "give every node the same files (a shared file system, or identical copies)"});
  }
}

}  // namespace p3d::engine
