// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stage behind a StagePort, and who hands it its weights.

#include <p3d/base/error.hpp>
#include <p3d/engine/stage_port.hpp>
#include <p3d/model/weights.hpp>

#include <vector>

namespace p3d::engine {

/// The rows of a contiguous view.
template <class T>
SlotRows slot_rows(device::View2<T> const& view) {
  P3D_REQUIRE(view.span_is_contiguous(), "rows of a slot follow each other");
  return {view.data(), static_cast<std::int64_t>(view.extent(0)), static_cast<std::int64_t>(view.extent(1)), sizeof(T)};
}
/// The view of rows whose numbers are of type T.
template <class T>
device::View2<T> typed(SlotRows const& rows) {
  P3D_REQUIRE(rows.element_bytes == sizeof(T), "stages of a rank have one type");
  return device::View2<T>(static_cast<T*>(rows.data), static_cast<std::size_t>(rows.rows),
                          static_cast<std::size_t>(rows.columns));
}

template <class P>
class TypedPort final : public StagePort {
public:
  using S = typename P::Storage;
  /// `ahead`: the weights that microbatches of the next step read before this one has ended, then those of the step
  /// after it, and so on; empty where none do. All must outlive the port.
  TypedPort(device::ExecSpace const& exec, model::Stage<P>& stage, model::WeightProvider<P>& weights,
            std::vector<model::StageWeights<P>> const& ahead)
      : exec_(exec), stage_(&stage), weights_(&weights), ahead_(&ahead) {}

  void shape(int slot, std::int64_t length) override { stage_->shape(slot, length); }
  void forward(WeightChoice weights, int slot, bool training) override;
  void backward(schedule::Op part, WeightChoice weights, int slot, double loss_scale, Ready const& ready) override;
  void move_weights(schedule::Op move, int version) override;

  SlotRows input(int slot) const override { return slot_rows(stage_->input(slot)); }
  SlotRows output(int slot) const override { return slot_rows(stage_->output(slot)); }
  SlotRows gradient(int slot) const override { return slot_rows(stage_->gradient(slot)); }
  SlotRows head_input(int slot) const override { return slot_rows(stage_->head_input(slot)); }
  void take_input(int slot, SlotRows output) override { stage_->take_input(slot, typed<S>(output)); }
  void take_gradient(int slot, SlotRows gradient) override { stage_->take_gradient(slot, typed<S>(gradient)); }
  void take_head_gradient(int slot, SlotRows gradient) override {
    stage_->take_head_gradient(slot, typed<S>(gradient));
  }
  bool hands_on() const override { return stage_->hands_on(); }
  bool has_gradient() const override { return stage_->has_gradient(); }

  comm::Communicator::Message make_message(schedule::Action const& action, schedule::Program const& program) override;
  void pass_empty(comm::Communicator& pipeline, schedule::Action const& action,
                  schedule::Program const& program) override;

  model::StageRegion offloaded(int slot, bool gradients) const override { return stage_->offloaded(slot, gradients); }
  model::TokenRows rows(int slot) const override { return stage_->rows(slot); }
  void resume(int slot, model::TokenRows rows, bool gradients) override { stage_->resume(slot, rows, gradients); }

  std::size_t first_own_param() const override { return stage_->first_own_param(); }
  std::size_t end_of_own_params() const override { return stage_->end_of_own_params(); }
  std::size_t num_params() const override { return stage_->num_params(); }

private:
  model::StageWeights<P> const& weights(WeightChoice choice) const;

  device::ExecSpace exec_;
  model::Stage<P>* stage_;
  model::WeightProvider<P>* weights_;
  std::vector<model::StageWeights<P>> const* ahead_;
};

}  // namespace p3d::engine
