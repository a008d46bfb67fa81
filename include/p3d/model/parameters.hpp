// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameters of one stage on one rank: values and gradients in flat buffers, seen as matrices by name.

#include <p3d/config/config.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/params.hpp>
#include <p3d/layout/shards.hpp>

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

/// Owns the flat buffers, but for memory that is given. Layers read whole values and add to whole gradients. What the
/// optimizer needs of them is owned: everything, or, where replicas divide the state, the runs that a StateShard says.
template <class P>
class Parameters {
public:
  using Storage = typename P::Storage;
  using Gradient = typename P::Gradient;
  using Master = typename P::Master;

  /// Memory of flat_size() elements each that outlives this; null: it allocates what it needs. Zeros, but for values
  /// that stay only while they are used.
  struct Memory {
    Storage* values = nullptr;
    Gradient* grads = nullptr;
    bool master_elsewhere = false;  ///< somebody else keeps the master weights, where these are not the values
    bool values_elsewhere = false;  ///< and the values, which are whole only while they are used
  };

  /// Draws the initial values: key "init.<name>" and the global element number, so every layout starts from one model.
  /// `divides`: what replicas divide; beyond moments and master weights, which are the optimizer's: gradients (the
  /// whole ones, in `memory`, are there for a while and zeros in between), and parameters (so are whole values).
  Parameters(ExecSpace const& exec, layout::StageParams params, layout::StateShard shard, config::Shard divides,
             std::uint64_t seed, Memory memory = {});
  /// Of a rank that owns everything.
  Parameters(ExecSpace const& exec, layout::StageParams params, std::uint64_t seed);

  layout::StageParams const& layout() const { return params_; }
  layout::StateShard const& shard() const { return shard_; }
  /// What layers read and add to.
  View1<Storage> values() const { return values_; }
  View1<Gradient> grads() const { return grads_; }
  void zero_grads(ExecSpace const& exec);

  // Of a run that this rank owns (shard().owned), or of a part of it, its elements:
  /// what the optimizer updates and checkpoints hold; where the policy has no master weights, the values themselves
  /// (not where somebody else keeps them),
  View1<Master> master(layout::OwnedRun const& run) const;
  /// the values that are to be whole after the next gather (not with values_elsewhere),
  View1<Storage> stored(layout::OwnedRun const& run) const;
  /// and the reduced gradients.
  View1<Gradient> reduced(layout::OwnedRun const& run) const;

  /// All of these one behind the other, where gradients are divided.
  View1<Gradient> owned_gradients() const { return owned_grads_; }

  /// Reduced gradients lie in the whole buffer -> they lie where they are owned, or are added there, and the rest of
  /// the whole buffer is zero. Of hybrid buckets only this rank's parts: parallel::exchange_gradients brings the
  /// others.
  void take_gradients(ExecSpace const& exec, bool add);
  /// Owned values -> whole ones, this rank's parts.
  void place_values(ExecSpace const& exec);
  /// The same of values that are given, those of all owned runs one behind the other.
  void place_values(ExecSpace const& exec, View1<Storage const> packed);

  /// Master weights -> values, where these are two, of a run or a part of one: rounded to nearest; `stochastic`: up or
  /// down at random, keyed by (parameter, global element, update), the same on every layout. Bf16 only.
  void round_run(ExecSpace const& exec, layout::OwnedRun const& run, View1<Master const> master, View1<Storage> values,
                 bool stochastic, std::int64_t update) const;
  /// The initial master weights of a run or a part of one; `out` holds zeros.
  void draw_run(ExecSpace const& exec, layout::OwnedRun const& run, View1<Master> out) const;
  /// Allocated here or given, but for what lies in a pool.
  struct Bytes {
    std::int64_t values = 0, grads = 0, master = 0;
  };
  Bytes bytes() const;

  /// One parameter as a matrix.
  Matrix<P> matrix(std::string const& name) const;
  /// One parameter as a vector.
  Vector<P> vector(std::string const& name) const;
  /// Neighbouring parameters `first` .. `last` (q, k, v or gate, up) as one matrix or vector.
  Matrix<P> fused_matrix(std::string const& first, std::string const& last) const;
  Vector<P> fused_vector(std::string const& first, std::string const& last) const;
  bool has(std::string const& name) const { return params_.has(name); }

private:
  /// Of a buffer that is packed, or lies as the flat one.
  template <class T>
  View1<T> part(View1<T> buffer, layout::OwnedRun const& run, bool packed) const;

  layout::StageParams params_;
  layout::StateShard shard_;
  config::Shard divides_;
  bool master_elsewhere_, values_elsewhere_;
  std::uint64_t seed_;
  device::Owned1<Storage> values_;
  device::Owned1<Gradient> grads_;
  device::Owned1<Storage> owned_values_;  ///< empty unless parameters are divided
  device::Owned1<Gradient> owned_grads_;  ///< empty unless gradients are divided
  device::Owned1<Master> master_;         ///< empty where the values are the master
};

}  // namespace p3d::model
