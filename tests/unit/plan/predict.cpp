// SPDX-License-Identifier: Apache-2.0
// A program of the pure rooms alone: it plans a run and prints its memory, with neither Kokkos nor MPI.
// plan_predict FILE RANKS [KEY=VALUE ...]: the table of `p3d --check`, and that of buffers.

#include <p3d/base/error.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/plan/run_plan.hpp>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  auto const result =
      p3d::config::parse_file(argv[1], std::vector<std::string>(argv + 3, argv + argc), std::atoi(argv[2]));
  if (!result.config) {
    std::cerr << p3d::config::format(result.errors);
    return 1;
  }
  try {
    auto const plan = p3d::plan::make_run_plan(*result.config, {});
    std::cout << p3d::plan::format(plan.memory) << p3d::plan::buffer_table(*result.config, plan, {});
  } catch (p3d::base::Error const& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
  return 0;
}
