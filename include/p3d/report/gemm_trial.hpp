// SPDX-License-Identifier: Apache-2.0
#pragma once
// The choice, at the start of a run, of the library that computes its fp32 GEMMs (linalg.host), and the speed that its
// GEMMs could have.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/linalg/gemm_choice.hpp>
#include <p3d/report/ceiling.hpp>

#include <string>
#include <vector>

namespace p3d::report {

/// The result of a trial.
struct GemmTrial {
  linalg::GemmChoice
      choice;            ///< for each of model_products the quicker library; for other GEMMs linalg::onednn_is_usual
  double ceiling = 0.0;  ///< FLOP/s of one rank, each GEMM by its quickest library
};

/// The libraries that can compute GEMMs of policy P on this host. Where there is no choice (GPUs, fp64, 16 bits, builds
/// without oneDNN) it is the current one alone.
template <class P>
std::vector<linalg::GemmChoice> gemm_libraries();

/// The model's GEMMs, made smaller on a host, with memory for them. Throws base::Error, on all ranks, where a rank
/// cannot take that memory. Collective.
template <class P>
CeilingMeter<P> trial_meter(config::Config const& config, comm::Communicator& world);

/// Times these GEMMs: each library in turn, once to warm up, then the best of
/// three. The figures of rank 0, which are means over the ranks, count on every rank, so that all choose alike.
/// gemm_choice() is the same afterwards. Takes about a second for two libraries where a core does 100 GFLOP/s.
/// Collective.
template <class P>
GemmTrial try_gemms(config::Config const& config, CeilingMeter<P>& meter, comm::Communicator& world);

/// The choice without a trial: the library that linalg.host names; for "auto" oneDNN where linalg::onednn_is_usual on
/// all ranks. Collective.
linalg::GemmChoice usual_gemms(config::Config const& config, comm::Communicator& world);

/// Sets gemm_choice() by linalg.host. A trial is made where a ceiling is wanted, or where the choice depends on one:
/// for "auto", in fp32, without run.deterministic. Returns the ceiling, 0 where run.ceiling is false or lengths vary,
/// or where there is no memory to measure it, which is logged. Collective.
template <class P>
double choose_gemms(config::Config const& config, comm::Communicator& world);

/// The choice in words: "oneDNN 2.6.3 for 14 of 15 shapes, OpenBLAS 0.3.21 for 1".
std::string describe_gemms();

}  // namespace p3d::report
