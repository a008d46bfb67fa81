// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameters of one stage on one rank: values and gradients in two flat buffers, seen as matrices by name.

#include <p3d/device/view.hpp>
#include <p3d/layout/params.hpp>

#include <cstdint>
#include <string>

namespace p3d::model {

using device::ExecSpace;
using device::View1;
using device::View2;

/// A weight and its gradient (or an empty pair where the model has none).
template <class T>
struct Matrix {
  View2<T> value;
  View2<T> grad;
};
template <class T>
struct Vector {
  View1<T> value;
  View1<T> grad;
};

/// Owns the flat buffers, but for gradients in memory that is given.
template <class T>
class Parameters {
public:
  /// `gradients`: flat_size() zeros that outlive this; null: it allocates them. Draws the initial values: key
  /// "init.<name>" and the global element number, so every layout starts from one model.
  Parameters(ExecSpace const& exec, layout::StageParams params, std::uint64_t seed, T* gradients = nullptr);

  layout::StageParams const& layout() const { return params_; }
  View1<T> values() const { return values_; }
  View1<T> grads() const { return grads_; }
  void zero_grads(ExecSpace const& exec);

  /// One parameter as a matrix.
  Matrix<T> matrix(std::string const& name) const;
  /// One parameter as a vector.
  Vector<T> vector(std::string const& name) const;
  /// Neighbouring parameters `first` .. `last` (q, k, v or gate, up) as one matrix or vector.
  Matrix<T> fused_matrix(std::string const& first, std::string const& last) const;
  Vector<T> fused_vector(std::string const& first, std::string const& last) const;
  bool has(std::string const& name) const { return params_.has(name); }

private:
  layout::StageParams params_;
  device::Owned1<T> values_;
  device::Owned1<T> grads_;
};

}  // namespace p3d::model
