// SPDX-License-Identifier: Apache-2.0
// Routed experts: the router, the losses that balance it, capacities, and the passes in which rows come to the rank's
// experts and go back. Each pass brings at most MoeSizes::most_rows rows; with one pass what it brought is still there
// in backward, with several backward brings it again.
#include <p3d/model/moe.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/expert_bias.hpp>
#include <p3d/kernels/expert_rows.hpp>
#include <p3d/parallel/expert_linear.hpp>
#include <p3d/parallel/rows.hpp>

#include "activation.hpp"
#include "first_rows.hpp"

#include <fmt/format.h>

#include <cmath>
#include <type_traits>
#include <utility>

namespace p3d::model {

using device::ExecSpace;
using kernels::Store;
using kernels::TokenRows;
using layout::ExpertDispatch;
using parallel::Block;
using detail::as_rows;
using detail::first;
using detail::first_rows;

namespace {

void append(std::vector<comm::Request> more, std::vector<comm::Request>& requests) {
  for (auto& request : more) requests.push_back(std::move(request));
}

kernels::SampleRows sample_rows(TokenRows const& rows) { return {rows.seq_len, rows.first_row}; }

}  // namespace

template <class P>
RoutedExperts<P>::RoutedExperts(config::Config const& c, int layer)
    : layer_(layer),
      sizes_(layout::layer_sizes(layout::block_sizes(c), c, layer).moe),
      exchange_(sizes_, static_cast<int>(c.model.moe.top_k)),
      activation_(c.model),
      gated_(c.model.gated()),
      biased_(c.model.moe.bias) {
  auto const& m = c.model.moe;
  routing_.experts = static_cast<int>(m.experts);
  routing_.top_k = static_cast<int>(m.top_k);
  routing_.score = m.score == config::RouterScore::sigmoid ? kernels::Score::sigmoid : kernels::Score::softmax;
  routing_.groups = m.grouped() ? static_cast<int>(m.groups) : 1;
  routing_.group_top_k = m.grouped() ? static_cast<int>(m.group_top_k) : 1;
  routing_.normalize = m.normalize;
  routing_.scale = m.scale;
  kernels::require_valid(routing_);
  jitter_ = m.jitter;
  jitter_key_ = base::random_key(c.run.seed, fmt::format("moe.jitter.layers.{}", layer));
  aux_ = m.aux_loss == config::AuxLoss::none ? 0.0 : m.aux_coefficient;
  z_ = m.z_coefficient;
  capacity_ = m.capacity_factor;
  global_ = m.aux_loss == config::AuxLoss::global;
  counts_.resize(static_cast<std::size_t>(m.experts));
}

template <class P>
void RoutedExperts<P>::route(ExecSpace const& exec, MoeWeights<P> const& w, TokenRows const& rows, RoutePass kind,
                             View2<S const> x, MoeActivations<P> const& a, MoeScratch<P> const& t) {
  auto input = x;
  if (trains(kind) && jitter_ > 0) {
    kernels::jitter_rows<S>(exec, rows, jitter_key_, jitter_, x, t.jittered);
    input = t.jittered;
  }
  project(exec, w, input, a);
  View1<A const> bias;
  if constexpr (std::is_same_v<S, A>) {
    bias = w.bias.value;
  } else if (w.bias.value.extent(0) > 0) {
    kernels::convert<S, A>(exec, View1<S const>(w.bias.value), t.bias);
    bias = t.bias;
  }
  kernels::route_forward<A>(exec, routing_, a.logits, bias, {a.scores, a.lse, a.total}, a.choice, a.gates);
  if (t.routes && t.routes->on() && trains(kind))
    t.routes->template apply<A>(exec, layer_, routing_, rows, kind == RoutePass::again, {a.scores, a.lse, a.total},
                                a.choice, a.gates);
  View2<int const> kept = a.choice;
  std::vector<std::int64_t> chosen;  // by expert, or by sample and expert
  if (capacity_ > 0 && kind != RoutePass::decoding) {
    chosen = count(exec, rows, a.choice, t);
    kept = drop(exec, rows, chosen, a, t);
  }
  auto const sent = exchange_.plan(exec, kept, a, t);
  if (chosen.empty()) chosen = sent;
  if (kind == RoutePass::training)
    for (std::size_t i = 0; i < chosen.size(); ++i) counts_[i % counts_.size()] += chosen[i];
  if (trains(kind) && aux_ > 0) balance(exec, w, rows, a, t);
}

template <class P>
void RoutedExperts<P>::project(ExecSpace const& exec, MoeWeights<P> const& w, View2<S const> x,
                               MoeActivations<P> const& a) const {
  parallel::linear_forward<S, A>(exec, x, w.router.value, a.logits);
  if (biased_) kernels::add_router_bias<S>(exec, w.router_bias.value, a.logits);
}

template <class P>
std::vector<std::int64_t> RoutedExperts<P>::count(ExecSpace const& exec, TokenRows const& rows, View2<int const> choice,
                                                  MoeScratch<P> const& t) const {
  auto const counted = first_rows(t.counts, rows.samples);
  kernels::count_choices(exec, choice, sample_rows(rows), counted);
  auto const host = device::copy_to_host("p3d::model::count", exec, counted);
  return {host.data(), host.data() + host.size()};
}

template <class P>
View2<int> RoutedExperts<P>::drop(ExecSpace const& exec, TokenRows const& rows, std::vector<std::int64_t> const& chosen,
                                  MoeActivations<P> const& a, MoeScratch<P> const& t) const {
  // The tokens before those here are on ranks before this one.
  auto const before = t.sample_ranks.before(chosen);
  auto const start = first_rows(t.counts, rows.samples);
  P3D_REQUIRE(before.size() == start.size(), "every expert has a count of each sample");
  device::copy_from_host<std::int64_t>(exec, before, device::flat(start));
  auto const tokens = static_cast<double>(rows.sample_tokens > 0 ? rows.sample_tokens : rows.seq_len);
  auto const capacity = static_cast<std::int64_t>(std::ceil(capacity_ * tokens * routing_.top_k / routing_.experts));
  kernels::position_in_queue(exec, a.choice, sample_rows(rows), routing_.experts, View2<std::int64_t const>(start),
                             t.position);
  kernels::drop_beyond<A>(exec, t.position, capacity, a.choice, t.kept, a.gates);
  return t.kept;
}

template <class P>
void RoutedExperts<P>::balance(ExecSpace const& exec, MoeWeights<P> const& w, TokenRows const& rows,
                               MoeActivations<P> const& a, MoeScratch<P> const& t) const {
  auto const samples = static_cast<std::size_t>(rows.samples), experts = static_cast<std::size_t>(routing_.experts);
  auto const weights = device::new_host_view(first_rows(a.balance, rows.samples));
  if (global_) {
    // L = E sum_e f_e P_e over the tokens of the global batch, with f of the one before: dL/dp = E f, by the token.
    auto const load = device::copy_to_host("p3d::model::load", exec, w.load.value);
    for (std::size_t s = 0; s < samples; ++s)
      for (std::size_t e = 0; e < experts; ++e)
        weights(s, e) = static_cast<A>(routing_.experts * static_cast<A>(load(e)));
  } else {
    auto counted = count(exec, rows, a.choice, t);
    t.sample_ranks.sum(counted);
    // L = E sum_e f_e P_e with f_e = count / (T k) and P_e = sum over tokens of p / T: dL/dp = E count / (T^2 k).
    auto const tokens = static_cast<double>(rows.sample_tokens > 0 ? rows.sample_tokens : rows.seq_len);
    double const factor = routing_.experts / (tokens * tokens * routing_.top_k);
    for (std::size_t s = 0; s < samples; ++s)
      for (std::size_t e = 0; e < experts; ++e)
        weights(s, e) = static_cast<A>(factor * static_cast<double>(counted[s * experts + e]));
  }
  device::copy_from_host<A>(exec, {weights.data(), weights.size()}, device::flat(first_rows(a.balance, rows.samples)));
}

template <class P>
void RoutedExperts<P>::bring(ExecSpace const& exec, MoeWeights<P> const& w, int pass, Turn turn, View2<S const> x,
                             MoeActivations<P> const& a, MoeScratch<P> const& t, Meanwhile const& meanwhile) const {
  auto const& dispatch = **a.dispatch;
  exchange_.begin(exec, pass, a, t);
  auto requests = exchange_.start_rows(exec, pass, x, a, t);
  append(exchange_.start_gates(exec, pass, a, t), requests);
  if (pass == 0 && meanwhile) meanwhile();
  exchange_.wait(turn, requests);
  exchange_.take_rows(exec, pass, x, a, t, a.x);
  exchange_.take_gates(exec, pass, a, t);
  auto const n = dispatch.rows(pass);
  auto const offsets = dispatch.offsets(pass);
  expand(exec, w, offsets, first_rows(a.x, n), t, first_rows(a.up, n));
}

template <class P>
void RoutedExperts<P>::expand(ExecSpace const& exec, MoeWeights<P> const& w, std::span<std::int64_t const> offsets,
                              View2<S const> rows, MoeScratch<P> const& t, View2<S> up) const {
  auto const f = sizes_.ffn;
  auto const of_gate = gated_ ? device::columns(up, 0, f) : View2<S>(),
             of_up = gated_ ? device::columns(up, f, 2 * f) : up;
  if (gated_) parallel::expert_linear<S>(exec, rows, w.gate.value, Block::as_it_is, offsets, Store::overwrite, of_gate);
  parallel::expert_linear<S>(exec, rows, w.up.value, Block::as_it_is, offsets, Store::overwrite, of_up);
  if (!biased_) return;
  auto const at = bias_offsets(exec, offsets, t);
  if (gated_) kernels::add_expert_bias<S>(exec, at, w.gate_bias.value, {}, of_gate);
  kernels::add_expert_bias<S>(exec, at, w.up_bias.value, {}, of_up);
}

template <class P>
View1<int const> RoutedExperts<P>::bias_offsets(ExecSpace const& exec, std::span<std::int64_t const> offsets,
                                                MoeScratch<P> const& t) const {
  if (!biased_) return {};
  std::vector<int> const begins(offsets.begin(), offsets.end());
  auto const out = first(t.offsets, static_cast<std::int64_t>(begins.size()));
  device::copy_from_host<int>(exec, begins, out);
  return out;
}

template <class P>
bool RoutedExperts<P>::adds_down_bias(MoeScratch<P> const& t) const {
  return biased_ && (!t.experts || t.experts->copy() == 0);
}

template <class P>
void RoutedExperts<P>::bias_backward(ExecSpace const& exec, MoeWeights<P> const& w, View1<int const> offsets,
                                     View1<A const> gates, View2<S const> dout, MoeScratch<P> const& t,
                                     View1<A> d_gates) const {
  using G = typename P::Gradient;
  if (adds_down_bias(t)) kernels::add_bias_gates_backward<S>(exec, offsets, w.down_bias.value, dout, d_gates);
  if (biased_) kernels::add_expert_bias_backward<S, G>(exec, offsets, dout, gates, w.down_bias.grad);
}

template <class P>
void RoutedExperts<P>::activate(ExecSpace const& exec, View2<S const> up, View2<S> act) const {
  activation_forward<S>(activation_, exec, up, act);
}

template <class P>
void RoutedExperts<P>::forward(ExecSpace const& exec, MoeWeights<P> const& w, TokenRows const& rows, RoutePass kind,
                               View2<S const> x, MoeActivations<P> const& a, MoeScratch<P> const& t, Store store,
                               View2<S> out, Meanwhile const& meanwhile) {
  route(exec, w, rows, kind, x, a, t);
  auto const& dispatch = **a.dispatch;
  for (int pass = 0; pass < dispatch.passes(); ++pass) {
    auto const turn = pass == 0 ? Turn::given : Turn::kept;
    bring(exec, w, pass, turn, x, a, t, meanwhile);
    auto const n = dispatch.rows(pass);
    auto const act = first_rows(t.act, n), result = first_rows(t.rows, n);
    activate(exec, first_rows(a.up, n), act);
    kernels::gate_rows<S>(exec, first(a.row_gates, n), act);
    parallel::expert_linear<S>(exec, act, w.down.value, Block::transposed, dispatch.offsets(pass), Store::overwrite,
                               result);
    if (adds_down_bias(t))
      kernels::add_expert_bias<S>(exec, bias_offsets(exec, dispatch.offsets(pass), t), w.down_bias.value,
                                  first(a.row_gates, n), result);
    auto requests = exchange_.start_back(exec, pass, result, a, t);
    exchange_.wait(turn, requests);
  }
  exchange_.sum_rows(exec, t.rows, a, t, store, out);
}

template <class P>
void RoutedExperts<P>::remake(ExecSpace const& exec, MoeWeights<P> const& w, TokenRows const& rows, View2<S const> x,
                              MoeActivations<P> const& a, MoeScratch<P> const& t, Meanwhile const& meanwhile) {
  route(exec, w, rows, RoutePass::again, x, a, t);
  if ((*a.dispatch)->passes() == 1) return bring(exec, w, 0, Turn::given, x, a, t, meanwhile);
  // Backward brings the rows, pass by pass. The strand gives its turn away here nevertheless, as on ranks with one
  // pass.
  if (meanwhile) meanwhile();
  typename ExpertExchange<P>::Requests none;
  exchange_.wait(Turn::given, none);
}

template <class P>
void RoutedExperts<P>::backward(ExecSpace const& exec, MoeWeights<P> const& w, TokenRows const& rows, View2<S const> x,
                                MoeActivations<P> const& a, MoeScratch<P> const& t, View2<S const> dy, View2<S> dx) {
  using G = typename P::Gradient;
  auto const& dispatch = **a.dispatch;
  auto const f = sizes_.ffn;
  for (int pass = 0; pass < dispatch.passes(); ++pass) {
    auto const turn = pass == 0 ? Turn::given : Turn::kept;
    if (dispatch.passes() > 1)
      bring(exec, w, pass, Turn::kept, x, a, t, {});
    else
      exchange_.begin(exec, pass, a, t);
    auto const n = dispatch.rows(pass);
    auto const offsets = dispatch.offsets(pass);
    auto const dout = first_rows(t.rows, n), act = first_rows(t.act, n), dact = first_rows(t.dact, n),
               up = first_rows(a.up, n), dup = first_rows(t.dup, n);
    View2<S const> const rows_of_experts = first_rows(a.x, n);
    auto requests = exchange_.start_rows(exec, pass, dy, a, t);
    exchange_.wait(turn, requests);
    exchange_.take_rows(exec, pass, dy, a, t, t.rows);
    activate(exec, up, act);
    parallel::expert_linear<S>(exec, dout, w.down.value, Block::as_it_is, offsets, Store::overwrite, dact);
    auto const d_gates = first(t.row_gates, n);
    auto const at = bias_offsets(exec, offsets, t);
    kernels::gate_rows_backward<S>(exec, first(a.row_gates, n), act, dact, d_gates);
    bias_backward(exec, w, at, first(a.row_gates, n), dout, t, d_gates);
    parallel::expert_linear_weight<S, G>(exec, dout, act, offsets, w.down.grad);
    auto const d_gate = gated_ ? device::columns(dup, 0, f) : View2<S>(),
               d_up = gated_ ? device::columns(dup, f, 2 * f) : dup;
    activation_backward<S>(activation_, exec, up, dact, dup);
    if (gated_)
      parallel::expert_linear<S>(exec, d_gate, w.gate.value, Block::transposed, offsets, Store::overwrite, dout);
    parallel::expert_linear<S>(exec, d_up, w.up.value, Block::transposed, offsets,
                               gated_ ? Store::add : Store::overwrite, dout);
    requests = exchange_.start_back(exec, pass, dout, a, t);
    append(exchange_.start_gates_back(exec, pass, d_gates, a, t), requests);
    if (gated_) parallel::expert_linear_weight<S, G>(exec, rows_of_experts, d_gate, offsets, w.gate.grad);
    parallel::expert_linear_weight<S, G>(exec, rows_of_experts, d_up, offsets, w.up.grad);
    if (biased_ && gated_) kernels::add_expert_bias_backward<S, G>(exec, at, d_gate, {}, w.gate_bias.grad);
    if (biased_) kernels::add_expert_bias_backward<S, G>(exec, at, d_up, {}, w.up_bias.grad);
    exchange_.wait(turn, requests);
  }
  exchange_.sum_rows(exec, t.rows, a, t, Store::overwrite, dx);
  exchange_.sum_gates(exec, t.row_gates, a, t, t.d_gates);

  // The router. Its auxiliary losses are means over the global batch.
  View2<A const> balance;
  if (aux_ > 0) {
    kernels::scale<A>(exec, static_cast<A>(aux_ * (global_ ? t.scales.token : t.scales.sample)),
                      device::flat(a.balance));
    balance = a.balance;
  }
  kernels::route_backward<A>(exec, routing_, a.logits, {a.scores, a.lse, a.total}, a.choice, t.d_gates,
                             sample_rows(rows), balance, z_ * t.scales.token, t.d_logits);
  if (biased_) kernels::add_router_bias_backward<A, G>(exec, t.d_logits, w.router_bias.grad);
  View2<S> d_logits;
  if constexpr (std::is_same_v<S, A>) {
    d_logits = t.d_logits;
  } else {
    kernels::convert<A, S>(exec, View1<A const>(device::flat(t.d_logits)), device::flat(t.narrow_logits));
    d_logits = t.narrow_logits;
  }
  auto input = x;
  if (jitter_ > 0) {
    kernels::jitter_rows<S>(exec, rows, jitter_key_, jitter_, x, t.jittered);
    input = t.jittered;
  }
  parallel::linear_backward_weight<S, G>(exec, d_logits, input, w.router.grad);
  if (jitter_ > 0) {
    parallel::linear_backward_input<S>(exec, d_logits, w.router.value, Store::overwrite, t.jittered);
    kernels::jitter_rows<S>(exec, rows, jitter_key_, jitter_, t.jittered, t.jittered);
    kernels::add<S>(exec, View1<S const>(device::flat(t.jittered)), device::flat(dx));
  } else {
    parallel::linear_backward_input<S>(exec, d_logits, w.router.value, Store::add, dx);
  }
}

template <class P>
std::vector<std::int64_t> RoutedExperts<P>::take_counts() {
  return std::exchange(counts_, std::vector<std::int64_t>(counts_.size()));
}

template <class P>
void SharedGate<P>::forward(ExecSpace const& exec, MoeWeights<P> const& w, View2<S const> x,
                            MoeActivations<P> const& a) {
  using A = typename P::Accumulate;
  parallel::linear_forward<S, A>(exec, x, w.shared_gate.value, as_rows(a.shared_gates));
  kernels::sigmoid_in_place<A>(exec, a.shared_gates);
}

template <class P>
void SharedGate<P>::backward(parallel::TensorParallel& tp, MoeWeights<P> const& w, View2<S const> x,
                             MoeActivations<P> const& a, MoeScratch<P> const& t, View2<S> act, View2<S> dact,
                             View2<S> dx) {
  using A = typename P::Accumulate;
  using G = typename P::Gradient;
  auto& exec = tp.exec;
  kernels::gate_rows_backward<S>(exec, a.shared_gates, act, dact, t.d_shared);
  parallel::sum_over<A>(tp, t.d_shared);
  kernels::sigmoid_backward<A>(exec, a.shared_gates, t.d_shared);
  View2<S> d;
  if constexpr (std::is_same_v<S, A>) {
    d = as_rows(t.d_shared);
  } else {
    kernels::convert<A, S>(exec, View1<A const>(t.d_shared), t.narrow_shared);
    d = as_rows(t.narrow_shared);
  }
  View2<S const> const own = parallel::own_rows(tp, d);
  parallel::linear_backward_weight<S, G>(exec, own, x, w.shared_gate.grad);
  parallel::linear_backward_input<S>(exec, own, w.shared_gate.value, Store::add, dx);
}

#define P3D_INSTANTIATE(P)         \
  template class RoutedExperts<P>; \
  template struct SharedGate<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
