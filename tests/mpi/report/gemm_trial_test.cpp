// SPDX-License-Identifier: Apache-2.0
// Which library carries out a run's fp32 GEMMs: fixed by the key, and the same on every rank after a trial.

#include <p3d/device/precision.hpp>
#include <p3d/report/ceiling.hpp>
#include <p3d/report/gemm_trial.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/tiny.hpp>

#include <string>
#include <vector>

namespace {

using namespace p3d;
using device::Fp32;
using linalg::HostLibrary;

bool has_onednn() { return !linalg::onednn_version().empty(); }

config::Config config_of(test::Keys const& keys) {
  return test::config_of(test::joined({keys, {"model.preset=gpt2-tiny", "data.format=synthetic", "batch.global=12"}}),
                         1);
}

template <class P>
report::GemmTrial tried(test::Keys const& keys, comm::Communicator& world) {
  auto const c = config_of(keys);
  auto meter = report::trial_meter<P>(c, world);
  return report::try_gemms<P>(c, meter, world);
}

struct Fresh {
  Fresh() { linalg::set_gemm_choice(linalg::GemmChoice()); }
  ~Fresh() { linalg::set_gemm_choice(linalg::GemmChoice()); }
};

TEST(ChooseGemms, TheKeyDecides) {
  auto world = comm::Communicator::world();
  Fresh const fresh;
  for (char const* host : {"blas", "onednn"}) {
    bool const onednn = std::string(host) == "onednn";
    if (onednn && !has_onednn()) continue;
    for (char const* deterministic : {"true", "false"}) {
      report::choose_gemms<Fp32>(
          config_of({std::string("linalg.host=") + host, std::string("run.deterministic=") + deterministic}), world);
      EXPECT_EQ(linalg::gemm_choice().others(), onednn ? HostLibrary::onednn : HostLibrary::blas);
      EXPECT_EQ(linalg::gemm_choice().shapes(), 0);
      EXPECT_EQ(report::describe_gemms().starts_with("oneDNN "), onednn) << report::describe_gemms();
    }
  }
}

TEST(ChooseGemms, DeterministicRunsGoByARule) {
  auto world = comm::Communicator::world();
  Fresh const fresh;
  double const ceiling = report::choose_gemms<Fp32>(config_of({}), world);
  EXPECT_GT(ceiling, 0.0);
  EXPECT_EQ(linalg::gemm_choice().shapes(), 0);
  EXPECT_EQ(linalg::gemm_choice().others(), linalg::onednn_is_usual() ? HostLibrary::onednn : HostLibrary::blas);
  EXPECT_EQ(report::choose_gemms<Fp32>(config_of({"run.ceiling=false"}), world), 0.0);
}

TEST(ChooseGemms, ATrialIsTheSameOnAllRanks) {
  auto world = comm::Communicator::world();
  Fresh const fresh;
  auto const c = config_of({"run.deterministic=false"});
  std::vector<double> mine{report::choose_gemms<Fp32>(c, world)};
  auto const products = report::model_products(c);
  EXPECT_EQ(linalg::gemm_choice().shapes(), has_onednn() ? static_cast<std::int64_t>(products.size()) : 0);
  for (auto const& p : products)
    mine.push_back(linalg::gemm_choice().of(p.op_a, p.op_b, p.m, p.n, p.k) == HostLibrary::onednn ? 1.0 : 0.0);
  auto of_root = mine;
  world.broadcast(of_root.data(), static_cast<std::int64_t>(of_root.size()), comm::Type::float64, 0).wait();
  EXPECT_EQ(mine, of_root);
  EXPECT_GT(mine.front(), 0.0);
}

// fp64 has the BLAS alone; a trial leaves the choice as it was.
TEST(TryGemms, LeavesTheChoice) {
  auto world = comm::Communicator::world();
  Fresh const fresh;
  linalg::GemmChoice before;
  before.set(linalg::Op::none, linalg::Op::none, 1, 2, 3, HostLibrary::blas);
  linalg::set_gemm_choice(before);
  EXPECT_EQ(tried<device::Fp64>({"run.precision=fp64"}, world).choice.shapes(), 0);
  EXPECT_EQ(report::gemm_libraries<Fp32>().size(), has_onednn() ? 2U : 1U);
  tried<Fp32>({}, world);
  EXPECT_EQ(linalg::gemm_choice().shapes(), 1);
}

}  // namespace
