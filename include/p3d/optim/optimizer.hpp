// SPDX-License-Identifier: Apache-2.0
#pragma once
// The optimizer of one stage on one rank: moments in flat buffers beside the parameters.

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

/// P: a policy of device/precision.hpp.
template <class P>
class Optimizer {
public:
  using Storage = typename P::Storage;
  using Master = typename P::Master;
  using Moment = typename P::Moment;
  using Gradient = typename P::Gradient;

  /// `params` and `shard` must outlive the optimizer. AdamW allocates two moments for each element that is owned, SGD
  /// none. `narrow_moments`: in bfloat16, rounded to nearest. `resident`: false: somebody else keeps the moments and
  /// gives them to each update. With options.post_validation it allocates as much again, and the master weights, so
  /// that an update can be taken back; then they are resident.
  Optimizer(config::Optimizer const& options, layout::StageParams const& params, layout::StateShard const& shard,
            bool narrow_moments, bool resident = true);

  /// What an update reads and writes of an owned run, count elements each.
  struct RunViews {
    View1<Master> master;
    View1<Gradient> grads;
    View1<Storage> storage;  ///< gets the new weights rounded to nearest; empty: not written
  };
  /// One update of the master weights of an owned run, or of a part of one. `step` counts from 1 (bias correction);
  /// gradients are multiplied by `grad_scale` (clipping, loss scale) on the way, and are zero afterwards unless
  /// `keep_gradients`. Weight decay applies to the parameters whose table row says so.
  void apply(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale, layout::OwnedRun const& run,
             RunViews const& views, bool keep_gradients = false);
  /// The same, and what it replaces is kept for take_back(). The gradients stay.
  void try_out(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale, layout::OwnedRun const& run,
               RunViews const& views);
  /// The moments and `master` of a run become, bit for bit, what they were before the last try_out() of it.
  void take_back(ExecSpace const& exec, layout::OwnedRun const& run, View1<Master> master);
  /// Allocated for that.
  std::int64_t replaced_bytes() const;
  /// The same as apply() with moments that are given, count elements each (empty for SGD). M: Moment, or bfloat16
  /// beside float.
  template <class M>
  void apply_with(ExecSpace const& exec, std::int64_t step, double lr, double grad_scale, layout::OwnedRun const& run,
                  RunViews const& views, bool keep_gradients, View1<M> m, View1<M> v,
                  kernels::Replaced<Master, M> const& replaced = {});

  /// Calls work(first moment, second moment) with views of whatever type they have; not for SGD.
  template <class Work>
  void with_moments(Work&& work) const {
    if (narrow_.m.extent(0) > 0) return work(View1<Narrow>(narrow_.m), View1<Narrow>(narrow_.v));
    work(View1<Moment>(wide_.m), View1<Moment>(wide_.v));
  }

  static constexpr bool may_be_narrow = P3D_16BIT != 0 && sizeof(Moment) == 4;
  using Narrow = std::conditional_t<may_be_narrow, device::bfloat16, Moment>;

private:
  template <class M>
  struct Moments {
    device::Owned1<M> m, v;
  };
  /// Calls work(moments, what was replaced of them) with those that there are.
  template <class Work>
  void with_owned(Work const& work);
  config::Optimizer options_;
  layout::StageParams const* params_;
  Moments<Moment> wide_, replaced_wide_;
  Moments<Narrow> narrow_, replaced_narrow_;
  device::Owned1<Master> replaced_master_;
};

/// Factor on the gradients that brings their global norm down to `clip` (1 when it is below, or clip is 0).
double clip_factor(double global_norm, double clip);

}  // namespace p3d::optim
