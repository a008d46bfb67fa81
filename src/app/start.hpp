// SPDX-License-Identifier: Apache-2.0
#pragma once
// The first action of main: start MPI when there is a launcher.

#include <p3d/comm/communicator.hpp>

#include <memory>

namespace p3d::app {

/// Starts MPI when a launcher started several processes, before anything is decided from the command line. So
/// comm::Environment reports a rank with other words than the others (or without MPI's other ranks) at once, and such a
/// rank cannot leave the others waiting. Null without a launcher, and on one rank: then MPI starts where it is needed.
std::unique_ptr<comm::Environment> start_together(int& argc, char**& argv);

}  // namespace p3d::app
