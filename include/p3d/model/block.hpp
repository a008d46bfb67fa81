// SPDX-License-Identifier: Apache-2.0
#pragma once
// One transformer layer: a list of sub-layers over one residual stream, of which the first is attention and the last an
// MLP or experts (src/model/sublayer.hpp). Forward and backward walk the list; what backward needs is left in
// BlockActivations.

#include <p3d/config/config.hpp>
#include <p3d/kernels/cached_attention.hpp>
#include <p3d/kernels/common.hpp>
#include <p3d/kernels/norm.hpp>
#include <p3d/model/activations.hpp>
#include <p3d/model/moe.hpp>
#include <p3d/model/weights.hpp>
#include <p3d/parallel/rows.hpp>

#include <memory>

namespace p3d::model {

/// A layer norm or an RMS norm, as the configuration asks.
template <class P>
class NormLayer {
public:
  using S = typename P::Storage;
  using G = typename P::Gradient;
  explicit NormLayer(config::Config const& config);
  void forward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> x, NormActivations<P> const& out) const;
  /// x becomes the sum that the norm reads.
  void forward(ExecSpace const& exec, NormWeights<P> const& w, kernels::ResidualSum<S> const& sum, View2<S> x,
               NormActivations<P> const& out) const;
  /// dx (+)= ; the weight gradients add up.
  void backward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> dy, View2<S const> x,
                NormActivations<P> const& saved, kernels::Store store, View2<S> dx) const;
  /// Backward, with the work of kernels::layernorm_backward on `branches`, and what that leaves in `sums`.
  void backward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> dy, View2<S const> x,
                NormActivations<P> const& saved, kernels::Store store, View2<S> dx,
                kernels::NormBranches<S, G> const& branches, kernels::ColumnSums<S, G>& sums) const;

private:
  bool layernorm_;
  double eps_, offset_;
};

/// Keys and values of each local key/value head of each text, which a layer keeps of texts that grow.
template <class P>
struct KeyValueCache {
  kernels::CachedTexts texts;
  View2<typename P::Storage> keys, values;  ///< as kernels::store_keys_values fills them
  /// Latent attention keeps latents in `keys`, no `values`, and works in these: [rows, heads (latent + rotating part)],
  /// [rows, heads latent].
  View2<typename P::Storage> queries{}, outputs{};
};

/// One call of a layer: what it works on, and in which memory. Matrices of the stream have the rank's own rows.
template <class P>
struct LayerCall {
  using S = typename P::Storage;
  BlockWeights<P> const& w;
  kernels::TokenRows const& rows;  ///< rows of the whole microbatch
  RoutePass kind;
  View2<S> x;  ///< the layer's input
  BlockActivations<P>& a;
  BlockScratch<P>& t;
  layout::LayerRecompute discarded{};       ///< backward: outputs that are remade just before their use
  bool fixed_memory = false;                ///< no view of `a` may change places with one of `t`
  KeyValueCache<P> const* cache = nullptr;  ///< decoding: new tokens join it, and attend to all of their text
};

template <class P>
class SubLayer;

/// One layer of the model on one rank. It holds no weights: each call brings them. x, y and their gradients have n rows
/// (BlockSizes).
template <class P>
class TransformerBlock {
public:
  using S = typename P::Storage;
  TransformerBlock(config::Config const& config, parallel::TensorParallel& tp, int layer);
  TransformerBlock(TransformerBlock&&) noexcept;
  ~TransformerBlock();

  /// y = layer(x); y may be x.
  void forward(LayerCall<P> const& c, View2<S> y);
  /// Forward of training again, up to the last linear: what backward needs, from x alone. `sums_are_there`: those of
  /// the stream inside the layer were kept, so that nothing is summed over tp.
  void remake(LayerCall<P> const& c, bool sums_are_there);
  /// d enters as the gradient of y and leaves as the gradient of x; weight gradients add up. Of a layer that is
  /// recomputed in full remake() has brought everything back.
  void backward(LayerCall<P> const& c, View2<S> d);

  /// Backward in two parts (arXiv 2401.10241, section 2). The input part turns d; of the weight gradients it adds the
  /// norms', which fall out of its sums. The weight part adds the others, those of the linears and their biases.
  ///
  /// What the weight part needs costs no memory: each gradient lies where an activation is dead by then.
  ///   gradient of   dead activation        how it gets there
  ///   a branch      the sum it ends in     a copy (or the dropout mask's result)
  ///   qkv, up       qkv, up                LinearSubLayer::backward_input
  /// With norm1.y, heads, norm2.y and act, which the weight part multiplies them with, these are alive until it ends.
  /// y, the sum that the last branch ends in, must not be read by a message any more. Under sequence parallelism all of
  /// these but up, act, heads and qkv are the rank's rows: the weight part gathers the gradients of branches once more,
  /// and the outputs of norms.
  void backward_input(LayerCall<P> const& c, View2<S> y, View2<S> d);
  /// Reads no weights, only the places of their gradients.
  void backward_weight(LayerCall<P> const& c, View2<S> y);

  /// RoutedExperts::take_counts of a layer with experts; else empty.
  std::vector<std::int64_t> take_counts();

private:
  parallel::TensorParallel* tp_;
  std::vector<std::unique_ptr<SubLayer<P>>> sublayers_;
};

}  // namespace p3d::model
