// SPDX-License-Identifier: Apache-2.0
// A project outside p3d: trains three steps through the public headers alone, on the ranks it is started with, and
// writes the losses as exact numbers. The calling test compares them with those of the installed program.
#include <p3d/base/error.hpp>
#include <p3d/base/version.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/engine/trainer.hpp>

#include <cstdio>
#include <exception>

namespace {

int train(char const* input) {
  auto const world = p3d::comm::Communicator::world();
  auto const parsed = p3d::config::parse_file(input, {}, world.size());
  if (!parsed.config) {
    std::fprintf(stderr, "%s", p3d::config::format(parsed.errors).c_str());
    return 2;
  }
  p3d::engine::Trainer<p3d::device::Fp64> trainer(*parsed.config, world);
  for (int step = 0; step < 3; ++step) {
    auto const result = trainer.step();
    if (world.rank() == 0)
      std::printf("step %d loss %.17g grad_norm %.17g\n", static_cast<int>(result.step), result.loss, result.grad_norm);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    p3d::comm::Environment mpi(argc, argv);
    try {
      auto const node = p3d::comm::node_share();
      p3d::device::Environment kokkos(argc, argv, 1, node.rank);
      if (node.rank == 0) std::printf("p3d %s\n", p3d::base::version().c_str());
      return mpi.exit_code(train(argv[1]));
    } catch (std::exception const& e) {
      std::fprintf(stderr, "%s\n", e.what());
      p3d::comm::abort_all(1);
    }
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
