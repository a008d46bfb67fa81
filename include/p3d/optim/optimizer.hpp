// SPDX-License-Identifier: Apache-2.0
#pragma once
// The optimizer of one stage on one rank, with its moments in flat buffers beside the parameters. Each update is of one
// owned run of elements (layout::OwnedRun). A rank owns all elements of the stage or, with a sharded optimizer, a part.

#include <p3d/config/config.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/kernels/update.hpp>
#include <p3d/layout/shards.hpp>

#include <cstdint>
#include <type_traits>

namespace p3d::optim {

using device::ExecSpace;
using device::View1;

/// The optimizer, with the types of numbers of P, a policy of device/precision.hpp.
template <class P>
class Optimizer {
public:
  using Storage = typename P::Storage;
  using Master = typename P::Master;
  using Moment = typename P::Moment;
  using Gradient = typename P::Gradient;

  /// Allocates the optimizer's state. `params` and `shard` must outlive the optimizer. AdamW has two moments for each
  /// element that is owned, SGD none. With `narrow_moments` they are in bfloat16, rounded to nearest. With `resident`
  /// false the caller keeps the moments and gives them to each update (apply_with). With options.post_validation the
  /// optimizer allocates as much again, and master weights, so that an update can be undone; then its state must be
  /// resident.
  Optimizer(config::Optimizer const& options, layout::StageParams const& params, layout::StateShard const& shard,
            bool narrow_moments, bool resident = true);

  /// The arrays of an owned run that an update reads and writes, count elements each.
  struct RunViews {
    View1<Master> master;
    View1<Gradient> grads;
    View1<Storage> storage;  ///< gets the new weights rounded to nearest; empty: not written
  };
  /// Updates the master weights of an owned run, or of a part of one. `step` counts from 1 (bias correction). Gradients
  /// are multiplied by `grad_scale` (clipping, loss scale) on the way, and are zero afterwards unless `keep_gradients`.
  /// Weight decay applies to the parameters whose table row says so.
  void apply(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale, layout::OwnedRun const& run,
             RunViews const& views, bool keep_gradients = false);
  /// apply() that keeps the numbers that it replaces, for take_back(), and does not clear the gradients.
  void try_out(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale, layout::OwnedRun const& run,
               RunViews const& views);
  /// Undoes the last try_out() of a run: its moments and `master` become, bit for bit, what they were before.
  void take_back(ExecSpace const& exec, layout::OwnedRun const& run, View1<Master> master);
  /// Bytes that are allocated for take_back().
  std::int64_t replaced_bytes() const;
  /// apply() with moments that the caller gives, count elements each (empty for SGD). M is Moment, or bfloat16 beside
  /// float.
  template <class M>
  void apply_with(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale, layout::OwnedRun const& run,
                  RunViews const& views, bool keep_gradients, View1<M> m, View1<M> v,
                  kernels::Replaced<Master, M> const& replaced = {});

  /// Calls work(first moment, second moment) with views of the moments in their type; not for SGD.
  template <class Work>
  void with_moments(Work&& work) const {
    if (narrow_.m.extent(0) > 0) return work(View1<Narrow>(narrow_.m), View1<Narrow>(narrow_.v));
    work(View1<Moment>(wide_.m), View1<Moment>(wide_.v));
  }

  /// True where moments may be in bfloat16.
  static constexpr bool may_be_narrow = P3D_16BIT != 0 && sizeof(Moment) == 4;
  using Narrow = std::conditional_t<may_be_narrow, device::bfloat16, Moment>;

private:
  /// The two moments of all owned elements, one run behind the other.
  template <class M>
  struct Moments {
    device::Owned1<M> m, v;
  };
  /// Calls work(moments, replaced moments) with the moments in their type.
  template <class Work>
  void with_owned(Work const& work);
  config::Optimizer options_;
  layout::StageParams const* params_;
  Moments<Moment> wide_, replaced_wide_;
  Moments<Narrow> narrow_, replaced_narrow_;
  device::Owned1<Master> replaced_master_;
};

/// The factor on the gradients that brings their global norm down to `clip` (1 when the norm is below, or clip is 0).
double clip_factor(double global_norm, double clip);

}  // namespace p3d::optim
