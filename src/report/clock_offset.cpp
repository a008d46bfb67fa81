// SPDX-License-Identifier: Apache-2.0
// Clock offsets and message times by ping-pong between two ranks, the best of some rounds.
#include "clock_offset.hpp"

#include <p3d/base/timer.hpp>

#include <algorithm>
#include <limits>
#include <vector>

namespace p3d::report {

namespace {

constexpr int rounds = 16;
constexpr int clock_tag = 7;

/// Sends bytes and waits.
void send(comm::Communicator& comm, void const* data, std::size_t bytes, int peer) {
  comm.send(data, static_cast<std::int64_t>(bytes), comm::Type::byte, peer, clock_tag).wait();
}
/// Receives bytes and waits.
void receive(comm::Communicator& comm, void* data, std::size_t bytes, int peer) {
  comm.recv(data, static_cast<std::int64_t>(bytes), comm::Type::byte, peer, clock_tag).wait();
}

}  // namespace

ClockOffset measure_clock_offset(comm::Communicator& comm, std::function<double()> const& clock) {
  ClockOffset best;
  best.time = clock();
  if (comm.rank() == 0) {
    for (int peer = 1; peer < comm.size(); ++peer)
      for (int i = 0; i < rounds; ++i) {
        double time = 0.0;
        receive(comm, &time, sizeof(time), peer);
        time = clock();
        send(comm, &time, sizeof(time), peer);
      }
  } else {
    best.error = std::numeric_limits<double>::infinity();
    for (int i = 0; i < rounds; ++i) {
      // Rank 0 reads its clock between the two messages. If both messages took the same time, that was in the middle of
      // the round; if not, the middle is wrong by half of the round at most.
      double theirs = 0.0;
      double const before = clock();
      send(comm, &before, sizeof(before), 0);
      receive(comm, &theirs, sizeof(theirs), 0);
      double const after = clock(), error = (after - before) / 2;
      if (error < best.error) best = {before + error, theirs - (before + error), error};
    }
  }
  return best;
}

double offset_at(ClockOffset const& first, ClockOffset const& last, double time) {
  // Two measurements at one time give no line; the later one counts.
  double const span = last.time - first.time;
  if (!(span > 0.0)) return last.offset;
  return first.offset + (last.offset - first.offset) * (time - first.time) / span;
}

double measure_transfer(comm::Communicator& comm, int peer, std::size_t bytes) {
  if (peer == 0) return 0.0;
  std::vector<char> buffer(std::max<std::size_t>(1, bytes));
  double best = std::numeric_limits<double>::infinity();
  if (comm.rank() == 0) {
    for (int i = 0; i < rounds; ++i) {
      base::Stopwatch watch;
      send(comm, buffer.data(), buffer.size(), peer);
      receive(comm, buffer.data(), buffer.size(), peer);
      best = std::min(best, watch.seconds() / 2);
    }
  } else if (comm.rank() == peer) {
    for (int i = 0; i < rounds; ++i) {
      receive(comm, buffer.data(), buffer.size(), 0);
      send(comm, buffer.data(), buffer.size(), 0);
    }
  }
  comm.broadcast(&best, 1, comm::Type::float64, 0).wait();
  return best;
}

}  // namespace p3d::report
