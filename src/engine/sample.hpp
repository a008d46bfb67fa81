// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text from the model, token after token (Trainer::sample).

#include <p3d/engine/trainer.hpp>

#include <cstdint>
#include <vector>

#include "rank_memory.hpp"

namespace p3d::engine {

/// Throws base::Error (bad_input) for a token outside the vocabulary.
void require_tokens(std::vector<std::vector<int>> const& prompts, std::int64_t vocab);

/// Continues each prompt, as Trainer::sample, with weights that are up to date. Collective.
template <class P>
std::vector<std::vector<int>> sample(RankContext& rank, RankMemory<P>& memory,
                                     std::vector<std::vector<int>> const& prompts, SampleOptions const& options);

}  // namespace p3d::engine
