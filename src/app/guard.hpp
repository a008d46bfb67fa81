// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frames inside which every command of p3d runs: errors become messages and exit codes.

#include <p3d/comm/communicator.hpp>

#include <functional>

namespace p3d::app {

/// Runs a command and returns its exit code. An exception of any type is printed with the four parts of an error, and
/// gives the exit code of the error, or 1. A command whose standard output could not be written (a full disk) has
/// failed.
int guarded(std::function<int()> const& command);

/// Starts MPI and Kokkos around work(world), and ends all ranks with one exit code (comm::leave_together).
int with_ranks(int argc, char** argv, std::function<int(comm::Communicator&)> const& work);

}  // namespace p3d::app
