// SPDX-License-Identifier: Apache-2.0
// The sampler. It splits each source into training and validation, makes the source's order of samples
// (sample_order.hpp), and blends the sources (blend.hpp). A global sample number becomes (source, number there) and
// then tokens; masks, document bounds and positions follow from the tokens. Example: with two sources of weights 3 and
// 1, samples 0, 1, 2, 3 come from sources 0, 0, 1, 0, and sample 2 reads the first sample of source 1.
#include <p3d/data/sampler.hpp>

#include "data/blend.hpp"
#include "data/sample_order.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/config.hpp>
#include <p3d/config/weights.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace p3d::data {

void move_targets(std::span<int const> targets, std::int64_t k, std::span<int> ahead) {
  auto const places = static_cast<std::size_t>(k);
  for (std::size_t i = 0; i < ahead.size(); ++i)
    ahead[i] = ahead[i] >= 0 && i + places < targets.size() ? targets[i + places] : -1;
}

/// One source, with its split and its orders.
struct Sampler::Part {
  TokenSource const* source;
  Split split;
  std::int64_t train_windows, eval_windows;
  std::unique_ptr<SampleOrder> order;
  std::unique_ptr<DocumentPieces> pieces, held_out;  ///< with batch.variable, in place of `order`
};

struct Sampler::Blended {
  std::unique_ptr<Blend> blend;
};

