// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights that a stage is handed when it runs. A layer owns none: whoever holds them (resident, gathered for the
// moment, reloaded, of an older version) gives them to each call.

#include <p3d/config/config.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/model/parameters.hpp>

#include <vector>

namespace p3d::model {

/// The weights of a norm; `bias` may be empty.
template <class P>
struct NormWeights {
  Vector<P> weight, bias;
};

/// The weights of routed experts (layout/params.hpp); `gate` may be empty. Matrices of experts are stacked:
/// [local experts * hidden, local ffn].
template <class P>
struct MoeWeights {
  Matrix<P> router, gate, up, down;
  Matrix<P> shared_gate;                    ///< [1, hidden], or empty
  Vector<P> bias, load;                     ///< [experts]; empty without such balancing
  Vector<P> router_bias;                    ///< [experts], of the router's linear, or empty
  Matrix<P> gate_bias, up_bias, down_bias;  ///< [local experts, local ffn or hidden], or empty
};

/// The weights of one layer, with the places of their gradients. Matrices are [out, in]; q, k, v are one matrix, and so
/// are gate and up. Biases may be empty.
template <class P>
struct BlockWeights {
  NormWeights<P> norm1, norm2;            ///< in front of the sub-layers, or empty
  NormWeights<P> post_norm1, post_norm2;  ///< behind them, or empty
  Vector<P> q_norm, k_norm;               ///< norms of queries and keys (kernels::QkNormVectors), or empty
  Matrix<P> qkv, attn_out, up, down;
  /// Latent attention: the latents' matrix, with their norms, and the matrices that make queries, keys and values of
  /// them. Where queries come from the stream, `q_up` is their matrix [heads head_dim, hidden] and `q_latent` is empty.
  Matrix<P> latent_down, q_up, kv_up;
  Vector<P> q_latent, kv_latent;
  Vector<P> qkv_bias, attn_out_bias, up_bias, down_bias;
  Vector<P> sinks;    ///< [heads]: logits of attention sinks, or empty
  Vector<P> slopes;   ///< [2]: alpha_p and alpha_n of xIELU (kernels/xielu.hpp), or empty
  MoeWeights<P> moe;  ///< routed experts; then `up` and `down` are those of shared experts, or empty
};

/// The weights of a block of multi-token prediction (mtp.hpp).
template <class P>
struct MtpWeights {
  NormWeights<P> enorm, hnorm;  ///< of embeddings, and of what the block before it made
  Matrix<P> eh_proj;            ///< [hidden, 2 hidden]: the columns for embeddings come first
  BlockWeights<P> layer;
  NormWeights<P> final_norm;
};

/// The weights of one stage. Those that it does not have are empty.
template <class P>
struct StageWeights {
  /// [local vocabulary, hidden] and [seq_len, hidden], of the first stage; with multi-token prediction the last stage
  /// reads the embedding, too. Where the vocabulary is divided over the pipeline, the rank's part of it is with the
  /// first stage of the rank, and so is `head`.
  Matrix<P> embedding, positions;
  std::vector<BlockWeights<P>> layers;
  NormWeights<P> final_norm;       ///< read by the last stage
  Matrix<P> head;                  ///< [local vocabulary, hidden], of the last stage
  std::vector<MtpWeights<P>> mtp;  ///< blocks that the last stage has
};

/// The weights of a stage that lie in `params`. `first` are the parameters of stage 0, where the last stage uses the
/// embedding there (StageMap::shares_tied).
template <class P>
StageWeights<P> stage_weights(config::Config const& config, layout::StageMap const& stages, int stage,
                              Parameters<P> const& params, Parameters<P> const* first = nullptr);

/// Hands a stage its weights. The executor calls it for the weight actions of the schedule (schedule/weights.hpp says
/// what they mean and when they come; the program is proved); all but weights() are for providers that move weights.
template <class P>
class WeightProvider {
public:
  virtual ~WeightProvider() = default;
  /// The weights of a version that is there, valid until the next call of another function.
  virtual StageWeights<P> const& weights(int version) = 0;
  virtual void gather(int version) = 0;
  virtual void release(int version) = 0;
  virtual void offload(int version) = 0;
  virtual void reload(int version) = 0;
};

/// The weights lie where layers read them, all the time, in one version: an update overwrites them. A program for it
/// moves no weights.
template <class P>
class ResidentWeights final : public WeightProvider<P> {
public:
  explicit ResidentWeights(StageWeights<P> weights) : weights_(std::move(weights)) {}
  StageWeights<P> const& weights(int) override { return weights_; }
  void gather(int version) override;
  void release(int version) override;
  void offload(int version) override;
  void reload(int version) override;

private:
  StageWeights<P> weights_;
};

}  // namespace p3d::model
