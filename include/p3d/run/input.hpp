// SPDX-License-Identifier: Apache-2.0
#pragma once
// The input of a run is read once, by rank 0, for all ranks: no rank can see another text than the others.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>

#include <string>
#include <vector>

namespace p3d::run {

/// Rank 0 reads and checks the input for the size of `world`. The others get the resolved text from it, so that all
/// work with one text, and check it where they run. All errors are printed, once; every rank then throws
/// base::ReportedError. Collective.
config::Config read_input_together(comm::Communicator& world, std::string const& path,
                                   std::vector<std::string> const& overrides);

}  // namespace p3d::run
