// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where documents make samples unequal work (data.pack, batch.variable): which replica takes which microbatches of a
// global batch, and how even the work is then. A function of the input and the step alone.

#include <p3d/config/config.hpp>
#include <p3d/data/sampler.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::engine {

/// The largest work over the mean: of attention, or with batch.variable of all.
struct PackingBalance {
  std::int64_t documents = 0;   ///< in the global batch, parts of documents counted
  std::int64_t tokens = 0;      ///< tokens of the samples in the global batch
  std::int64_t padding = 0;     ///< besides: batch.variable makes the samples of a microbatch equally long
  double replicas_as_read = 1;  ///< over dp, if each took its microbatches in order
  double replicas = 1;          ///< as they are dealt
  double context = 1;           ///< over the ranks of cp, all samples together
};

/// The microbatches of one global batch.
struct DealtBatch {
  std::int64_t step = -1;
  std::vector<std::int64_t> order;  ///< replica r's are the r-th part
  PackingBalance balance;
};

/// A number that lengths of samples are multiples of where they vary: above 1 where each length costs a plan of the
/// attention (kernels::fused_length_step).
std::int64_t length_step();
/// batch.variable: the length of a microbatch whose longest sample has `longest` tokens: rounded up to a multiple of
/// `step` and of what cp and sequence parallelism divide it by, but at most model.seq_len.
std::int64_t padded_length(config::Config const& config, std::int64_t longest, std::int64_t step = length_step());

/// Reads the documents of global batch `step` (from 0): the tokens of all replicas.
DealtBatch deal_batch(config::Config const& config, data::Sampler const& sampler, std::int64_t step);

/// "Packing: 12 documents or parts in the first global batch; ...".
std::string describe(PackingBalance const& balance, config::Config const& config);

}  // namespace p3d::engine
