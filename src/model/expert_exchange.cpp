// SPDX-License-Identifier: Apache-2.0
// The exchange of rows with the ranks of experts, in its two forms. all_to_all sorts a rank's choices by expert and
// sends a row for each; gather sends every token once to all ranks, which pick the rows of their experts from the
// choices of all. A rank alone copies rows without a message.
#include <p3d/model/expert_exchange.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/strand.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/kernels/expert_rows.hpp>

#include "first_rows.hpp"

#include <algorithm>

namespace p3d::model {

using detail::as_rows;
using detail::first;
using detail::first_rows;
using kernels::Store;

template <class P>
std::vector<std::int64_t> ExpertExchange<P>::plan(ExecSpace const& exec, View2<int const> choices,
                                                  MoeActivations<P> const& a, MoeScratch<P> const& t) const {
  if (sizes_.gathers) return plan_gathered(exec, choices, a, t);
  kernels::sort_by_expert(exec, choices, t.offsets, a.slots, a.place, t.workspace);
  auto const offsets = device::copy_to_host("p3d::model::plan", exec, t.offsets);
  std::vector<std::int64_t> counts;
  for (int e = 0; e < sizes_.experts; ++e) counts.push_back(offsets(e + 1) - offsets(e));
  a.dispatch->emplace(t.experts->plan(counts, static_cast<std::int64_t>(a.x.extent(0))));
  P3D_REQUIRE(!sizes_.alone || (*a.dispatch)->passes() == 1, "a rank alone has room for all of its rows");
  return counts;
}

template <class P>
std::vector<std::int64_t> ExpertExchange<P>::plan_gathered(ExecSpace const& exec, View2<int const> choices,
                                                           MoeActivations<P> const& a, MoeScratch<P> const& t) const {
  auto const host = device::copy_to_host("p3d::model::plan", exec, choices);
  std::vector<int> own(host.data(), host.data() + host.size());
  std::vector<std::int64_t> counts(static_cast<std::size_t>(sizes_.experts));
  for (int e : own) {
    if (e >= 0) ++counts[static_cast<std::size_t>(e)];
  }
  auto all = t.experts->share_choices(own, static_cast<std::int64_t>(t.choices.size()) / sizes_.ranks);
  for (auto& n : all.count) n /= top_k_;
  auto const mine = t.experts->group().experts_of(t.experts->rank());
  for (int& e : all.values) e = e >= mine.begin && e < mine.end ? e - static_cast<int>(mine.begin) : -1;
  device::copy_from_host<int>(exec, all.values, View1<int>(t.choices.data(), t.choices.size()));
  auto const local = static_cast<int>(sizes_.local_experts);
  auto const offsets = first(t.offsets, local + 1);
  kernels::sort_by_expert(exec, t.choices, offsets, a.slots, a.place, t.workspace);
  auto const begins = device::copy_to_host("p3d::model::plan", exec, offsets);
  std::vector<std::int64_t> rows;
  for (int e = 0; e < local; ++e) rows.push_back(begins(e + 1) - begins(e));
  a.dispatch->emplace(layout::ExpertGroup{.experts = local, .ep = 1, .etp = 1, .ep_of = {0}}, 0, std::move(rows),
                      static_cast<std::int64_t>(a.x.extent(0)));
  *a.gathered = std::move(all.count);
  return counts;
}

template <class P>
void ExpertExchange<P>::begin(ExecSpace const& exec, int pass, MoeActivations<P> const& a,
                              MoeScratch<P> const& t) const {
  if (sizes_.alone || sizes_.gathers) return;
  auto const order = (*a.dispatch)->received_order(pass);
  std::vector<int> back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) back[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
  device::copy_from_host<int>(exec, order, t.order);
  device::copy_from_host<int>(exec, back, t.back);
}

template <class P>
typename ExpertExchange<P>::Requests ExpertExchange<P>::start_rows(ExecSpace const& exec, int pass,
                                                                   View2<S const> tokens, MoeActivations<P> const& a,
                                                                   MoeScratch<P> const& t) const {
  if (sizes_.alone) return {};
  if (sizes_.gathers) return t.experts->template start_share<S>(exec, *a.gathered, tokens, t.received);
  auto const own = first_rows(t.own, static_cast<std::int64_t>(a.slots.extent(0)));
  kernels::permute_rows<S>(exec, tokens, a.slots, top_k_, own);
  return t.experts->template start_to_experts<S>(exec, **a.dispatch, pass, own, t.received);
}

template <class P>
void ExpertExchange<P>::take_rows(ExecSpace const& exec, int pass, View2<S const> tokens, MoeActivations<P> const& a,
                                  MoeScratch<P> const& t, View2<S> out) const {
  auto const n = (*a.dispatch)->rows(pass);
  if (sizes_.alone || sizes_.gathers)
    kernels::permute_rows<S>(exec, sizes_.alone ? tokens : View2<S const>(t.received), first(a.slots, n), top_k_,
                             first_rows(out, n));
  else
    kernels::permute_rows<S>(exec, first_rows(t.received, n), first(t.order, n), 1, first_rows(out, n));
}

template <class P>
typename ExpertExchange<P>::Requests ExpertExchange<P>::start_gates(ExecSpace const& exec, int pass,
                                                                    MoeActivations<P> const& a,
                                                                    MoeScratch<P> const& t) const {
  if (sizes_.alone) return {};
  if (sizes_.gathers)
    return t.experts->template start_share<A>(exec, *a.gathered, View2<A const>(a.gates),
                                              View2<A>(t.received_gates.data(), t.received.extent(0), top_k_));
  auto const own = as_rows(first(t.own_gates, static_cast<std::int64_t>(a.slots.extent(0))));
  kernels::permute_rows<A>(exec, as_rows(device::flat(a.gates)), a.slots, 1, own);
  return t.experts->template start_to_experts<A>(exec, **a.dispatch, pass, own, as_rows(t.received_gates));
}

template <class P>
void ExpertExchange<P>::take_gates(ExecSpace const& exec, int pass, MoeActivations<P> const& a,
                                   MoeScratch<P> const& t) const {
  auto const n = (*a.dispatch)->rows(pass);
  auto const out = as_rows(first(a.row_gates, n));
  if (sizes_.alone || sizes_.gathers)
    kernels::permute_rows<A>(exec, as_rows(sizes_.alone ? device::flat(a.gates) : t.received_gates), first(a.slots, n),
                             1, out);
  else
    kernels::permute_rows<A>(exec, as_rows(first(t.received_gates, n)), first(t.order, n), 1, out);
}

template <class P>
typename ExpertExchange<P>::Requests ExpertExchange<P>::start_back(ExecSpace const& exec, int pass, View2<S const> rows,
                                                                   MoeActivations<P> const& a,
                                                                   MoeScratch<P> const& t) const {
  if (sizes_.alone) return {};
  if (sizes_.gathers) {
    kernels::permute_rows_backward<S>(exec, rows, a.place, Store::overwrite, t.partial);
    return t.experts->template start_collect<S>(exec, *a.gathered, View2<S const>(t.partial), t.returned);
  }
  auto const n = (*a.dispatch)->rows(pass);
  kernels::permute_rows<S>(exec, rows, first(t.back, n), 1, first_rows(t.received, n));
  return t.experts->template start_to_tokens<S>(exec, **a.dispatch, pass, View2<S const>(t.received),
                                                static_cast<std::int64_t>(a.slots.extent(0)), t.returned);
}

template <class P>
typename ExpertExchange<P>::Requests ExpertExchange<P>::start_gates_back(ExecSpace const& exec, int pass,
                                                                         View1<A const> gates,
                                                                         MoeActivations<P> const& a,
                                                                         MoeScratch<P> const& t) const {
  if (sizes_.alone) return {};
  if (sizes_.gathers) {
    auto const by_token = [&](View1<A> v) { return View2<A>(v.data(), t.partial.extent(0), top_k_); };
    kernels::sum_copies<A>(exec, gates, a.place, 1, by_token(t.partial_gates));
    return t.experts->template start_collect<A>(exec, *a.gathered, View2<A const>(by_token(t.partial_gates)),
                                                by_token(t.returned_gates));
  }
  auto const n = (*a.dispatch)->rows(pass);
  kernels::permute_rows<A>(exec, as_rows(gates), first(t.back, n), 1, as_rows(first(t.received_gates, n)));
  return t.experts->template start_to_tokens<A>(exec, **a.dispatch, pass, as_rows(t.received_gates),
                                                static_cast<std::int64_t>(a.slots.extent(0)),
                                                as_rows(t.returned_gates));
}

template <class P>
void ExpertExchange<P>::wait(Turn turn, Requests& requests) const {
  if (!sizes_.alone && turn == Turn::given) base::rest();
  comm::wait_all(requests);
}

template <class P>
View2<int> ExpertExchange<P>::places_of_copies(ExecSpace const& exec, MoeActivations<P> const& a,
                                               MoeScratch<P> const& t) const {
  if (sizes_.copies == 1) return a.place;
  kernels::places_of_copies(exec, a.place, sizes_.copies, t.places);
  return t.places;
}

template <class P>
void ExpertExchange<P>::sum_rows(ExecSpace const& exec, View2<S const> rows, MoeActivations<P> const& a,
                                 MoeScratch<P> const& t, Store store, View2<S> out) const {
  if (sizes_.alone) return kernels::permute_rows_backward<S>(exec, rows, a.place, store, out);
  if (sizes_.gathers) {
    kernels::sum_blocks<S>(exec, t.returned, sizes_.ranks, store, out);
    return;
  }
  kernels::permute_rows_backward<S>(exec, t.returned, places_of_copies(exec, a, t), store, out);
}

template <class P>
void ExpertExchange<P>::sum_gates(ExecSpace const& exec, View1<A const> gates, MoeActivations<P> const& a,
                                  MoeScratch<P> const& t, View2<A> out) const {
  if (sizes_.alone) return kernels::sum_copies<A>(exec, gates, a.place, 1, out);
  if (sizes_.gathers)
    return kernels::sum_blocks<A>(exec, View2<A const>(t.returned_gates.data(), t.returned.extent(0), top_k_),
                                  sizes_.ranks, Store::overwrite, out);
  kernels::sum_copies<A>(exec, t.returned_gates, places_of_copies(exec, a, t), sizes_.copies, out);
}

#define P3D_INSTANTIATE(P) template class ExpertExchange<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
