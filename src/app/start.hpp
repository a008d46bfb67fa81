// SPDX-License-Identifier: Apache-2.0
#pragma once
// The first thing that main does.

#include <p3d/comm/communicator.hpp>

#include <memory>

namespace p3d::app {

/// Starts MPI when a launcher started several processes, before anything is decided from the command line: a rank with
/// other words than the rest (or without MPI's other ranks) is told of at once, by comm::Environment, and cannot leave
/// the others waiting. Null without a launcher, and on one rank: then MPI starts where it is needed.
std::unique_ptr<comm::Environment> start_together(int& argc, char**& argv);

}  // namespace p3d::app
