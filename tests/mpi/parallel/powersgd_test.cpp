// SPDX-License-Identifier: Apache-2.0
// PowerSGD of two workers beside PyTorch's hook (powersgd/make_powersgd.py), on one replica and on two: the same means
// of gradients, with the same first factor.

#include <p3d/base/random.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/layout/stages.hpp>
#include <p3d/parallel/compression.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/tiny.hpp>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
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

/// A compressor of the stage of a tiny model, and one matrix of it.
template <class T>
struct Stage {
  comm::Communicator world = comm::Communicator::world(), self = comm::Communicator::self();
  config::Config config =
      test::config_of(test::joined({test::tiny_model(1),
                                    test::Keys{"model.preset=llama-tiny", "model.ffn=24", "model.tied_embeddings=false",
                                               "comm.compress=powersgd", "comm.powersgd_rank=2", "comm.workers=2",
                                               "batch.global=2", test::licence_text()}}),
                      world.size());
  layout::ParamTable table = layout::make_param_table(config);
  layout::StageMap stages = layout::make_stage_map(config, {0});
  layout::StageParams params{table, stages, 0, config.parallel, layout::PerAxis::all(0)};
  layout::LocalParam const& item = params.find("layers.0.mlp.up.weight");
  device::Owned1<T> gradients{"p3d::test::gradients", static_cast<std::size_t>(params.flat_size())};
  std::unique_ptr<parallel::GradientCompressor<T>> compressor = parallel::make_compressor<T>(
      device::ExecSpace(), layout::make_compression(config, params, sizeof(T)), params, gradients,
      [this](layout::AxisSet axes) -> comm::Communicator& { return axes.has(layout::Axis::dp) ? world : self; }, 3);

  static void copy(device::View1<T> to, std::int64_t first, Numbers const& numbers) {
    auto const host = device::host_copy(to);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      host(static_cast<std::size_t>(first) + i) = static_cast<T>(numbers[i]);
    Kokkos::deep_copy(to, host);
  }

  /// What comes of gradients of both workers, whose mean it is compared with.
  Numbers step(int number, std::vector<Numbers> const& of_workers) {
    int const each = workers / world.size();
    for (int j = 0; j < each; ++j) {
      auto g = of_workers[static_cast<std::size_t>(world.rank() * each + j)];
      for (auto& x : g) x /= workers;
      copy(gradients, item.offset, g);
      compressor->take(j, number, 1.0);
    }
    compressor->start();
    compressor->add_up();
    compressor->finish(1.0);
    auto const host = device::host_copy(gradients);
    Numbers out;
    for (std::int64_t i = 0; i < item.size(); ++i)
      out.push_back(static_cast<double>(host(static_cast<std::size_t>(item.offset + i))));
    return out;
  }
};

void expect_near(Numbers const& found, Numbers const& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << i;
}

template <class T>
void compare(double tolerance) {
  auto const expected = reference();
  Stage<T> stage;
  ASSERT_EQ(stage.item.size(), rows * cols);
  auto const& all = stage.compressor->plan().low_rank;
  auto const at = std::find_if(all.begin(), all.end(), [&](auto const& t) {
                    return &stage.params.items()[t.item] == &stage.item;
                  })->right;
  Numbers factor(static_cast<std::size_t>(rank * cols));  // by rows
  for (std::size_t k = 0; k < rank; ++k)
    for (std::size_t j = 0; j < cols; ++j) factor[k * cols + j] = expected.at("Q")[j * rank + k];
  stage.copy(stage.compressor->factors(), at, factor);
  for (int step = 2; step < 6; ++step) {
    SCOPED_TRACE(step);
    auto const name = [&](char const* of) { return of + std::to_string(step); };
    expect_near(stage.step(step, {expected.at(name("worker0.")), expected.at(name("worker1."))}),
                expected.at(name("mean.")), tolerance);
  }
}

TEST(PowerSgd, GivesWhatPyTorchGives) {
  compare<double>(1e-13);
  compare<float>(2e-6);
}

Numbers outer(int seed) {
  Numbers out;
  auto const key = base::random_key(5, "outer");
  auto const at = [&](int stream, std::int64_t i) {
    return base::random_normal(key, static_cast<std::uint64_t>(2 * seed + stream), static_cast<std::uint64_t>(i));
  };
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) out.push_back(at(0, i) * at(1, j));
  return out;
}

/// Gradients with fewer directions than factors have columns are exact, and another direction that comes later is seen.
template <class T>
void few_directions(double tolerance) {
  Stage<T> stage;
  auto const one = outer(0), other = outer(1);
  auto both = one;
  for (std::size_t i = 0; i < both.size(); ++i) both[i] += other[i];
  int number = 0;
  for (auto const& g : {one, one, one, both, both, one, both}) {
    SCOPED_TRACE(++number);
    expect_near(stage.step(number, {g, g}), g, tolerance);
  }
}

TEST(PowerSgd, FewDirectionsAreExact) {
  few_directions<double>(1e-12);
  few_directions<float>(1e-5);
}

}  // namespace
