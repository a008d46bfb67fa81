// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/sampler.hpp>

#include "data/blend.hpp"
#include "data/sample_order.hpp"

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/config/weights.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace p3d::data {

/// One source.
struct Sampler::Part {
  TokenSource const* source;
  Split split;
  std::int64_t train_windows, eval_windows;
  std::unique_ptr<SampleOrder> order;
};

struct Sampler::Blended {
  std::unique_ptr<Blend> blend;
};

namespace {

/// Where an order writes the documents that the source knows: a place of its own if the caller wants none, since they
/// say which targets do not count.
struct OwnDocuments {
  OwnDocuments(bool pack, std::span<int> wanted, std::size_t length) {
    if (!pack) return;
    if (wanted.empty()) unwanted.resize(length);
    documents = wanted.empty() ? std::span<int>(unwanted) : wanted;
  }
  std::vector<int> unwanted;
  std::span<int> documents;
};

std::int64_t windows(layout::Range part, std::int64_t seq_len) {
  return std::max<std::int64_t>(part.size() - 1, 0) / seq_len;
}

[[noreturn]] void too_short(char const* part, std::int64_t there, TokenSource const& source,
                            config::Config const& config, std::string const& fix) {
  bool const blended = !config.data.source.empty();
  throw base::Error(
      {.expected = fmt::format("at least {} {} tokens (model.seq_len + 1)", config.model.seq_len + 1, part),
       .found = fmt::format("{} of the {} tokens{} (data.split = {:g})", there, source.size(),
                            blended ? " of " + source.describe() : "", config.data.split),
       .where = blended ? "data.source" : "data.path",
       .fix = fix},
      base::ExitCode::bad_input);
}

std::unique_ptr<SampleOrder> make_order(TokenSource const& source, layout::Range tokens, std::int64_t samples,
                                        std::size_t number, config::Config const& c) {
  auto const key = [&](std::string const& purpose) {
    return base::random_key(c.run.seed, number == 0 ? purpose : fmt::format("{}.{}", purpose, number));
  };
  auto const below_border = [&](std::int64_t count, auto const& range) {  // those before the held-out part
    std::int64_t low = 0, high = count;
    while (low < high) {
      auto const middle = low + (high - low) / 2;
      range(middle).begin < tokens.end ? low = middle + 1 : high = middle;
    }
    return low;
  };
  switch (c.data.shuffle) {
    case config::Shuffle::documents: {
      auto const count = below_border(source.documents(), [&](std::int64_t i) { return source.document(i); });
      return make_document_order(source, count, tokens.size(), key("data.documents"));
    }
    case config::Shuffle::megatron: {
      bool const all = tokens.end == source.size();  // empty ones at the end count too
      auto const count = all ? source.sequences()
                             : below_border(source.sequences(), [&](std::int64_t i) { return source.sequence(i); });
      return make_megatron_order(source, count, tokens.size(), c.model.seq_len, c.run.seed, samples);
    }
    case config::Shuffle::windows: break;
  }
  return make_window_order(source, tokens, c.model.seq_len, key("data.order"), key("data.offset"));
}

}  // namespace

Sampler::Sampler(TokenSource const& source, config::Config const& config)
    : seq_len_(config.model.seq_len),
      global_batch_(config.batch.global),
      eod_token_(static_cast<int>(config.data.eod_token)),
      mask_(config.data.eod_mask_loss),
      reset_positions_(config.data.reset_positions),
      pack_(config.data.pack) {
  P3D_REQUIRE(seq_len_ >= 1 && global_batch_ >= 1, "the batch is not empty");
  P3D_REQUIRE((!mask_ && !reset_positions_) || pack_ || eod_token_ >= 0, "there is a token that ends documents");
  P3D_REQUIRE(!pack_by_source() || source.knows_documents(), "it is known where documents end");
  auto const samples = config.run.steps * config.batch.global;
  bool const megatron = config.data.shuffle == config::Shuffle::megatron;
  std::vector<std::int64_t> samples_of(source.parts(), samples);
  if (source.parts() > 1) {
    std::vector<double> weights;
    for (auto const& s : config.data.source) weights.push_back(s.weight);
    P3D_REQUIRE(weights.size() == source.parts(), "every source has a weight");
    blended_ = std::make_unique<Blended>();
    if (megatron) {
      auto blend = std::make_unique<MegatronBlend>(weights);
      for (std::size_t i = 0; i < weights.size(); ++i) samples_of[i] = blend->samples_of(i, samples);
      blended_->blend = std::move(blend);
    } else {
      auto const whole = config::whole_weights(weights);
      P3D_REQUIRE(whole, "the weights have small whole ratios");
      blended_->blend = std::make_unique<EvenBlend>(*whole);
    }
  }
  bool const evaluates = config.data.split > 0.0 && config.run.eval_batches > 0;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < source.parts(); ++i) {
    auto const& s = source.part(i);
    Part part{&s, split_source(s, config.data.split), 0, 0, nullptr};
    part.train_windows = windows(part.split.training, seq_len_);
    part.eval_windows = windows(part.split.held_out, seq_len_);
    if (part.train_windows == 0)
      too_short("training", part.split.training.size(), s, config, "add text, or lower model.seq_len or data.split");
    if (part.eval_windows == 0 && evaluates)
      too_short("held-out", part.split.held_out.size(), s, config,
                "add text, lower model.seq_len, raise data.split, or set run.eval_batches = 0");
    train_windows_ += part.train_windows;
    eval_windows_ += part.eval_windows;
    held_out_.push_back({first + part.split.held_out.begin, first + part.split.held_out.end});
    first += s.size();
    part.order = make_order(s, part.split.training, samples_of[i], i, config);
    parts_.push_back(std::move(part));
  }
}

Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;

