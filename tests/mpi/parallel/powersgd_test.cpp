// SPDX-License-Identifier: Apache-2.0
// PowerSGD of two workers beside PyTorch's hook (powersgd/make_powersgd.py), on one replica and on two: the same means
// of gradients, with the same first factor.

#include <p3d/device/guard.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/parallel/compression.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/tiny.hpp>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace p3d;
using Numbers = std::vector<double>;

constexpr int workers = 2, rank = 2;
constexpr std::int64_t rows = 24, cols = 16;

std::map<std::string, Numbers> reference() {
  std::ifstream lines(std::string(P3D_SOURCE_DIR) + "/tests/mpi/parallel/powersgd/powersgd.reference.txt");
  std::map<std::string, Numbers> out;
  for (std::string line, name; std::getline(lines, line);) {
    std::istringstream words(line);
    words >> name;
    for (double x; words >> x;) out[name].push_back(x);
  }
  return out;
}

template <class T>
void compare(double tolerance) {
  auto const expected = reference();
  auto world = comm::Communicator::world();
  auto self = comm::Communicator::self();
  auto const c =
      test::config_of(test::joined({test::tiny_model(1),
                                    test::Keys{"model.preset=llama-tiny", "model.ffn=24", "model.tied_embeddings=false",
                                               "comm.compress=powersgd", "comm.powersgd_rank=2", "comm.workers=2",
                                               "batch.global=2", test::licence_text()}}),
                      world.size());
  auto const table = layout::make_param_table(c);
  auto const stages = layout::make_stage_map(c, {0});
  layout::StageParams const params(table, stages, 0, c.parallel, layout::PerAxis::all(0));
  auto const& item = params.find("layers.0.mlp.up.weight");
  ASSERT_EQ(item.size(), rows * cols);
  device::Owned1<T> const gradients("p3d::test::gradients", static_cast<std::size_t>(params.flat_size()));
  auto plan = layout::make_compression(c, params, sizeof(T));
  auto const at = std::find_if(plan.low_rank.begin(), plan.low_rank.end(), [&](auto const& t) {
                    return &params.items()[t.item] == &item;
                  })->right;
  auto const compressor = parallel::make_compressor<T>(
      device::ExecSpace(), plan, params, gradients,
      [&](layout::AxisSet axes) -> comm::Communicator& { return axes.has(layout::Axis::dp) ? world : self; }, 3);
  auto const copy = [&](device::View1<T> to, std::int64_t first, Numbers const& numbers) {
    auto const host = device::host_copy(to);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      host(static_cast<std::size_t>(first) + i) = static_cast<T>(numbers[i]);
    Kokkos::deep_copy(to, host);
  };
  Numbers factor(static_cast<std::size_t>(rank * cols));  // by rows
  for (std::size_t k = 0; k < rank; ++k)
    for (std::size_t j = 0; j < cols; ++j) factor[k * cols + j] = expected.at("Q")[j * rank + k];
  copy(compressor->factors(), at, factor);
  for (int step = 2; step < 6; ++step) {
    for (int j = 0; j < workers / world.size(); ++j) {
      auto g = expected.at("worker" + std::to_string(world.rank() * workers / world.size() + j) + "." +
                           std::to_string(step));
      for (auto& x : g) x /= workers;
      copy(gradients, item.offset, g);
      compressor->take(j, step, 1.0);
    }
    compressor->start();
    compressor->add_up();
    compressor->finish(1.0);
    auto const found = device::host_copy(gradients);
    auto const& mean = expected.at("mean." + std::to_string(step));
    for (std::size_t i = 0; i < mean.size(); ++i)
      EXPECT_NEAR(found(static_cast<std::size_t>(item.offset) + i), mean[i], tolerance) << "step " << step;
  }
}

TEST(PowerSgd, GivesWhatPyTorchGives) {
  compare<double>(1e-13);
  compare<float>(2e-6);
}

}  // namespace
