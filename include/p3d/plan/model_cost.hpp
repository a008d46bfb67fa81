// SPDX-License-Identifier: Apache-2.0
#pragma once
// The costs of a model: parameters and floating-point operations. Pure arithmetic on the configuration.
//
// A GEMM of [m, k] and [k, n] counts 2 m k n. Backward costs twice forward (gradients of inputs and of weights), so
// one weight element of a matrix costs 6 operations per token. Norms, activations and the look-up of embeddings are not
// counted.

#include <p3d/layout/params.hpp>
#include <p3d/layout/recompute.hpp>
#include <p3d/layout/stages.hpp>

#include <cstdint>

namespace p3d::config {
struct Config;
}

namespace p3d::plan {

/// Weight elements that a token is multiplied with: projections, MLP, and the head, tied or not. For GPT 12 l h^2 + V
/// h. The padding of the vocabulary is not counted. Of experts: the router, the top_k that the token is sent to, and
/// the shared ones with their gate. Each block of multi-token prediction adds its layer, the matrix in front of it, and
/// the head once more.
std::int64_t matmul_weights(config::Config const& config);
/// The share of matmul_weights that lies in `layer`, which may be one of multi-token prediction.
std::int64_t weights_of_layer(config::Config const& config, std::int64_t layer);
/// The share of matmul_weights of a block of multi-token prediction beside its layer.
std::int64_t weights_beside_layer(config::Config const& config);
/// The layers that a stage runs in training: of the last one those of multi-token prediction too.
layout::Range layers_in_training(config::Config const& config, layout::StageMap const& stages, int stage);

/// Parameters that a token meets: all but those of the experts that it is not sent to.
std::int64_t active_parameters(config::Config const& config, layout::ParamTable const& table);

/// Numbers of the residual stream that a layer's forward reads and writes for each token: norms, dropouts and sums.
double stream_numbers(config::Config const& config);
/// Numbers that a layer's attention reads and writes for each token besides its rows: the norm of queries and keys with
/// the copy for backward; with model.mla keys and values that are copied to their heads; attention sinks. Ranks of tp
/// share them, by heads.
double attention_copies(config::Config const& config);
/// Numbers that the norms of latents read and write for each token (model.mla). Every rank of tp has all latents of its
/// rows.
double latent_norms(config::Config const& config);

/// How the keys that a query sees are counted. Documents that data.pack keeps apart are not known before the run.
enum class Keys {
  all,  ///< as if every query saw its whole window, or all tokens: what MFU figures in the literature use
  seen  ///< the mean of min(i + 1, window) over the queries i of a sequence
};
/// Keys of a query of a layer (model.window), in the mean over a sequence of model.seq_len tokens.
double keys_per_query(config::Config const& config, std::int64_t layer, Keys keys);

/// Operations per token, forward and backward: 6 matmul_weights + 12 h sum over the layers of Keys::all, with h = heads
/// * head_dim. Without windows this is equation 3 of arXiv 2104.04473 without recomputation, 72 B s l h^2 (1 + s/(6h) +
/// V/(12 l h)), for GPT; grouped-query attention, SwiGLU and experts by the sizes of their matrices.
double flops_per_token(config::Config const& config);

/// Operations of a whole step: flops_per_token(config) times batch.global * model.seq_len.
double model_flops_per_step(config::Config const& config);

/// Operations per token that recomputation adds to a backward pass of a stage whose first layer is `first_layer` of the
/// model. A full layer's forward is recomputed without the matrix behind the activation function, unless its result
/// is needed (StageRecompute::remakes_branches), and without the one behind attention where the sum behind that is
/// kept.
double recompute_flops_per_token(config::Config const& config, layout::StageRecompute const& stage,
                                 std::int64_t first_layer, Keys keys);

}  // namespace p3d::plan
