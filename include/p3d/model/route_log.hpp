// SPDX-License-Identifier: Apache-2.0
#pragma once
// A log, for tests, of the experts that a run's tokens chose, to be chosen again by another run. Rounding decides
// between experts whose scores nearly tie, so that in fp32 two layouts may send a token to different ones; losses of
// the two can be compared where the choices are the same.

#include <p3d/kernels/routing.hpp>

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

namespace p3d::model {

/// The experts of each token of each layer, in their order. A layout knows its own tokens by these numbers.
struct RouteLog {
  struct Token {
    std::int64_t layer = 0;
    std::int64_t sample = 0;    ///< global number
    std::int64_t position = 0;  ///< in the sample
    auto operator<=>(Token const&) const = default;
  };
  std::map<Token, std::vector<int>> routes;
};

/// Records or replaces the choices of a rank's tokens in training. Nothing is done without a log.
struct RouteTap {
  RouteLog* record = nullptr;        ///< gets the choices
  RouteLog const* replay = nullptr;  ///< has the choices to take instead, for all tokens that come
  std::int64_t flipped = 0;          ///< tokens of a layer that would have chosen other experts than `replay` has

  bool on() const { return record != nullptr || replay != nullptr; }
  /// After kernels::route_forward of `rows`, which left saved, choice and gates: writes the latter two where choices
  /// are replayed. `again`: the tokens have come before. Copies all to the host. Throws base::Error where `replay`
  /// lacks a token.
  template <class A>
  void apply(kernels::ExecSpace const& exec, std::int64_t layer, kernels::Routing const& routing,
             kernels::TokenRows const& rows, bool again, kernels::RouterScores<A> const& saved,
             kernels::View2<int> choice, kernels::View2<A> gates);
};

}  // namespace p3d::model
