// SPDX-License-Identifier: Apache-2.0
#pragma once
// Carries out E, S, T and G of a rank, and the exchanges between the ranks of a pipeline (schedule/vocabulary.hpp).

#include <p3d/comm/communicator.hpp>
#include <p3d/model/vocabulary.hpp>
#include <p3d/schedule/vocabulary.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace p3d::engine {

/// A communicator for each kind of exchange: over the pipeline, `parts` over tp too.
struct VocabularyCommunicators {
  comm::Communicator sum, output, parts, input_gradient, gradient;
};

template <class P>
class VocabularyActions {
public:
  /// Has the executor wait for an exchange.
  using Wait = std::function<void(comm::Request&)>;
  /// All must outlive it. `first`, `last`: the pipeline ranks of the first and of the last stage.
  VocabularyActions(model::VocabularyPart<P>& part, VocabularyCommunicators& communicators,
                    device::ExecSpace const& exec, int first, int last);

  /// Before a program's first action: asks for what other ranks will give.
  void begin(schedule::Program const& program, bool training);
  /// E, S, T or G, whose tokens are loaded. Losses count on the last stage's rank.
  void execute(schedule::Action const& action, model::StageWeights<P> const& w, double loss_scale, Wait const& wait);
  /// Waits until an E, S, T or G has what it reads and its buffers are free.
  void prepare(schedule::Action const& action, Wait const& wait);

  // Around the actions of the stages.
  /// Fills the first stage's input.
  void begin_forward(int microbatch, device::View2<typename P::Storage> input, Wait const& wait);
  /// Gives the last stage's result to all.
  void end_forward(int microbatch, device::View2<typename P::Storage const> result, Wait const& wait);
  /// The gradient of that.
  device::View2<typename P::Storage const> begin_backward(int microbatch, Wait const& wait);
  /// Gives the gradient of the first stage's input to all.
  void end_backward(int microbatch, device::View2<typename P::Storage const> gradient, Wait const& wait);
  /// Waits for all that is under way.
  void finish(Wait const& wait);

private:
  using S = typename P::Storage;
  using Requests = std::array<comm::Request, 2>;
  static std::size_t at(int slot) { return static_cast<std::size_t>(slot); }
  bool gives_output() const { return to_->output.rank() == last_; }
  bool gives_gradient() const { return to_->gradient.rank() == first_; }
  void share_output(int microbatch);
  void share_gradient(int microbatch);

  model::VocabularyPart<P>* part_;
  VocabularyCommunicators* to_;
  device::ExecSpace exec_;
  int first_, last_, microbatches_ = 0;
  bool training_ = false;
  std::vector<std::int64_t> bounds_;  ///< first elements of the blocks of `parts`, and the end
  Requests sum_, output_, parts_, input_gradient_, gradient_;
};

}  // namespace p3d::engine
