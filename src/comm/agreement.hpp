// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks before anything else: the ranks must agree on how many they are and on what they were asked to do.

#include <p3d/comm/launch.hpp>

#include <string>
#include <vector>

namespace p3d::comm::detail {

/// The text of an error when a launcher started several processes that MPI does not connect (a world of one rank each);
/// empty when all is well. `library` is what comm::library_version() returns.
std::string lonely(Launch const& launch, int world_size, std::string const& library);

/// The text of an error, on rank 0, when the ranks were given different words (elsewhere any text); empty on all ranks
/// when the words are the same. Collective over world.
std::string different_words(std::vector<std::string> const& words);

}  // namespace p3d::comm::detail
