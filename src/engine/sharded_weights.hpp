// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hands out weights that replicas own in parts (memory.shard): GATHER makes them whole.

#include <p3d/base/error.hpp>
#include <p3d/model/weights.hpp>
#include <p3d/parallel/weights.hpp>

#include <utility>

namespace p3d::engine {

template <class P>
class ShardedWeights final : public model::WeightProvider<P> {
public:
  /// `stays`: whole weights have memory of their own, and are good until the next update. Else they are given up by
  /// RELEASE. `lender`: of the stage whose weights are among `whole`; null: none.
  ShardedWeights(device::ExecSpace const& exec, model::Parameters<P>& params, model::StageWeights<P> whole, bool stays,
                 std::function<comm::Communicator&(layout::AxisSet)> const& communicator, ShardedWeights* lender)
      : exec_(exec),
        params_(&params),
        whole_(std::move(whole)),
        stays_(stays),
        lender_(lender),
        gatherer_(exec, params.shard(), params.values(), communicator) {}

  model::StageWeights<P> const& weights(int) override {
    if (lender_) lender_->gatherer_.finish();
    gatherer_.finish();
    return whole_;
  }
  void gather(int) override {
    if (std::exchange(gathered_, true)) return;
    params_->place_values(exec_);
    gatherer_.start();
  }
  void release(int) override {
    gatherer_.finish();
    gathered_ = gathered_ && stays_;
  }
  void offload(int) override { refuse("OFFLOAD"); }
  void reload(int) override { refuse("RELOAD"); }

  /// Owned values changed: what was gathered is old.
  void updated() { gathered_ = false; }

private:
  [[noreturn]] static void refuse(char const* what) {
    throw base::Error({.expected = "a schedule that gathers and releases weights",
                       .found = what,
                       .where = "the weights of a stage",
                       .fix = "write GATHER and RELEASE, or leave memory.shard out"});
  }

  device::ExecSpace exec_;
  model::Parameters<P>* params_;
  model::StageWeights<P> whole_;
  bool stays_;
  ShardedWeights* lender_;
  bool gathered_ = false;
  parallel::WeightGatherer<typename P::Storage> gatherer_;
};

}  // namespace p3d::engine
