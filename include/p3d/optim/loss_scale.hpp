// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loss scaling for fp16 (Micikevicius et al., arXiv 1710.03740, section 3.2): the loss is multiplied by a factor before
// the backward pass, so that small gradients do not underflow, and the gradients are divided by it before the update. A
// step whose gradients overflow is skipped.

#include <p3d/config/config.hpp>

#include <cstdint>
#include <string>

namespace p3d::optim {

/// What goes on after a checkpoint.
struct LossScaleState {
  double scale = 1.0;
  std::int64_t clean_steps = 0;  ///< in a row, since the last overflow and since the scale last grew
  std::int64_t overflows = 0;    ///< since the scale last grew
  std::int64_t skipped = 0;      ///< steps, since the run began
  bool operator==(LossScaleState const&) const = default;
};

/// "scale=65536 clean_steps=12 overflows=0 skipped=3", for checkpoints, and back. Throws base::Error for other text.
std::string to_string(LossScaleState const& state);
LossScaleState parse_loss_scale(std::string const& text);

/// What a checkpoint keeps: all of a dynamic scale's state; of others "skipped=3", when an earlier part of the run has
/// skipped steps (which the learning rate does not count), else nothing.
std::string stored_loss_scale(LossScaleState const& state, config::LossScaling scaling);
/// The state with which a run goes on from a checkpoint that has `stored`; `fresh`: of a run that begins. Steps that
/// were skipped stay counted, also where only one of the two runs has a dynamic scale. Throws base::Error for other
/// text.
LossScaleState resumed_loss_scale(LossScaleState fresh, config::LossScaling scaling, std::string const& stored);

/// The factor of each step. Dynamic: after loss_scale_interval clean steps in a row it grows by loss_scale_growth, but
/// not beyond what a float holds; from the loss_scale_hysteresis-th overflow since then on, each overflow multiplies it
/// with loss_scale_backoff, down to loss_scale_floor. (Megatron-LM counts so; with a hysteresis of 1 and no floor it is
/// the rule of torch.amp.GradScaler.)
class LossScaler {
public:
  explicit LossScaler(config::PrecisionOptions const& options);
  double scale() const { return state_.scale; }
  /// Whether a step that overflowed is skipped, and the next one tried with another factor. Else it is an error.
  bool skips() const { return options_.loss_scaling == config::LossScaling::dynamic; }
  /// After a step: whether any rank's gradients overflowed. False: the scale is at its floor, so that nothing helps.
  bool update(bool overflow);

  LossScaleState const& state() const { return state_; }
  void set_state(LossScaleState const& state) { state_ = state; }

private:
  config::PrecisionOptions options_;
  LossScaleState state_;
};

}  // namespace p3d::optim
