// SPDX-License-Identifier: Apache-2.0
#pragma once
// The next token from the logits.

#include <p3d/engine/trainer.hpp>

#include <span>

namespace p3d::engine {

/// Draws a token of softmax(logits / temperature), of those that top_k and then top_p leave, with u uniform in (0, 1].
/// top_p counts the probabilities of what top_k left, divided by their sum, as other programs do.
/// temperature 0: the likeliest, of several the first.
int draw(std::span<double const> logits, SampleOptions const& options, double u);

}  // namespace p3d::engine
