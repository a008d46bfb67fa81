// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stage of this rank as the executor calls it: with its weights, and without the types of its numbers. A program has
// one executor for all precisions; what knows a precision stands behind these calls.

#include <p3d/comm/communicator.hpp>
#include <p3d/model/stage.hpp>
#include <p3d/schedule/action.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace p3d::engine {

/// Activations of a slot or their gradient: [rows, columns] numbers of the storage type of the run, row after row. It
/// does not own them.
struct SlotRows {
  void* data = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::size_t element_bytes = 0;  ///< bytes of a number
};

/// The weights that an action reads: a version of this step, or the newest ones, which microbatches of later steps
/// read.
struct WeightChoice {
  int version = 0;
  int steps_early = 0;  ///< number of steps between this one and that of the action; 0: `version`
};

/// Functions that have the name of one of model::Stage do what it does, in the types of the run; forward() and
/// backward() find the weights too.
class StagePort {
public:
  using Ready = std::function<void(std::size_t first, std::size_t last)>;
  virtual ~StagePort() = default;

  virtual void shape(int slot, std::int64_t length) = 0;
  virtual void forward(WeightChoice weights, int slot, bool training) = 0;
  /// Runs B, I or W.
  virtual void backward(schedule::Op part, WeightChoice weights, int slot, double loss_scale, Ready const& ready) = 0;
  /// Carries out GATHER, RELEASE, OFFLOAD or RELOAD.
  virtual void move_weights(schedule::Op move, int version) = 0;

  virtual SlotRows input(int slot) const = 0;
  virtual SlotRows output(int slot) const = 0;
  virtual SlotRows gradient(int slot) const = 0;
  virtual SlotRows head_input(int slot) const = 0;
  virtual void take_input(int slot, SlotRows output_of_previous) = 0;
  virtual void take_gradient(int slot, SlotRows gradient_of_next) = 0;
  virtual void take_head_gradient(int slot, SlotRows gradient) = 0;
  virtual bool hands_on() const = 0;
  virtual bool has_gradient() const = 0;

  /// The message of SEND_F, RECV_F, SEND_B or RECV_B, which can start now, in the type in which it travels. A send's
  /// numbers are rounded to that type by the call.
  virtual comm::Communicator::Message make_message(schedule::Action const& action,
                                                   schedule::Program const& program) = 0;
  /// Sends or receives a message of the size of that of `action`, of numbers that mean nothing, and waits for it.
  virtual void pass_empty(comm::Communicator& pipeline, schedule::Action const& action,
                          schedule::Program const& program) = 0;

  virtual model::StageRegion offloaded(int slot, bool gradients) const = 0;
  virtual model::TokenRows rows(int slot) const = 0;
  virtual void resume(int slot, model::TokenRows rows, bool gradients) = 0;

  virtual std::size_t first_own_param() const = 0;
  virtual std::size_t end_of_own_params() const = 0;
  virtual std::size_t num_params() const = 0;
};

}  // namespace p3d::engine