Sampler::Part const& Sampler::part_of(std::int64_t sample, std::int64_t& number) const {
  auto const pick = blended_ ? blended_->blend->at(sample) : Pick{0, sample};
  number = pick.number;
  return parts_[pick.source];
}

void Sampler::train(std::int64_t sample, std::span<int> inputs, std::span<int> targets,
                    std::span<int> documents) const {
  P3D_REQUIRE(sample >= 0, "the sample number is not negative");
  auto const length = static_cast<std::size_t>(seq_len_);
  P3D_REQUIRE(inputs.size() == length && targets.size() == length, "inputs and targets have seq_len tokens");
  P3D_REQUIRE(documents.empty() || documents.size() == length, "documents are those of all inputs");
  std::int64_t number = 0;
  auto const& part = part_of(sample, number);
  OwnDocuments const own(pack_by_source(), documents, length);
  part.order->read(number, inputs, targets, own.documents);
  mask(inputs, targets);
  find_documents(inputs, documents);
}

void Sampler::eval(std::int64_t batch, std::int64_t index, std::span<int> inputs, std::span<int> targets,
                   std::span<int> documents) const {
  P3D_REQUIRE(eval_windows_ > 0, "something is held out");
  P3D_REQUIRE(batch >= 0 && index >= 0 && index < global_batch_, "the place in the evaluation batch exists");
  std::int64_t number = 0;
  auto const& part = part_of(global_sample(batch, index, global_batch_), number);
  window(*part.source, part.split.held_out.begin + number % part.eval_windows * seq_len_, inputs, targets, documents);
}

void Sampler::window(TokenSource const& source, std::int64_t first, std::span<int> inputs, std::span<int> targets,
                     std::span<int> documents) const {
  OwnDocuments const own(pack_by_source(), documents, inputs.size());
  auto const count = static_cast<std::int64_t>(inputs.size()) + 1;
  SampleTokens tokens(inputs, targets, own.documents);
  if (source.knows_documents())
    tokens.take_documents(source, first, count);
  else
    tokens.take(source, first, count);
  tokens.finish();
  mask(inputs, targets);
  find_documents(inputs, documents);
}

void Sampler::mask(std::span<int const> inputs, std::span<int> targets) const {
  if (!masks() || eod_token_ < 0) return;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == eod_token_) targets[i] = -1;
  }
}

/// Of data.eod_token; those that the source knows came with the tokens.
void Sampler::find_documents(std::span<int const> inputs, std::span<int> documents) const {
  if (documents.empty() || pack_by_source()) return;
  int first = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    documents[i] = first;
    if (pack_ && inputs[i] == eod_token_) first = static_cast<int>(i + 1);
  }
}

void Sampler::positions(std::span<int const> inputs, std::span<int const> documents, std::span<int> positions) const {
  P3D_REQUIRE(!documents.empty() || !pack_by_source(), "the documents of the sample are given");
  int next = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (pack_ && !documents.empty()) next = static_cast<int>(i) - documents[i];
    positions[i] = next++;
    if (resets_positions() && eod_token_ >= 0 && inputs[i] == eod_token_) next = 0;
  }
}

}  // namespace p3d::data
