// SPDX-License-Identifier: Apache-2.0
#pragma once
// One transformer layer, pre-norm (GPT-2, Llama): x_mid = x + attention(norm1(x)); y = x_mid + mlp(norm2(x_mid)).
// Forward and backward are written out; what backward needs is left in BlockActivations.

#include <p3d/config/config.hpp>
#include <p3d/kernels/attention.hpp>
#include <p3d/kernels/cached_attention.hpp>
#include <p3d/kernels/common.hpp>
#include <p3d/kernels/norm.hpp>
#include <p3d/kernels/rope.hpp>
#include <p3d/model/activations.hpp>
#include <p3d/model/moe.hpp>
#include <p3d/model/weights.hpp>
#include <p3d/parallel/rows.hpp>

namespace p3d::model {

/// A norm of either kind.
template <class P>
class NormLayer {
public:
  using S = typename P::Storage;
  explicit NormLayer(config::Config const& config);
  using G = typename P::Gradient;
  void forward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> x, NormActivations<P> const& out) const;
  /// x becomes the sum that the norm reads.
  void forward(ExecSpace const& exec, NormWeights<P> const& w, kernels::ResidualSum<S> const& sum, View2<S> x,
               NormActivations<P> const& out) const;
  /// dx (+)= ; the weight gradients add up.
  void backward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> dy, View2<S const> x,
                NormActivations<P> const& saved, kernels::Store store, View2<S> dx) const;
  /// The same, with what kernels::layernorm_backward does for the branches and leaves in `sums`.
  void backward(ExecSpace const& exec, NormWeights<P> const& w, View2<S const> dy, View2<S const> x,
                NormActivations<P> const& saved, kernels::Store store, View2<S> dx,
                kernels::NormBranches<S, G> const& branches, kernels::ColumnSums<S, G>& sums) const;

private:
  bool layernorm_;
  double eps_;
};

/// What a layer keeps of texts that grow: keys and values of each local key/value head of each text.
template <class P>
struct KeyValueCache {
  kernels::CachedTexts texts;
  View2<typename P::Storage> keys, values;  ///< as kernels::store_keys_values fills them
};

/// One layer of the model on one rank. It holds no weights: each call is given the layer's. x, y and their gradients
/// have n rows (BlockSizes); `rows` are those of the whole microbatch.
///
/// Over tp forward makes two sums of N x hidden, and so does backward. Each is an all-reduce; under sequence
/// parallelism it is a reduce-scatter and an all-gather (before forward's column-parallel linears, and of the gradients
/// of row-parallel ones), and backward gathers the inputs of column-parallel linears once more: only the rank's rows of
/// them are kept.
template <class P>
class TransformerBlock {
public:
  using S = typename P::Storage;
  using G = typename P::Gradient;
  TransformerBlock(config::Config const& config, parallel::TensorParallel& tp, int layer);

  /// y = layer(x); y may be x. Two sums over tp.
  void forward(BlockWeights<P> const& w, kernels::TokenRows const& rows, RoutePass kind, View2<S const> x,
               BlockActivations<P> const& saved, BlockScratch<P> const& scratch, View2<S> y);
  /// The same for new tokens of texts whose earlier ones lie in `cache`: they join it, and attend to all of their text.
  void forward_cached(BlockWeights<P> const& w, kernels::TokenRows const& rows, KeyValueCache<P> const& cache,
                      View2<S const> x, BlockActivations<P> const& saved, BlockScratch<P> const& scratch, View2<S> y);
  /// The forward of training again, up to the output of the activation function: what backward needs, from x alone.
  /// The same bits: the same kernels on the same numbers; dropout follows from its counters. One sum over tp, none
  /// where `mid_is_there` (and both all-gathers).
  void remake(BlockWeights<P> const& w, kernels::TokenRows const& rows, View2<S const> x,
              BlockActivations<P> const& saved, BlockScratch<P> const& scratch, bool mid_is_there);
  /// d enters as the gradient of y and leaves as the gradient of x; weight gradients add up. Two sums over tp, each
  /// overlapped with a weight-gradient GEMM, and so are the inputs gathered once more. `discarded`: outputs of
  /// operations that are remade just before their use; of a full layer remake() has brought everything back.
  void backward(BlockWeights<P> const& w, kernels::TokenRows const& rows, View2<S const> x,
                layout::LayerRecompute const& discarded, BlockActivations<P> const& saved,
                BlockScratch<P> const& scratch, View2<S> d);

  /// The same in two parts (arXiv 2401.10241, section 2). The input part turns d; of the weight gradients it adds the
  /// norms', which fall out of its sums. The weight part adds the others, those of the four linears and their biases.
  ///
  /// What the weight part needs costs no memory: each gradient lies where an activation is dead by then.
  ///   gradient of   dead activation        how it gets there
  ///   mlp branch    y (the layer's output) a copy (or the dropout mask's result)
  ///   up            up                     the views of slot and scratch change places
  ///   attn branch   mid                    as for the mlp branch
  ///   qkv           qkv                    as for up
  /// With norm1.y, heads, norm2.y and act, which the weight part multiplies them with, these are alive until it ends.
  /// y must not be read by a message any more. Under sequence parallelism all of these but up, act, heads and qkv are
  /// the rank's rows: the weight part gathers the two gradients once more, and the two inputs.
  void backward_input(BlockWeights<P> const& w, kernels::TokenRows const& rows, View2<S const> x, View2<S> y,
                      layout::LayerRecompute const& discarded, BlockActivations<P>& saved, BlockScratch<P>& scratch,
                      View2<S> d);
  /// Reads no weights, only the places of their gradients.
  void backward_weight(BlockWeights<P> const& w, View2<S const> y, BlockActivations<P> const& saved,
                       BlockScratch<P> const& scratch);

