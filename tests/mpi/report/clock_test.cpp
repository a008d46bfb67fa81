// SPDX-License-Identifier: Apache-2.0
// The offset of clocks that are known, and messages between waiting ranks.

#include <p3d/base/timer.hpp>
#include <p3d/engine/recorder.hpp>
#include <report/clock_offset.hpp>

#include <support/mpi_main.hpp>

#include <cmath>

using namespace p3d;

namespace {

/// Every rank's clock is off by 100 s and 1 % for each rank before it.
struct OddClock {
  double ahead, rate;
  double operator()() const { return at(engine::Recorder::now()); }
  double at(double time) const { return time * rate + ahead; }
  double offset(double shown) const { return (shown - ahead) / rate - shown; }  ///< rank 0's clock is right
};

TEST(ClockOffset, is_found_within_its_error) {
  auto world = comm::Communicator::world();
  OddClock const clock{-100.0 * world.rank(), 1.0 + 0.01 * world.rank()};
  base::Stopwatch const watch;
  auto const first = report::measure_clock_offset(world, clock);
  auto const last = report::measure_clock_offset(world, clock);
  double const took = watch.seconds();
  for (auto const& found : {first, last}) {
    EXPECT_GE(found.error, 0.0);
    EXPECT_LE(found.error, took);  // half of one exchange of many: a machine may be slow, and then it says so
    EXPECT_LE(std::fabs(found.offset - clock.offset(found.time)), 1.02 * found.error + 1e-7);
  }
  if (world.rank() == 0) {
    EXPECT_EQ(first.offset, 0.0);
  }
  // Any time between the two.
  for (double part : {0.0, 0.3, 1.0}) {
    double const time = first.time + part * (last.time - first.time);
    EXPECT_LE(std::fabs(report::offset_at(first, last, time) - clock.offset(time)),
              1.02 * (first.error + last.error) + 1e-7);
  }
}

TEST(ClockOffset, transfer_time_is_known_to_all) {
  auto world = comm::Communicator::world();
  EXPECT_EQ(report::measure_transfer(world, 0, 1000), 0.0);
  if (world.size() == 1) return;
  base::Stopwatch const watch;
  double seconds = report::measure_transfer(world, world.size() - 1, 100000);
  double took = watch.seconds();
  world.all_reduce(&took, 1, comm::Type::float64, comm::Reduction::max).wait();
  EXPECT_GT(seconds, 0.0);
  EXPECT_LT(seconds, took);  // one of the transfers that were timed
  double const mine = seconds;
  world.broadcast(&seconds, 1, comm::Type::float64, 0).wait();
  EXPECT_EQ(mine, seconds);
}

}  // namespace
