// SPDX-License-Identifier: Apache-2.0
#pragma once
// For tests and small models: looks into a trainer, and makes it do what training alone never does. Nothing here is
// called by a run.

#include <p3d/model/route_log.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace p3d::engine {

struct RankContext;
template <class P>
class RankMemory;
template <class P>
class StepEnd;

/// The inspection of one trainer, which owns it (Trainer::inspection). P: a policy of device/precision.hpp.
template <class P>
class Inspection {
public:
  Inspection(RankContext& rank, RankMemory<P>& memory, StepEnd<P>& end);

  /// A whole parameter, on every rank. Collective.
  std::vector<double> gather_value(std::string const& name);
  /// The whole gradient of a parameter in the last step, before clipping, on every rank. It must have been kept.
  /// Collective.
  std::vector<double> gather_gradient(std::string const& name);
  /// Says whether the gradients of the following steps stay after the update, for gather_gradient. Costs a pass over
  /// them.
  void keep_gradients(bool keep);
  /// In the next step one element of the gradient of that parameter becomes infinite, on one of the ranks that sum it,
  /// before they do.
  void spoil_gradient(std::string const& name);
  /// Spoils the gradient, if it is asked for and among parameters [first, last) of a stage, which are about to be
  /// reduced.
  void spoil(int stage, std::size_t first, std::size_t last);

  /// From now on the choices of experts of this rank's tokens in training are added to `log`. Null: off, as at first.
  void record_routes(model::RouteLog* log);
  /// From now on the choices are taken from `log`, in place of those of the router, whose scores still make the gates.
  /// Null: off, as at first. It must live as long as it is used.
  void replay_routes(model::RouteLog const* log);
  /// Since replay_routes(): tokens (of a layer each) of all ranks whose own choice was of other experts. Collective.
  std::int64_t flipped_routes();

  /// Bytes that this rank has sent for attention to others of cp since the start.
  std::int64_t context_bytes() const;
  /// Bytes of activations and scratch that this rank has taken from its arena, at their highest.
  std::size_t activation_high_water() const;
  /// Bytes of that arena.
  std::size_t activation_capacity() const;

private:
  std::vector<double> gather(std::string const& name, bool gradient);
  void tap_routes();

  RankContext* rank_;
  RankMemory<P>* memory_;
  StepEnd<P>* end_;
  std::string spoilt_;  ///< the parameter of spoil_gradient(), until it is spoilt
  model::RouteTap routes_;
};

}  // namespace p3d::engine
