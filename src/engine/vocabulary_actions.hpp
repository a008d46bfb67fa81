// SPDX-License-Identifier: Apache-2.0
#pragma once
// Carries out E, S, T and G of a rank, and the exchanges between the ranks of a pipeline (schedule/vocabulary.hpp).

#include <p3d/comm/communicator.hpp>
#include <p3d/engine/stage_port.hpp>
#include <p3d/model/vocabulary.hpp>
#include <p3d/model/weights.hpp>
#include <p3d/schedule/vocabulary.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <utility>

namespace p3d::engine {

/// A communicator for each kind of exchange: over the pipeline, `parts` over tp too.
struct VocabularyCommunicators {
  comm::Communicator sum, output, parts, input_gradient, gradient;
};

/// The executor's calls, without the types of the numbers.
class VocabularyActions {
public:
  /// Has the executor wait for an exchange.
  using Wait = std::function<void(comm::Request&)>;
  virtual ~VocabularyActions() = default;

  /// Before any action of a program: the tokens of the samples of each microbatch, as Hooks::length.
  virtual void set_lengths(std::function<std::int64_t(int)> length) = 0;
  /// Before a program's first action: asks for what other ranks will give.
  virtual void begin(schedule::Program const& program, bool training) = 0;
  /// Waits until an E, S, T or G has what it reads and its buffers are free.
  virtual void prepare(schedule::Action const& action, Wait const& wait) = 0;
  /// E, S, T or G, prepared, with its tokens loaded. Losses count on the last stage's rank.
  virtual void execute(schedule::Action const& action, double loss_scale, Wait const& wait) = 0;

  // Around the actions of the stages.
  /// Fills the first stage's input.
  virtual void begin_forward(int microbatch, SlotRows input, Wait const& wait) = 0;
  /// Gives the last stage's result to all.
  virtual void end_forward(int microbatch, SlotRows result, Wait const& wait) = 0;
  /// The gradient of that.
  virtual SlotRows begin_backward(int microbatch, Wait const& wait) = 0;
  /// Gives the gradient of the first stage's input to all.
  virtual void end_backward(int microbatch, SlotRows gradient, Wait const& wait) = 0;
  /// Waits for all that is under way.
  virtual void finish(Wait const& wait) = 0;
};

/// They work on a part of the vocabulary in its types.
template <class P>
class PartActions final : public VocabularyActions {
public:
  /// `weights`: those of the rank's first stage, with which the part lies. `first`, `last`: the pipeline ranks of the
  /// first and of the last stage. All must outlive it.
  PartActions(model::VocabularyPart<P>& part, model::WeightProvider<P>& weights, VocabularyCommunicators& communicators,
              device::ExecSpace const& exec, int first, int last);

  void set_lengths(std::function<std::int64_t(int)> length) override { length_ = std::move(length); }
  void begin(schedule::Program const& program, bool training) override;
  void execute(schedule::Action const& action, double loss_scale, Wait const& wait) override;
  void prepare(schedule::Action const& action, Wait const& wait) override;
  void begin_forward(int microbatch, SlotRows input, Wait const& wait) override;
  void end_forward(int microbatch, SlotRows result, Wait const& wait) override;
  SlotRows begin_backward(int microbatch, Wait const& wait) override;
  void end_backward(int microbatch, SlotRows gradient, Wait const& wait) override;
  void finish(Wait const& wait) override;

private:
  using S = typename P::Storage;
  using Requests = std::array<comm::Request, 2>;
  static std::size_t at(int slot) { return static_cast<std::size_t>(slot); }
  bool gives_output() const { return to_->output.rank() == last_; }
  bool gives_gradient() const { return to_->gradient.rank() == first_; }
  model::PartSize const& size(int microbatch) const { return part_->size(length_ ? length_(microbatch) : 0); }
  void share_output(int microbatch);
  void share_gradient(int microbatch);

  model::VocabularyPart<P>* part_;
  model::WeightProvider<P>* weights_;
  VocabularyCommunicators* to_;
  device::ExecSpace exec_;
  int first_, last_, microbatches_ = 0;
  bool training_ = false;
  std::function<std::int64_t(int)> length_;  ///< see set_lengths()
  Requests sum_, output_, parts_, input_gradient_, gradient_;
};

}  // namespace p3d::engine
