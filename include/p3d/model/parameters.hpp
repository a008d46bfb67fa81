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

/// A weight matrix and its gradient, or an empty pair where the model has none. P is a policy of device/precision.hpp.
template <class P>
struct Matrix {
  View2<typename P::Storage> value;
  View2<typename P::Gradient> grad;
};
/// A bias, or the weight of a norm, and its gradient; or an empty pair.
template <class P>
struct Vector {
  View1<typename P::Storage> value;
  View1<typename P::Gradient> grad;
};

/// The flat buffers of values and gradients. Layers read whole values and add to whole gradients. The optimizer reads
/// what the rank owns of them: everything, or, where replicas divide the state, the runs that a StateShard says.
template <class P>
class Parameters {
public:
  using Storage = typename P::Storage;
  using Gradient = typename P::Gradient;
  using Master = typename P::Master;

  /// Memory that others own: flat_size() elements each, which outlive this object; with null it allocates its own. It
  /// holds zeros, but for values that are there only while they are used.
  struct Memory {
    Storage* values = nullptr;
    Gradient* grads = nullptr;
    bool master_elsewhere = false;  ///< somebody else keeps the master weights, where these are not the values
    bool values_elsewhere = false;  ///< somebody else keeps the values, whole only while they are used
  };

  /// Draws the initial values: key "init.<name>" and the global element number, so every layout starts from one model.
  /// `divides` says what replicas divide beyond moments and master weights, which are the optimizer's: gradients, of
  /// which the whole ones, in `memory`, are there for a while and zeros in between, and parameters, likewise.
  Parameters(ExecSpace const& exec, layout::StageParams params, layout::StateShard shard, config::Shard divides,
             std::uint64_t seed, Memory memory = {});
  /// Draws the parameters of a rank that owns everything.
  Parameters(ExecSpace const& exec, layout::StageParams params, std::uint64_t seed);

  layout::StageParams const& layout() const { return params_; }
  layout::StateShard const& shard() const { return shard_; }
  /// The whole values, which layers read, and below them the whole gradients, to which layers add.
  View1<Storage> values() const { return values_; }
  View1<Gradient> grads() const { return grads_; }
  void zero_grads(ExecSpace const& exec);

  // A run is one that this rank owns (shard().owned), or a part of it.
  /// The elements of a run that the optimizer updates and checkpoints hold: master weights, or, where the policy has
  /// none, the values themselves. Not where somebody else keeps them.
  View1<Master> master(layout::OwnedRun const& run) const;
  /// The values of a run that are to be whole after the next gather. Not with values_elsewhere.
  View1<Storage> stored(layout::OwnedRun const& run) const;
  /// The reduced gradients of a run.
  View1<Gradient> reduced(layout::OwnedRun const& run) const;

  /// The reduced gradients of all owned runs, one behind the other, where gradients are divided.
  View1<Gradient> owned_gradients() const { return owned_grads_; }

  /// Moves reduced gradients from the whole buffer to where they are owned, or adds them there, and clears the rest of
  /// the whole buffer. In hybrid buckets it moves only this rank's parts: parallel::exchange_gradients brings the
  /// others.
  void take_gradients(ExecSpace const& exec, bool add);
  /// Copies owned values to their places among the whole ones: this rank's parts.
  void place_values(ExecSpace const& exec);
  /// Copies given values there: those of all owned runs, one behind the other.
  void place_values(ExecSpace const& exec, View1<Storage const> packed);

  /// Rounds the master weights of a run or a part of one to values, where these are two: to nearest, or, `stochastic`,
  /// up or down at random, keyed by (parameter, global element, update), the same on every layout (bf16 only).
  void round_run(ExecSpace const& exec, layout::OwnedRun const& run, View1<Master const> master, View1<Storage> values,
                 bool stochastic, std::int64_t update) const;
  /// Draws the initial master weights of a run or a part of one; `out` holds zeros.
  void draw_run(ExecSpace const& exec, layout::OwnedRun const& run, View1<Master> out) const;
  /// Bytes of memory that is allocated here or given, but for what lies in a pool.
  struct Bytes {
    std::int64_t values = 0, grads = 0, master = 0;
  };
  Bytes bytes() const;

  /// Makes parameters with this layout and these gradients, but with other values, flat_size() elements that others
  /// own: for layers that read another version of the weights and add to the same gradients.
  Parameters with_values(View1<Storage> values) const;

  /// One parameter as a matrix.
  Matrix<P> matrix(std::string const& name) const;
  /// One parameter as a vector.
  Vector<P> vector(std::string const& name) const;
  /// Neighbouring parameters `first` .. `last` (q, k, v or gate, up) as one matrix or vector.
  Matrix<P> fused_matrix(std::string const& first, std::string const& last) const;
  Vector<P> fused_vector(std::string const& first, std::string const& last) const;
  bool has(std::string const& name) const { return params_.has(name); }

private:
  /// The elements of a run in a buffer that is packed, or lies as the flat one.
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
