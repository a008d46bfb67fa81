// SPDX-License-Identifier: Apache-2.0
// A program that uses p3d's groups without its trainer: the documented cases of p3d/parallel/groups.hpp, on any number
// of ranks that tp = 2 divides (one rank takes tp = 1). It ends with exit code 1 and the line of the first wrong
// answer.
#include <p3d/base/error.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/parallel/groups.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "../checks.hpp"

namespace {

using namespace p3d::parallel;

using p3d::example::error_of;
using p3d::example::has;

/// What every group promises, for the group of this name.
void use(std::string const& name) {
  auto& group = parallel_group(name);
  int const n = group.size(), me = group.rank();
  auto const& ranks = group.ranks();
  auto const world = p3d::comm::Communicator::world();
  CHECK(ranks.at(static_cast<std::size_t>(me)) == world.rank());

  // reduce: the sum of the world ranks of the group.
  std::vector<double> sum{static_cast<double>(world.rank()), 1.0};
  group.reduce<double>(sum);
  CHECK(sum[0] == std::accumulate(ranks.begin(), ranks.end(), 0.0) && sum[1] == n);
  std::vector<int> largest{world.rank()};
  group.reduce<int>(largest, p3d::comm::Reduction::max);
  CHECK(largest[0] == ranks.back());

  // split, and gather, which is its opposite.
  std::vector<float> whole(static_cast<std::size_t>(3 * n));
  std::iota(whole.begin(), whole.end(), 0.0f);
  auto const part = group.split<float>(whole);
  CHECK(part.size() == 3 && part[0] == static_cast<float>(3 * me));
  CHECK(group.gather<float>(part) == whole);
  std::vector<float> const odd(static_cast<std::size_t>(n + 1));
  CHECK(n == 1 || has(error_of([&] { group.split<float>(odd); }), "pad to"));

  // broadcast: from the last rank of the group.
  std::vector<std::int64_t> value{world.rank()};
  group.broadcast<std::int64_t>(value, n - 1);
  CHECK(value[0] == ranks.back());
  CHECK(has(error_of([&] { group.broadcast<std::int64_t>(value, n); }), "a rank of the group, 0 to"));
}

void run() {
  auto const world = p3d::comm::Communicator::world();
  int const n = world.size(), me = world.rank();
  CHECK(!parallel_is_initialised());
  CHECK(has(error_of([] { parallel_group("tp"); }), "call init_parallel()"));
  CHECK(has(error_of([&] { init_parallel({.tp = n + 1}); }), "change these sizes"));
  CHECK(!parallel_is_initialised());

  int const two = n % 2 == 0 ? 2 : 1;
  int const pp = n % 4 == 0 ? 2 : 1;
  init_parallel({.tp = two, .pp = pp}, "tp-pp-dp");
  CHECK(parallel_is_initialised() && parallel_grid().sizes().dp == n / (two * pp));
  CHECK(has(error_of([] { init_parallel({}); }), "call reset_parallel()"));
  CHECK(has(error_of([] { parallel_group("model"); }), "'model'"));
  CHECK(parallel_group("tp").ranks().front() == me / two * two);
  for (auto const& group : p3d::layout::named_groups()) use(group.name);

  // Other sizes in the same process: all ranks in one group of tp, then all of them replicas.
  reset_parallel();
  CHECK(!parallel_is_initialised());
  init_parallel({.tp = n});
  CHECK(parallel_group("tp").size() == n && parallel_group("dp").size() == 1);
  use("tp");
  reset_parallel();
  init_parallel({.ep = n});  // the experts' factorisation of the same ranks
  CHECK(parallel_group("dp").size() == n && parallel_group("ep").size() == n);
  use("ep");
  use("tp_ep_mp");
  reset_parallel();
  if (me == 0) std::printf("groups: all answers are right on %d ranks\n", n);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    p3d::comm::Environment mpi(argc, argv);
    try {
      run();
      return mpi.exit_code(0);
    } catch (std::exception const& e) {
      std::fprintf(stderr, "%s\n", e.what());
      p3d::comm::abort_all(1);
    }
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
