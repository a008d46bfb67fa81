// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the ranks must agree on before anything else: how many they are, and what they were asked to do.

#include <p3d/comm/launch.hpp>

#include <string>
#include <vector>

namespace p3d::comm::detail {

/// What is wrong when a launcher started several processes that MPI does not connect (a world of one rank each); empty
/// when nothing is. `library`: comm::library_version().
std::string lonely(Launch const& launch, int world_size, std::string const& library);

/// Collective over world: what is wrong when the ranks were given different words, on rank 0; elsewhere any text. Empty
/// on all ranks when nothing is.
std::string different_words(std::vector<std::string> const& words);

}  // namespace p3d::comm::detail
