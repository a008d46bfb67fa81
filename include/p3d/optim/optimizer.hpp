// SPDX-License-Identifier: Apache-2.0
#pragma once
// An optimizer in two halves. Optimizer is the rule: it updates one piece of a stage's parameters and remembers
// nothing. StateMemory holds what the rule keeps from one update to the next: the arrays that
// config/optimizer_state.hpp names. Where the state is offloaded, the caller has the arrays in place of StateMemory and
// gives the rule views of them.
//
// Example: of AdamW on a rank that owns 1,000 elements, the state is two arrays of 1,000 numbers, "first_moment" and
// "second_moment"; the update of an owned run of 200 elements gets views of 200 numbers of each.
//
// With optimizer.delay = 1 the gradient of an update is taken at the weights before the newest (PipeDream-2BW, arXiv
// 2006.09503, section 3.1): w(t+1) = w(t) - lr u(gradient of batch t at w(t-1)), and w(-1) = w(0). Two versions are
// kept. Layers read w(t-1) where the parameters lie; the newest version is the last array of the state. An update
// writes w(t) where layers read, and w(t+1) over w(t). The answer depends on no layout. Longer delays, and those of
// layers, have more versions: versions.hpp.

#include <p3d/config/optimizer_state.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/kernels/update.hpp>
#include <p3d/layout/shards.hpp>

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace p3d::optim {

using device::ExecSpace;
using device::View1;

/// Elements of one array of an optimizer's state, in one of the two types that it may have. P: a policy of
/// device/precision.hpp.
template <class P>
struct StateView {
  using Moment = typename P::Moment;
  /// True where precision.moments may be "bf16".
  static constexpr bool may_be_narrow = P3D_16BIT != 0 && sizeof(Moment) == 4;
  using Narrow = std::conditional_t<may_be_narrow, device::bfloat16, Moment>;

  View1<Moment> wide;    ///< empty where the numbers are narrow
  View1<Narrow> narrow;  ///< empty where they are not

  /// Calls work(view) with the view that is not empty.
  template <class Work>
  void visit(Work const& work) const {
    if (narrow.extent(0) > 0) return work(narrow);
    work(wide);
  }
};

/// The numbers that all pieces of one update have in common.
struct UpdateStep {
  std::int64_t number = 1;  ///< counts the updates from 1 (bias correction)
  double lr = 0.0;
  double grad_scale = 1.0;      ///< factor on the gradients: clipping and loss scale
  bool keep_gradients = false;  ///< false: the gradients are zero after the update
};

/// An owned run of a stage's parameters, or a part of one, with all that an update of it reads and writes: views of
/// run.count elements each.
template <class P>
struct Piece {
  layout::OwnedRun run = {};
  View1<typename P::Master> master = {};
  View1<typename P::Gradient> gradient = {};
  /// Gets the new weights rounded to nearest, or, where gradients are late, those before; empty: not written.
  View1<typename P::Storage> storage = {};
  std::vector<StateView<P>> state = {};  ///< one view for each array of the optimizer's state, in the table's order
  /// Gets the numbers of `master` before the update; empty: these are not kept. Where gradients are late, layers read
  /// these next.
  View1<typename P::Master> replaced_master = {};
  /// The versions between these and the newest, oldest first, where gradients are later than by one update.
  std::vector<View1<typename P::Master>> older = {};
  /// The views that get the numbers of `state` before the update; empty: these are not kept.
  std::vector<StateView<P>> replaced_state = {};
};

/// Where gradients are late, a piece comes with the weights that layers read as `master`. The last `delay` arrays of
/// its state, where `delay` is the largest of all layers, are newer versions, the newest last. This makes the newest
/// its `master`, which the update changes, the others `older`, and what layers read its `replaced_master`.
template <class P>
void aim_at_newest(Piece<P>& piece, std::int64_t delay) {
  static_assert(std::is_same_v<typename P::Moment, typename P::Master>);
  piece.replaced_master = piece.master;
  piece.master = piece.state.back().wide;
  auto const first = piece.state.end() - delay;
  for (auto version = first; version + 1 != piece.state.end(); ++version) piece.older.push_back(version->wide);
  piece.state.erase(first, piece.state.end());
}

/// The rule of an optimizer. Weight decay applies to the parameters whose table row says so.
template <class P>
class Optimizer {
public:
  virtual ~Optimizer() = default;
  /// Updates the master weights and the state of one piece.
  virtual void update(ExecSpace const& exec, UpdateStep const& step, Piece<P> const& piece) const = 0;
};

/// Makes the optimizer that the input chooses, for one stage. `params` must outlive it.
template <class P>
std::unique_ptr<Optimizer<P>> make_optimizer(config::Optimizer const& options, layout::StageParams const& params);

/// The arrays of the state of a stage's owned parameters, one run behind the other, all zeros at first.
template <class P>
class StateMemory {
public:
  using Master = typename P::Master;
  /// Allocates `owned` elements of each array: in bfloat16 with `narrow`, and none where the state is not `resident`.
  /// With options.post_validation it allocates as much again, and room for master weights, so that an update can be
  /// undone; then the state must be resident.
  StateMemory(config::Optimizer const& options, std::int64_t owned, bool narrow, bool resident = true);

  /// The whole arrays, in the table's order; empty where the state is not resident.
  std::vector<StateView<P>> const& arrays() const { return arrays_; }
  /// Gives a piece the views of its elements.
  void bind(Piece<P>& piece) const { piece.state = part(arrays_, piece.run); }
  /// The newest weights of a run, where gradients are late and the state is resident; `age`: those so many updates
  /// before, fewer than gradients may be late.
  View1<Master> newest(layout::OwnedRun const& run, std::int64_t age = 0) const {
    return (part(arrays_, run).end() - 1 - age)->wide;
  }
  /// Has the update of a piece keep the numbers that it replaces, for take_back().
  void keep_replaced(Piece<P>& piece) const;
  /// Undoes the last update of a run that kept them: its state and `master` become, bit for bit, what they were.
  void take_back(ExecSpace const& exec, layout::OwnedRun const& run, View1<Master> master) const;
  /// Bytes of all that is allocated.
  std::int64_t bytes() const;

private:
  /// Memory of arrays, of which one of the two types is in use.
  struct Arrays {
    std::vector<device::Owned1<typename P::Moment>> wide;
    std::vector<device::Owned1<typename StateView<P>::Narrow>> narrow;
  };
  static std::vector<StateView<P>> part(std::vector<StateView<P>> const& arrays, layout::OwnedRun const& run);

  bool can_take_back_;
  Arrays memory_;  ///< the memory behind all views
  std::vector<StateView<P>> arrays_;
  std::vector<StateView<P>> replaced_;      ///< the numbers before the last update that kept them
  device::Owned1<Master> replaced_master_;  ///< the master weights before it
};

/// The factor on the gradients that brings their global norm down to `clip` (1 when the norm is below, or clip is 0).
double clip_factor(double global_norm, double clip);

}  // namespace p3d::optim
