// SPDX-License-Identifier: Apache-2.0
#pragma once
// The samples of each microbatch of this rank, and their tokens. The data are read only for who needs them: inputs for
// the first stage, targets for the last one, and documents or positions for every stage where they follow from tokens.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/data/sampler.hpp>
#include <p3d/kernels/common.hpp>
#include <p3d/layout/context.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/engine/packing.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace p3d::engine {

/// The samples that this replica runs through a program: those of a step, of an evaluation batch, or any others.
struct SampleSource {
  /// The number of the first sample of a microbatch; dropout depends on it.
  std::function<std::int64_t(int microbatch)> first;
  /// Fills spans of model.seq_len numbers with sample `number`; `documents` may be empty, as in data::Sampler::train.
  std::function<void(std::int64_t number, std::span<int> inputs, std::span<int> targets, std::span<int> documents)>
      read;
  /// The inputs of sample `number`; asked only with batch.variable.
  std::function<std::int64_t(std::int64_t number)> length;
  bool predicts = false;  ///< blocks of multi-token prediction run, and have targets
};

/// The tokens of a microbatch that somebody reads. `places`: documents and positions, where the model uses any.
struct WantedTokens {
  bool inputs = false, targets = false, places = false;
};

/// A microbatch as this rank reads it, valid until the next one is loaded: of each of its rows a number, but for
/// `documents`, which are of whole samples (kernels::TokenRows). What is not wanted is empty.
struct LoadedTokens {
  kernels::TokenRows rows;
  std::span<int const> inputs, targets, positions, documents;
  std::span<int const> mtp_targets;  ///< model::Stage::Tokens::mtp_targets
};

class BatchLoader {
public:
  /// `config` and `stages` must outlive the loader. `here`: the rank's coordinates.
  BatchLoader(config::Config const& config, layout::StageMap const& stages, layout::PerAxis here,
              std::unique_ptr<data::TokenSource> source, data::Sampler sampler);
  BatchLoader(BatchLoader const&) = delete;
  BatchLoader& operator=(BatchLoader const&) = delete;

  data::TokenSource const& source() const { return *source_; }
  data::Sampler const& sampler() const { return sampler_; }
  /// The number of the replica that this rank belongs to: its coordinate along dp.
  int replica() const { return here_.dp; }

  /// Step `step` of training, from 0. Where samples are unequal work, replicas have equal work, not neighbouring
  /// samples. Valid as long as the loader, as is the next one.
  SampleSource training(std::int64_t step);
  /// Batch `batch` of the validation split.
  SampleSource evaluation(std::int64_t batch) const;

  /// Inputs of the samples of the global batch of a step.
  std::int64_t tokens_of(std::int64_t step);
  /// Targets that are not masked in the microbatches of this replica, and behind their number those of each block of
  /// multi-token prediction that runs. Reads them.
  std::vector<std::int64_t> count_targets(SampleSource const& samples) const;
  /// Reads as many samples of the global batch of a step as load() will; the replicas together read all of them. Throws
  /// base::Error (bad_input), as load() does, for a token that cannot be read. Tokens made up on the spot are left out.
  void check_training(std::int64_t step) const;
  /// Reads the first `batches` batches of the validation split, as check_training() does. Where these are the whole
  /// split or more, each window is read once.
  void check_evaluation(std::int64_t batches) const;
  /// Tokens of each sample of a microbatch: model.seq_len, or with batch.variable what padded_length() makes of the
  /// longest.
  std::int64_t length(SampleSource const& samples, int microbatch) const;

  /// The tokens that a stage reads.
  WantedTokens of_stage(int stage) const;
  /// `length`: that of the samples, as in length().
  LoadedTokens load(SampleSource const& samples, int microbatch, WantedTokens wanted, std::int64_t length);

private:
  /// Calls `body` with the number of each sample of this replica, whose microbatches begin with first(m).
  template <class First, class Body>
  void for_samples(First const& first, Body const& body) const;
  DealtBatch const& batch_of(std::int64_t step);
  std::size_t seq_len() const { return static_cast<std::size_t>(config_->model.seq_len); }
  /// The documents of the sample whose tokens begin at `begin`; empty without data.pack.
  std::span<int> documents_at(std::size_t begin) {
    return documents_.empty() ? documents_ : std::span(documents_).subspan(begin, seq_len());
  }
  /// Picks, from one number for each token of the microbatch, the numbers of this rank's tokens of each sample, and
  /// keeps them in `own`.
  std::span<int const> own_tokens(std::vector<int> const& whole, base::TokenSet const& tokens,
                                  std::vector<int>& own) const;
  /// The targets of all blocks of multi-token prediction, from those of the microbatch; of `tokens` of each sample, or
  /// of all where these are null.
  std::span<int const> mtp_targets(base::TokenSet const* tokens);

  config::Config const* config_;
  layout::StageMap const* stages_;
  layout::PerAxis here_;
  std::unique_ptr<data::TokenSource> source_;
  data::Sampler sampler_;
  layout::ContextDivision division_;
  bool reads_files_ = false;  ///< this rank reads tokens of files: for a stage of its own, or to count targets
  DealtBatch dealt_;          ///< the global batch asked for last whose samples are unequal work
  std::vector<int> inputs_, targets_, positions_, documents_;  ///< a microbatch of whole samples
  std::vector<int> own_inputs_, own_targets_, own_positions_;  ///< the rank's tokens, where it has only some
  std::vector<int> ahead_, own_ahead_, mtp_targets_;           ///< targets of one block, and of all of them
};

/// Throws base::Error (bad_input) on every rank unless all hold the same input and the same data. Collective.
void require_same_input(config::Config const& config, data::TokenSource const& source, comm::Communicator& world);

}  // namespace p3d::engine
