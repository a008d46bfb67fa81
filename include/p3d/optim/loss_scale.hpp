// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loss scaling for fp16 (Micikevicius et al., arXiv 1710.03740, section 3.2). The loss is multiplied by a factor before
// the backward pass, so that small gradients do not underflow, and the gradients are divided by it before the update. A
// step whose gradients overflow is skipped.

#include <p3d/config/config.hpp>

#include <cstdint>
#include <string>

namespace p3d::optim {

/// The state of a loss scale, which a run continues with after a checkpoint.
struct LossScaleState {
  double scale = 1.0;
  std::int64_t clean_steps = 0;  ///< clean steps in a row, since the last overflow and since the scale last grew
  std::int64_t overflows = 0;    ///< overflows since the scale last grew
  std::int64_t skipped = 0;      ///< steps skipped since the run began
  bool operator==(LossScaleState const&) const = default;
};

/// The state as text for checkpoints, such as "scale=65536 clean_steps=12 overflows=0 skipped=3".
std::string to_string(LossScaleState const& state);
/// The state from such a text. Throws base::Error for other text.
LossScaleState parse_loss_scale(std::string const& text);

/// The text that a checkpoint keeps: the whole state of a dynamic scale; for other scales "skipped=3", when an earlier
/// part of the run has skipped steps (which the learning rate does not count), else nothing.
std::string stored_loss_scale(LossScaleState const& state, config::LossScaling scaling);
/// The state with which a run continues from a checkpoint that has the text `stored`; `fresh` is the state of a run
/// that begins. Steps that were skipped are counted on, also where only one of the two runs has a dynamic scale. Throws
/// base::Error for other text.
LossScaleState resumed_loss_scale(LossScaleState fresh, config::LossScaling scaling, std::string const& stored);

/// The factor of each step. A dynamic factor grows by loss_scale_growth after loss_scale_interval clean steps in a row,
/// but not beyond the largest float. From the loss_scale_hysteresis-th overflow since then on, each overflow multiplies
/// it with loss_scale_backoff, down to loss_scale_floor. (Megatron-LM counts so; with a hysteresis of 1 and no floor it
/// is the rule of torch.amp.GradScaler.)
///
/// Example: scale 65536, hysteresis 2, backoff 0.5: the first overflow skips a step, the second one also halves the
/// scale.
class LossScaler {
public:
  explicit LossScaler(config::PrecisionOptions const& options);
  /// The factor of the next step.
  double scale() const { return state_.scale; }
  /// True when a step that overflowed is skipped, and the next one tried with another factor. Else an overflow is an
  /// error.
  bool skips() const { return options_.loss_scaling == config::LossScaling::dynamic; }
  /// Updates the state after a step; `overflow` says that the gradients of some rank overflowed. Returns false when the
  /// scale is at its floor, so that skipping more steps would not help.
  bool update(bool overflow);

  LossScaleState const& state() const { return state_; }
  void set_state(LossScaleState const& state) { state_ = state; }

private:
  config::PrecisionOptions options_;
  LossScaleState state_;
};

}  // namespace p3d::optim
