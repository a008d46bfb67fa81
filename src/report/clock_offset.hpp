// SPDX-License-Identifier: Apache-2.0
#pragma once
// The difference between the clocks of two ranks.

#include <p3d/comm/communicator.hpp>

#include <functional>

namespace p3d::report {

/// At `time` of this rank's clock, the clock of rank 0 showed `time` + `offset`, give or take `error`.
struct ClockOffset {
  double time = 0.0;
  double offset = 0.0;
  double error = 0.0;
};

/// Measures the offset by ping-pong with rank 0, one rank after the other. Of several rounds the one with the shortest
/// way there and back counts, and half of that time is the error at most (Cristian 1989). Collective; takes some
/// microseconds for each rank and round.
ClockOffset measure_clock_offset(comm::Communicator& comm, std::function<double()> const& clock);

/// The offset to add to `time` of this rank's clock. It lies on a straight line through two measurements, since clocks
/// do not run equally fast.
double offset_at(ClockOffset const& first, ClockOffset const& last, double time);

/// The seconds from the start of a send of `bytes` between two waiting ranks to the end of its receive. Rank 0 and rank
/// `peer` measure it by ping-pong; the other ranks get the result. 0 when peer is 0. Collective.
double measure_transfer(comm::Communicator& comm, int peer, std::size_t bytes);

}  // namespace p3d::report
