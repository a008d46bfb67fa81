// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameters of one stage on one rank: values and gradients in flat buffers, seen as matrices by name.

#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/params.hpp>

#include <cstdint>
#include <string>

namespace p3d::model {

using device::ExecSpace;
using device::View1;
using device::View2;

/// A weight and its gradient (or an empty pair where the model has none). P: a policy of device/precision.hpp.
template <class P>
struct Matrix {
  View2<typename P::Storage> value;
  View2<typename P::Gradient> grad;
};
template <class P>
struct Vector {
  View1<typename P::Storage> value;
  View1<typename P::Gradient> grad;
};

/// Owns the flat buffers, but for gradients in memory that is given.
template <class P>
class Parameters {
public:
  using Storage = typename P::Storage;
  using Gradient = typename P::Gradient;
  using Master = typename P::Master;

  /// `gradients`: flat_size() zeros that outlive this; null: it allocates them. Draws the initial values: key
  /// "init.<name>" and the global element number, so every layout starts from one model.
  Parameters(ExecSpace const& exec, layout::StageParams params, std::uint64_t seed, Gradient* gradients = nullptr);

  layout::StageParams const& layout() const { return params_; }
  /// What layers read.
  View1<Storage> values() const { return values_; }
  /// What the optimizer updates and checkpoints hold; where the policy has no master weights, the values themselves.
  View1<Master> master() const;
  View1<Gradient> grads() const { return grads_; }
  void zero_grads(ExecSpace const& exec);
  /// Master weights -> values, where these are two: rounded to nearest; `stochastic`: up or down at random, keyed by
  /// (parameter, global element, update), the same on every layout. Bf16 only.
  void round_values(ExecSpace const& exec, bool stochastic, std::int64_t update);

  /// One parameter as a matrix.
  Matrix<P> matrix(std::string const& name) const;
  /// One parameter as a vector.
  Vector<P> vector(std::string const& name) const;
  /// Neighbouring parameters `first` .. `last` (q, k, v or gate, up) as one matrix or vector.
  Matrix<P> fused_matrix(std::string const& first, std::string const& last) const;
  Vector<P> fused_vector(std::string const& first, std::string const& last) const;
  bool has(std::string const& name) const { return params_.has(name); }

private:
  layout::StageParams params_;
  std::uint64_t seed_;
  device::Owned1<Storage> values_;
  device::Owned1<Gradient> grads_;
  device::Owned1<Master> master_;  ///< empty where the values are the master
};

}  // namespace p3d::model
