// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/route_log.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>

#include <algorithm>

namespace p3d::model {

namespace {

bool same_experts(std::vector<int> a, std::vector<int> b) {
  std::ranges::sort(a);
  std::ranges::sort(b);
  return a == b;
}

/// Of the chosen experts, in their order: as kernels::route_forward.
template <class A, class Scores>
std::vector<A> gates_of(kernels::Routing const& routing, std::vector<int> const& route, Scores const& scores) {
  A sum = 0;
  for (int e : route) sum += scores(e);
  auto const factor = static_cast<A>(routing.scale) / (routing.normalize ? sum + static_cast<A>(1e-20) : A{1});
  std::vector<A> out;
  for (int e : route) out.push_back(factor * scores(e));
  return out;
}

}  // namespace

template <class A>
void RouteTap::apply(kernels::ExecSpace const& exec, std::int64_t layer, kernels::Routing const& routing,
                     kernels::TokenRows const& rows, bool again, kernels::RouterScores<A> const& saved,
                     kernels::View2<int> choice, kernels::View2<A> gates) {
  auto const scores = device::copy_to_host("p3d::model::routes", exec, saved.scores);
  auto const chosen = device::copy_to_host("p3d::model::routes", exec, choice);
  auto const new_choice = device::new_host_view(choice);
  auto const new_gates = device::new_host_view(gates);
  for (std::size_t row = 0; row < choice.extent(0); ++row) {
    auto const number = static_cast<std::int64_t>(row);
    RouteLog::Token const token{layer, rows.first_sample + (rows.first_row + number) / rows.seq_len,
                                rows.index(number)};
    std::vector<int> route;
    for (int k = 0; k < routing.top_k; ++k) route.push_back(chosen(row, static_cast<std::size_t>(k)));
    if (record) record->routes[token] = route;
    if (!replay) continue;
    auto const found = replay->routes.find(token);
    P3D_REQUIRE(found != replay->routes.end(), "the log has the routes of all tokens");
    if (!again && !same_experts(route, found->second)) ++flipped;
    auto const of_token = gates_of<A>(routing, found->second, Kokkos::subview(scores, row, Kokkos::ALL));
    for (std::size_t k = 0; k < of_token.size(); ++k) {
      new_choice(row, k) = found->second[k];
      new_gates(row, k) = of_token[k];
    }
  }
  if (!replay) return;
  device::copy_from_host<int>(exec, {new_choice.data(), new_choice.size()}, device::flat(choice));
  device::copy_from_host<A>(exec, {new_gates.data(), new_gates.size()}, device::flat(gates));
}

#define P3D_INSTANTIATE(A)                                                                           \
  template void RouteTap::apply<A>(kernels::ExecSpace const&, std::int64_t, kernels::Routing const&, \
                                   kernels::TokenRows const&, bool, kernels::RouterScores<A> const&, \
                                   kernels::View2<int>, kernels::View2<A>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
