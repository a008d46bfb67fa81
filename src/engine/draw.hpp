// SPDX-License-Identifier: Apache-2.0
#pragma once
// The next token from the logits.

#include <p3d/engine/trainer.hpp>

#include <span>

namespace p3d::engine {

/// Draws a token of softmax(logits / temperature), of those that top_k and top_p leave; u uniform in (0, 1].
/// temperature 0: the likeliest, of several the first.
int draw(std::span<double const> logits, SampleOptions const& options, double u);

}  // namespace p3d::engine