namespace {

/// The buffer in which an order writes the documents that the source knows. When the caller wants none it is a buffer
/// of its own, since the order marks the targets that do not count by it.
struct OwnDocuments {
  OwnDocuments(bool pack, std::span<int> wanted, std::size_t length) {
    if (!pack) return;
    if (wanted.empty()) unwanted.resize(length);
    documents = wanted.empty() ? std::span<int>(unwanted) : wanted;
  }
  std::vector<int> unwanted;
  std::span<int> documents;
};

/// Makes the inputs behind a sample of this length a document of their own.
void end_at(std::int64_t length, std::span<int> documents) {
  std::fill(documents.begin() + length, documents.end(), static_cast<int>(length));
}

/// The number of windows of seq_len tokens in a part.
std::int64_t windows(layout::Range part, std::int64_t seq_len) {
  return std::max<std::int64_t>(part.size() - 1, 0) / seq_len;
}

[[noreturn]] void too_short(char const* part, std::int64_t there, TokenSource const& source,
                            config::Config const& config, std::string const& fix) {
  bool const blended = !config.data.source.empty();
  base::refuse({.expected = config.batch.variable ? fmt::format("a {} document of two tokens or more", part)
                                                  : fmt::format("at least {} {} tokens (model.seq_len + 1)",
                                                                config.model.seq_len + 1, part),
                .found = fmt::format("{} of the {} tokens{} (data.split = {:g})", there, source.size(),
                                     blended ? " of " + source.describe() : "", config.data.split),
                .where = blended ? "data.source" : "data.path",
                .fix = fix});
}

/// The random key of `purpose` for source `number`.
base::RandomKey key_of(config::Config const& config, std::size_t number, std::string const& purpose) {
  return base::random_key(config.run.seed, number == 0 ? purpose : fmt::format("{}.{}", purpose, number));
}

/// The number of ranges that begin before the border. Ranges must ascend.
template <class RangeOf>
std::int64_t below_border(std::int64_t count, std::int64_t border, RangeOf const& range) {
  std::int64_t low = 0, high = count;
  while (low < high) {
    auto const middle = low + (high - low) / 2;
    range(middle).begin < border ? low = middle + 1 : high = middle;
  }
  return low;
}

/// The number of the first document of the validation part; the documents before it are for training.
std::int64_t first_held_out(TokenSource const& source, layout::Range training) {
  return below_border(source.documents(), training.end, [&](std::int64_t i) { return source.document(i); });
}

bool orders_documents(config::Shuffle shuffle) {
  return shuffle == config::Shuffle::documents || shuffle == config::Shuffle::whole_documents;
}

DocumentKeys document_keys(config::Config const& c, std::size_t number) {
  DocumentKeys keys{.documents = key_of(c, number, "data.documents"), .samples = {}};
  if (c.data.shuffle == config::Shuffle::documents) keys.samples = key_of(c, number, "data.document_samples");
  return keys;
}

/// Makes the order of data.shuffle for one source.
std::unique_ptr<SampleOrder> make_order(TokenSource const& source, layout::Range tokens, std::int64_t samples,
                                        std::size_t number, config::Config const& c) {
  auto const key = [&](std::string const& purpose) { return key_of(c, number, purpose); };
  switch (c.data.shuffle) {
    case config::Shuffle::documents:
    case config::Shuffle::whole_documents:
      return make_document_order(source, first_held_out(source, tokens), tokens.size(), c.model.seq_len,
                                 document_keys(c, number));
    case config::Shuffle::megatron: {
      bool const all = tokens.end == source.size();  // then empty sequences at the end count too
      auto const count =
          all ? source.sequences()
              : below_border(source.sequences(), tokens.end, [&](std::int64_t i) { return source.sequence(i); });
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
      pack_(config.data.pack),
      variable_(config.batch.variable) {
  P3D_REQUIRE(seq_len_ >= 1 && global_batch_ >= 1, "the batch is not empty");
  P3D_REQUIRE((!mask_ && !reset_positions_) || pack_ || eod_token_ >= 0, "there is a token that ends documents");
  P3D_REQUIRE(!pack_by_source() || source.knows_documents(), "it is known where documents end");
  P3D_REQUIRE(!variable_ || (!pack_ && orders_documents(config.data.shuffle)), "samples are documents");
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
  std::int64_t first = 0;
  for (std::size_t i = 0; i < source.parts(); ++i) {
    auto const& s = source.part(i);
    parts_.push_back(make_part(s, samples_of[i], i, config));
    auto const& part = parts_.back();
    train_windows_ += part.train_windows;
    eval_windows_ += part.eval_windows;
    held_out_.push_back({first + part.split.held_out.begin, first + part.split.held_out.end});
    first += s.size();
  }
  require_eval_targets(config);
}

Sampler::Part Sampler::make_part(TokenSource const& source, std::int64_t samples, std::size_t number,
                                 config::Config const& config) const {
  Part part{&source, split_source(source, config.data.split), 0, 0, nullptr, nullptr, nullptr};
  auto const& [training, held_out] = part.split;
  if (variable_) {
    auto const border = first_held_out(source, training);
    part.pieces = make_document_pieces(source, {0, border}, seq_len_, document_keys(config, number));
    part.held_out = make_document_pieces(source, {border, source.documents()}, seq_len_, {});
  }
  part.train_windows = variable_ ? part.pieces->samples() : windows(training, seq_len_);
  part.eval_windows = variable_ ? part.held_out->samples() : windows(held_out, seq_len_);
  if (part.train_windows == 0)
    too_short("training", training.size(), source, config, "add text, or lower model.seq_len or data.split");
  if (part.eval_windows == 0 && config.data.split > 0.0 && config.run.eval_batches > 0)
    too_short("validation", held_out.size(), source, config,
              "add text, lower model.seq_len, raise data.split, or set run.eval_batches = 0");
  if (!variable_) part.order = make_order(source, training, samples, number, config);
  return part;
}

void Sampler::require_eval_targets(config::Config const& config) const {
  if (!masks() || eval_windows_ == 0 || config.run.eval_batches == 0) return;
  auto const of_sources = taken(config.run.eval_batches * global_batch_);
  std::vector<int> inputs(static_cast<std::size_t>(seq_len_)), targets(inputs.size());
  // Nearly always the first window has a target; when none has one, this reads no more than an evaluation does.
  std::int64_t windows = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    auto const here = std::min(of_sources[i], parts_[i].eval_windows);
    for (std::int64_t number = 0; number < here; ++number) {
      read_held_out(parts_[i], number, inputs, targets, {});
      if (std::ranges::any_of(targets, [](int t) { return t >= 0; })) return;
    }
    windows += here;
  }
  bool const by_token = eod_token_ >= 0, only_masked = mask_ && !pack_ && !variable_;
  base::refuse({.expected = "a token to predict in what each validation reads of the validation part",
                .found = fmt::format("none in {} (data.split = {:g}): {}",
                                     base::counted(windows, variable_ ? "sample" : "window"), config.data.split,
                                     by_token ? fmt::format("no target counts behind data.eod_token = {}", eod_token_)
                                              : "every document is a single token"),
                .where = config.data.source.empty() ? "data.path" : "data.source",
                .fix = fmt::format("add text at the end of the data, raise data.split or run.eval_batches, {}or set "
                                   "run.eval_batches = 0",
                                   only_masked ? "set data.eod_mask_loss = false, " : "")});
}

Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;

std::vector<std::int64_t> Sampler::taken(std::int64_t sample) const {
  return blended_ ? blended_->blend->taken(sample) : std::vector<std::int64_t>{sample};
}

Sampler::EvalReads Sampler::eval_reads(std::int64_t reads) const {
  P3D_REQUIRE(reads >= 0 && (reads == 0 || eval_windows_ > 0), "there is a validation split");
  auto const of_sources = taken(reads);
  EvalReads out;
  std::int64_t times = 0;  // how often the windows of the sources before are read
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    auto const here = std::min(of_sources[i], parts_[i].eval_windows);
    if (here == 0) continue;
    auto const often = of_sources[i] / here;
    out.evenly = out.evenly && of_sources[i] % here == 0 && (times == 0 || often == times);
    times = often;
    out.windows += here;
  }
  return out;
}

Sampler::Part const& Sampler::part_of(std::int64_t sample, std::int64_t& number) const {
  auto const pick = blended_ ? blended_->blend->at(sample) : Pick{0, sample};
  number = pick.number;
  return parts_[pick.source];
}

Sampler::Part const& Sampler::eval_part_of(std::int64_t batch, std::int64_t index, std::int64_t& number) const {
  P3D_REQUIRE(eval_windows_ > 0, "there is a validation split");
  P3D_REQUIRE(batch >= 0 && index >= 0 && index < global_batch_, "the place in the evaluation batch exists");
  auto const& part = part_of(global_sample(batch, index, global_batch_), number);
  number %= part.eval_windows;
  return part;
}

std::int64_t Sampler::length(std::int64_t sample) const {
  P3D_REQUIRE(sample >= 0, "the sample number is not negative");
  if (!variable_) return seq_len_;
  std::int64_t number = 0;
  auto const& part = part_of(sample, number);
  return part.pieces->length(number);
}

std::int64_t Sampler::tokens_before(std::int64_t sample) const {
  P3D_REQUIRE(sample >= 0, "the sample number is not negative");
  if (!variable_) return sample * seq_len_;
  std::int64_t tokens = 0;
  auto const of_sources = taken(sample);
  for (std::size_t i = 0; i < parts_.size(); ++i) tokens += parts_[i].pieces->inputs_before(of_sources[i]);
  return tokens;
}

std::int64_t Sampler::eval_length(std::int64_t batch, std::int64_t index) const {
  std::int64_t number = 0;
  auto const& part = eval_part_of(batch, index, number);
  return variable_ ? part.held_out->length(number) : seq_len_;
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
  SampleOrder const& order = variable_ ? *part.pieces : *part.order;
  order.read(number, inputs, targets, own.documents);
  mask(inputs, targets);
  find_documents(inputs, documents);
  if (variable_ && !documents.empty()) end_at(part.pieces->length(number), documents);
}

void Sampler::eval(std::int64_t batch, std::int64_t index, std::span<int> inputs, std::span<int> targets,
                   std::span<int> documents) const {
  std::int64_t number = 0;
  auto const& part = eval_part_of(batch, index, number);
  read_held_out(part, number, inputs, targets, documents);
}

Sampler::Part const& Sampler::held_out_part_of(std::int64_t& number) const {
  P3D_REQUIRE(number >= 0 && number < eval_windows_, "the sample is in the validation split");
  std::size_t i = 0;
  for (; number >= parts_[i].eval_windows; ++i) number -= parts_[i].eval_windows;
  return parts_[i];
}

void Sampler::held_out(std::int64_t number, std::span<int> inputs, std::span<int> targets,
                       std::span<int> documents) const {
  auto const& part = held_out_part_of(number);
  read_held_out(part, number, inputs, targets, documents);
}

std::int64_t Sampler::held_out_length(std::int64_t number) const {
  auto const& part = held_out_part_of(number);
  return variable_ ? part.held_out->length(number) : seq_len_;
}

void Sampler::read_held_out(Part const& part, std::int64_t number, std::span<int> inputs, std::span<int> targets,
                            std::span<int> documents) const {
  if (!variable_) {
    window(*part.source, part.split.held_out.begin + number * seq_len_, inputs, targets, documents);
    return;
  }
  part.held_out->read(number, inputs, targets, {});
  mask(inputs, targets);
  find_documents(inputs, documents);
  if (!documents.empty()) end_at(part.held_out->length(number), documents);
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
