// SPDX-License-Identifier: Apache-2.0
#pragma once
// Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2), as the published models have it. With
//   h^0 = what the model gives its head, behind the final norm
//   h^k = norm(layer(eh_proj [enorm(embedding(t + k)) | hnorm(h^(k-1))]))
// block k gives the head h^k, to predict token t + k + 1 where the block stands at token t. Embedding and head are the
// model's; a layer has the number behind those of the model, and its kind by that.
//
// A token whose k-th next one is in another document or behind the window has the embedding 0. Backward is one piece:
// where a schedule splits it, all gradients of a block come with the input part.
//
// Gradients take the memory of activations that are dead by then:
//   gradient of                   dead activation
//   the layer's output and input  the layer's output
//   outputs of enorm and hnorm    these
//   embeddings                    these
//   h^(k-1)                       the layer's input

#include <p3d/model/block.hpp>
#include <p3d/model/embedding.hpp>

#include <cstdint>

namespace p3d::model {

/// The buffers of a block in a slot. Its layer has BlockActivations of its own.
template <class P>
struct MtpActivations {
  using S = typename P::Storage;
  P3D_BUFFER_VIEWS(P3D_MTP_BUFFERS)
  NormActivations<P> enorm() const { return {enorm_y, enorm_mean, enorm_scale}; }
  NormActivations<P> hnorm() const { return {hnorm_y, hnorm_mean, hnorm_scale}; }
  NormActivations<P> final_norm() const { return {final_norm_y, final_norm_mean, final_norm_scale}; }
};

/// The embedding that a block shares with the model, and the tokens that it looks up: those of all rows.
template <class P>
struct SharedEmbedding {
  Matrix<P> const& weight;
  Embedding<P> const& lookup;
  View1<int const> tokens;
};

/// One block on one rank. As a layer it holds no weights.
template <class P>
class MtpBlock {
public:
  using S = typename P::Storage;
  /// `layer`: the number of its layer.
  MtpBlock(config::Config const& config, parallel::TensorParallel& tp, int layer);

  /// h^k = a.final_norm_y, for `previous` = h^(k-1); matrices have the rank's rows. `c` is the call of the layer, whose
  /// input is a.input.
  void forward(MtpWeights<P> const& w, SharedEmbedding<P> const& embedding, LayerCall<P> const& c,
               View2<S const> previous, MtpActivations<P> const& a);
  /// From the gradient of h^k to that of h^(k-1), which is returned; weight gradients add up, the embedding's too.
  View2<S> backward(MtpWeights<P> const& w, SharedEmbedding<P> const& embedding, LayerCall<P> const& c,
                    View2<S const> d, View2<S const> previous, MtpActivations<P> const& a);

  /// RoutedExperts::take_counts of its layer.
  std::vector<std::int64_t> take_counts() { return layer_.take_counts(); }

private:
  parallel::TensorParallel* tp_;
  NormLayer<P> norm_;
  TransformerBlock<P> layer_;
};

}  // namespace p3d::model
