// SPDX-License-Identifier: Apache-2.0
#pragma once
// The routed experts of a layer (Shazeer et al., arXiv 1701.06538; Fedus et al., arXiv 2101.03961): a router chooses
// top_k experts for each token, rows travel to the ranks that hold them (parallel/experts.hpp), and what comes back is
// added up. y[t] = sum over the chosen experts e of gate(t, e) expert_e(x[t]).
//
// Costs of a rank with n tokens of width h, balanced, with k choices, experts of width f on etp ranks: 6 n k h f etp /
// etp FLOPs forward (SwiGLU), 2 n h experts for the router; messages: parallel/experts.hpp. No token is dropped: where
// more rows come than a rank has room for (model.moe.buffer_factor) the exchange goes through several passes, and
// backward brings the rows once more.

#include <p3d/kernels/common.hpp>
#include <p3d/kernels/routing.hpp>
#include <p3d/model/activation.hpp>
#include <p3d/model/activations.hpp>
#include <p3d/model/expert_exchange.hpp>
#include <p3d/model/weights.hpp>
#include <p3d/parallel/linear.hpp>

#include <functional>
#include <span>

namespace p3d::model {

/// A kind of pass of forward says whether choices of experts count, and what is kept for backward: `again` is a pass of
/// training, remade. `decoding`: rows are the newest tokens of texts, not samples, so that no expert has a capacity.
enum class RoutePass { evaluation, training, again, decoding };
inline bool trains(RoutePass kind) { return kind == RoutePass::training || kind == RoutePass::again; }

template <class P>
class RoutedExperts {
public:
  using S = typename P::Storage;
  using A = typename P::Accumulate;
  RoutedExperts(config::Config const& config, int layer);

  /// Work that is done while rows travel; it does not touch them.
  using Meanwhile = std::function<void()>;

  /// out (+)= the experts' outputs for x [n, hidden], the rank's rows. `meanwhile`, which may write out, is done while
  /// the rows are on their way to the experts.
  void forward(device::ExecSpace const& exec, MoeWeights<P> const& w, kernels::TokenRows const& rows, RoutePass kind,
               View2<S const> x, MoeActivations<P> const& saved, MoeScratch<P> const& scratch, kernels::Store store,
               View2<S> out, Meanwhile const& meanwhile);
  /// Makes again what backward needs of forward.
  void remake(device::ExecSpace const& exec, MoeWeights<P> const& w, kernels::TokenRows const& rows, View2<S const> x,
              MoeActivations<P> const& saved, MoeScratch<P> const& scratch, Meanwhile const& meanwhile);
  /// dx = the gradient of x, of dy [n, hidden], the gradient of out; weight gradients add up. Those of the first
  /// linears are added while the gradients of rows travel back.
  void backward(device::ExecSpace const& exec, MoeWeights<P> const& w, kernels::TokenRows const& rows, View2<S const> x,
                MoeActivations<P> const& saved, MoeScratch<P> const& scratch, View2<S const> dy, View2<S> dx);

  /// How often this rank's tokens chose each expert since the last call, in training: what a capacity drops, too.
  std::vector<std::int64_t> take_counts();

private:
  void route(device::ExecSpace const& exec, MoeWeights<P> const& w, kernels::TokenRows const& rows, RoutePass kind,
             View2<S const> x, MoeActivations<P> const& a, MoeScratch<P> const& t);
  /// The gradients of the loss of balance by the scores of each expert, for the samples that have rows here.
  void balance(device::ExecSpace const& exec, MoeWeights<P> const& w, kernels::TokenRows const& rows,
               MoeActivations<P> const& a, MoeScratch<P> const& t) const;
  /// Drops what is beyond an expert's capacity in each sample: in the order of its tokens, whichever ranks have them.
  /// `chosen`: count() of all choices here. Returns the choices that remain.
  View2<int> drop(device::ExecSpace const& exec, kernels::TokenRows const& rows,
                  std::vector<std::int64_t> const& chosen, MoeActivations<P> const& a, MoeScratch<P> const& t) const;
  /// How often the tokens here chose each expert, by sample [samples x experts].
  std::vector<std::int64_t> count(device::ExecSpace const& exec, kernels::TokenRows const& rows,
                                  View2<int const> choice, MoeScratch<P> const& t) const;
  /// Rows and gates of a pass, and the first linears: a.x, a.row_gates, a.up.
  void bring(device::ExecSpace const& exec, MoeWeights<P> const& w, int pass, Turn turn, View2<S const> x,
             MoeActivations<P> const& a, MoeScratch<P> const& t, Meanwhile const& meanwhile) const;
  /// The linear of the router: a.logits.
  void project(device::ExecSpace const& exec, MoeWeights<P> const& w, View2<S const> x,
               MoeActivations<P> const& a) const;
  /// The first linears of the rows of a pass: a.up.
  void expand(device::ExecSpace const& exec, MoeWeights<P> const& w, std::span<std::int64_t const> offsets,
              View2<S const> rows, MoeScratch<P> const& t, View2<S> up) const;
  /// Where the rows of each of the rank's experts begin, as kernels of biases read it; empty without biases.
  View1<int const> bias_offsets(device::ExecSpace const& exec, std::span<std::int64_t const> offsets,
                                MoeScratch<P> const& t) const;
  /// True on the rank that adds the bias of the last linear, of those that each have a part of an expert.
  bool adds_down_bias(MoeScratch<P> const& t) const;
  /// Adds the gradients of the biases of experts, and what the bias of the last linear adds to those of gates.
  void bias_backward(device::ExecSpace const& exec, MoeWeights<P> const& w, View1<int const> offsets,
                     View1<A const> gates, View2<S const> dout, MoeScratch<P> const& t, View1<A> d_gates) const;
  void activate(device::ExecSpace const& exec, View2<S const> up, View2<S> act) const;

  int layer_;
  MoeSizes sizes_;
  ExpertExchange<P> exchange_;
  kernels::Routing routing_;
  base::RandomKey jitter_key_{};
  double jitter_ = 0.0, aux_ = 0.0, z_ = 0.0, capacity_ = 0.0;
  bool global_;  ///< the loss of balance is of the global batch
  ActivationFunction activation_;
  bool gated_;
  bool biased_;  ///< the linears of the router and of experts have biases
  std::vector<std::int64_t> counts_;
};

/// The gate of shared experts (Qwen-MoE): their output times sigmoid(x . w), which like the gates of routed ones
/// multiplies what goes into their last linear. Every rank of tp has the gates of all N tokens.
template <class P>
struct SharedGate {
  using S = typename P::Storage;
  /// saved.shared_gates = sigmoid(x w^T), x [N, hidden].
  static void forward(device::ExecSpace const& exec, MoeWeights<P> const& w, View2<S const> x,
                      MoeActivations<P> const& saved);
  /// act and dact [N, local ffn] before the gate: both are multiplied by it. dx += the gradient of the rank's own rows
  /// `x` [n, hidden]; weight gradients add up. One all-reduce of N numbers over tp.
  static void backward(parallel::TensorParallel& tp, MoeWeights<P> const& w, View2<S const> x,
                       MoeActivations<P> const& saved, MoeScratch<P> const& scratch, View2<S> act, View2<S> dact,
                       View2<S> dx);
};

}  // namespace p3d::model
