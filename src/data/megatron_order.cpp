// SPDX-License-Identifier: Apache-2.0
// The order of Megatron-LM's GPTDataset (megatron/core/datasets/gpt_dataset.py and helpers.cpp). It is three indices:
//
//   epochs          E = the fewest whose tokens are at least samples * seq_len + 1
//   document index  every sequence E times, shuffled as one list; the last epoch separately, behind the others, when
//                   fewer than 80 % of an epoch's samples are asked of it
//   sample index    the place where each sample begins in the tokens of that list: each sample has seq_len + 1 tokens,
//                   the last one of which is the first of the next sample
//   shuffle index   the samples, shuffled; those that begin in the last epoch separately, when it was separate before
//
// One numpy.random.RandomState(seed) shuffles all of them, in this order.

#include "data/mapped_file.hpp"
#include "data/numpy_random.hpp"
#include "data/sample_order.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace p3d::data {

namespace {

/// The first token of a sample: `skip` tokens into the sequence at `place` of the document index.
struct Start {
  std::int64_t place;
  std::int64_t skip;
};

/// The three indices of a run. Samples are read through them.
class MegatronOrder final : public SampleOrder {
public:
  MegatronOrder(TokenSource const& source, std::int64_t sequences, std::int64_t tokens, std::int64_t seq_len,
                std::uint64_t seed, std::int64_t samples)
      : source_(&source), sequences_(sequences), tokens_(tokens), seq_len_(seq_len) {
    auto const wanted = samples * seq_len + 1;
    epochs_ = std::max<std::int64_t>(1, (wanted + tokens - 1) / tokens);
    samples_ = (epochs_ * tokens - 1) / seq_len;
    constexpr auto most = std::numeric_limits<std::int32_t>::max();
    if (sequences < 1 || sequences > most || epochs_ > most) {
      base::refuse({.expected = fmt::format("1 to {} sequences and epochs: Megatron-LM numbers them in 32 bits", most),
                    .found = fmt::format("{} sequences, {} epochs", sequences, epochs_),
                    .where = source.describe(),
                    .fix = "use data.shuffle = \"documents\""});
    }
    auto const before_last = epochs_ > 1 ? ((epochs_ - 1) * tokens - 1) / seq_len : 0;
    auto const per_epoch = (tokens - 1) / seq_len;
    bool const apart =
        epochs_ > 1 && samples - before_last < static_cast<std::int64_t>(0.80 * static_cast<double>(per_epoch));
    NumpyRandom random(static_cast<std::uint32_t>(seed));
    shuffle_documents(random, apart);
    find_starts();
    shuffle_samples(random, apart ? before_last : samples_);
  }

  void read(std::int64_t sample, std::span<int> inputs, std::span<int> targets,
            std::span<int> documents) const override {
    if (sample >= samples_) {
      base::refuse({.expected = fmt::format("at most {} samples of {}", samples_, source_->describe()),
                    .found = fmt::format("sample {}", sample),
                    .where = "data.shuffle = \"megatron\", which prepares what run.steps asks for",
                    .fix = "choose less unequal weights, or data.shuffle = \"documents\""});
    }
    auto start = starts()[shuffled(sample)];
    SampleTokens tokens(inputs, targets, documents);
    for (; !tokens.full() && start.place < std::ssize(order()); ++start.place, start.skip = 0) {
      auto const sequence = source_->sequence(order()[static_cast<std::size_t>(start.place)]);
      if (start.skip < sequence.size())
        tokens.take(*source_, sequence.begin + start.skip, sequence.size() - start.skip);
    }
    tokens.finish();
  }

private:
  std::span<std::int32_t> order() const { return order_.as<std::int32_t>(); }
  std::span<Start> starts() const { return starts_.as<Start>(); }
  /// True when numbers of samples need 64 bits.
  bool wide() const { return samples_ >= std::numeric_limits<std::uint32_t>::max() - 1; }
  /// The sample at a place of the shuffle index.
  std::size_t shuffled(std::int64_t sample) const {
    auto const i = static_cast<std::size_t>(sample);
    return wide() ? static_cast<std::size_t>(shuffle_.as<std::int64_t>()[i]) : shuffle_.as<std::uint32_t>()[i];
  }

  void shuffle_documents(NumpyRandom& random, bool apart) {
    order_ = ScratchMemory(4 * epochs_ * sequences_);
    auto const all = order();
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(sequences_));
    auto const last = static_cast<std::size_t>(apart ? sequences_ : 0);
    random.shuffle(all.first(all.size() - last));
    random.shuffle(all.last(last));
  }

  void find_starts() {
    starts_ = ScratchMemory(static_cast<std::int64_t>(sizeof(Start)) * samples_);
    std::int64_t place = 0, begin = 0;  // a sequence, and the number of its first token in the list
    auto size = source_->sequence(order()[0]).size();
    for (std::int64_t i = 0; i < samples_; ++i) {
      auto const first = i * seq_len_;
      while (first >= begin + size) {
        begin += size;
        if (++place == std::ssize(order())) refuse(begin);
        size = source_->sequence(order()[static_cast<std::size_t>(place)]).size();
      }
      starts()[static_cast<std::size_t>(i)] = {place, first - begin};
    }
  }

  [[noreturn]] void refuse(std::int64_t tokens) const {
    base::refuse({.expected = fmt::format("{} tokens in {} epochs", epochs_ * tokens_, epochs_),
                  .found = fmt::format("{}", tokens),
                  .where = source_->describe(),
                  .fix = "make the index again; p3d data check lists its errors"});
  }

  template <class T>
  void shuffle_range(NumpyRandom& random, std::int64_t first_part) {
    auto const all = shuffle_.as<T>();
    std::iota(all.begin(), all.end(), T{0});
    random.shuffle(all.first(static_cast<std::size_t>(first_part)));
    random.shuffle(all.subspan(static_cast<std::size_t>(first_part)));
  }

  void shuffle_samples(NumpyRandom& random, std::int64_t first_part) {
    shuffle_ = ScratchMemory((wide() ? 8 : 4) * samples_);
    wide() ? shuffle_range<std::int64_t>(random, first_part) : shuffle_range<std::uint32_t>(random, first_part);
  }

  TokenSource const* source_;
  std::int64_t sequences_, tokens_, seq_len_;
  std::int64_t epochs_ = 1, samples_ = 0;
  ScratchMemory order_, starts_, shuffle_;
};

}  // namespace

std::unique_ptr<SampleOrder> make_megatron_order(TokenSource const& source, std::int64_t sequences, std::int64_t tokens,
                                                 std::int64_t seq_len, std::uint64_t seed, std::int64_t samples) {
  return std::make_unique<MegatronOrder>(source, sequences, tokens, seq_len, seed, samples);
}

}  // namespace p3d::data
