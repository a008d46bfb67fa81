// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checkpoints need a folder that all hosts of a run share: a check at the start, before hours of training.

#include <p3d/comm/communicator.hpp>

#include <string>

namespace p3d::run {

/// Makes the folder `dir` of checkpoints and throws on every rank (bad_input) when a host of the run does not see in it
/// what rank 0 writes there. Without this check the first checkpoint would be the first to tell, perhaps hours later.
/// One rank of each host looks; a run on one host asks nothing. Collective.
void require_shared_folder(std::string const& dir, std::string const& run_name, comm::Communicator& world);

}  // namespace p3d::run