  /// Of a layer with experts: RoutedExperts::take_counts; else empty.
  std::vector<std::int64_t> take_counts() { return experts_ ? experts_->take_counts() : std::vector<std::int64_t>(); }

private:
  typename parallel::ContextAttention<S>::Call attention_call(kernels::TokenRows const& rows, bool training) const;
  /// The whole memory of a.qkv, as attention keeps it.
  View1<S> kept_qkv(BlockActivations<P> const& a) const;
  void attend_cached(kernels::TokenRows const& rows, BlockActivations<P> const& saved, BlockScratch<P> const& scratch,
                     KeyValueCache<P> const& cache);
  /// Queries and keys, by their positions.
  void rotate(kernels::TokenRows const& rows, kernels::Rotation direction, View2<S> qkv) const;
  void activate(BlockWeights<P> const& w, BlockActivations<P> const& saved);
  /// x -> norm2 of x_mid, without the sum over tp and what is before the norm where `mid_is_there`.
  void forward_first(BlockWeights<P> const& w, kernels::TokenRows const& rows, bool training, View2<S const> x,
                     BlockActivations<P> const& saved, BlockScratch<P> const& scratch, bool mid_is_there,
                     KeyValueCache<P> const* cache = nullptr);
  /// norm2 of x_mid -> y.
  void forward_second(BlockWeights<P> const& w, kernels::TokenRows const& rows, RoutePass kind,
                      BlockActivations<P> const& saved, BlockScratch<P> const& scratch, View2<S> y);
  /// Whether there is a feed-forward layer that every token goes through.
  bool has_mlp() const { return sizes_.ffn > 0; }
  /// Buffers that all layers share are as wide as the widest one's.
  View2<S> as_up(View2<S> v) const { return View2<S>(v.data(), v.extent(0), sizes_.up()); }
  View2<S> as_act(View2<S> v) const { return View2<S>(v.data(), v.extent(0), sizes_.ffn); }
  /// norm2's output -> that of the activation function of the layer that every token goes through, if there is one.
  void forward_up(BlockWeights<P> const& w, BlockActivations<P> const& saved, BlockScratch<P> const& scratch);
  /// And from there on to scratch.branch.
  void forward_down(BlockWeights<P> const& w, BlockActivations<P> const& saved, BlockScratch<P> const& scratch);
  /// Both parts of the backward of a half layer: x -> x_mid -> y. `keep` empty: the weight gradients are added on the
  /// way, where they hide a message; else the branch's gradient is left in `keep`, and that of the inner linear in
  /// scratch. Gradients of vectors wait in `sums`. Returns the gradient of the attention branch: d, or `keep_next`, or
  /// in scratch.
  View2<S> backward_mlp(BlockWeights<P> const& w, kernels::TokenRows const& rows,
                        layout::LayerRecompute const& discarded, BlockActivations<P> const& saved,
                        BlockScratch<P> const& scratch, View2<S> keep, View2<S> keep_next,
                        kernels::ColumnSums<S, G>& sums, View2<S> d);
  /// `branch`: what backward_mlp returned. `weights`: with the weight gradients.
  void backward_attention(BlockWeights<P> const& w, kernels::TokenRows const& rows, View2<S const> x,
                          layout::LayerRecompute const& discarded, BlockActivations<P> const& saved,
                          BlockScratch<P> const& scratch, View2<S const> branch, bool weights,
                          kernels::ColumnSums<S, G>& sums, View2<S> d);
  /// Where the gradient of a residual branch behind its dropout goes, the rank's rows: `keep`, `scratch`, or nowhere:
  /// it is that of the sum.
  View2<S> branch_place(kernels::Dropout const& dropout, View2<S> keep, View2<S> scratch) const;
  /// That gradient of the sum d's branch.
  View2<S> branch_gradient(kernels::TokenRows const& rows, View2<S> d, kernels::Dropout const& dropout, View2<S> keep,
                           View2<S> scratch) const;
  /// The bias gradient that the norm's backward sums from `branch`: `grad`, or none where the norm's gradient comes to
  /// lie in its place; there it is summed at once.
  View1<G> bias_to_sum(View2<S const> branch, View1<G> grad, BlockScratch<P> const& scratch) const;
  /// A norm's output, made again where it was discarded; with `gather` on its way into scratch.
  parallel::WholeRows<S> norm_output(NormWeights<P> const& w, bool discarded, View2<S const> x,
                                     NormActivations<P> const& norm, bool gather, BlockScratch<P> const& scratch) const;

  parallel::TensorParallel* tp_;
  BlockSizes sizes_;
  std::optional<RoutedExperts<P>> experts_;
  std::int64_t window_;
  layout::ContextDivision division_;
  device::Owned1<double> rope_frequencies_;  ///< [head_dim / 2]; empty: no rotary embedding
  NormLayer<P> norm_;
  kernels::Dropout probability_dropout_, attn_dropout_, mlp_dropout_;
};

}  // namespace p3d::model
