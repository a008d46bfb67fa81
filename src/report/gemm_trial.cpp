// SPDX-License-Identifier: Apache-2.0
// The choice of the library for fp32 GEMMs on the host, and the ceiling that comes from the same measurement.
#include <p3d/report/gemm_trial.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/linalg/blas_threads.hpp>
#include <p3d/linalg/gemm.hpp>
#include <p3d/engine/backend.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

namespace p3d::report {

namespace {

using linalg::GemmChoice;
using linalg::HostLibrary;

constexpr double trial_flops = 1.25e9;  ///< the most of one GEMM of the trial on a host; a GPU takes whole ones
constexpr int trial_rounds = 3;

/// True where two libraries may compute the GEMMs of P.
template <class P>
constexpr bool has_choice =
    std::is_same_v<typename P::Storage, float>&& std::is_same_v<device::MemSpace, device::HostSpace>;

/// The seconds of each library and GEMM, the best of the trial_rounds; the same on every rank.
template <class P>
std::vector<std::vector<double>> best_times(CeilingMeter<P>& meter, std::vector<GemmChoice> const& libraries,
                                            comm::Communicator& world) {
  std::vector<std::vector<double>> best(libraries.size());
  // Libraries are timed in turn, round by round, so that a change of the clock frequency concerns all of them.
  for (int round = 0; round <= trial_rounds; ++round) {
    for (std::size_t l = 0; l < libraries.size(); ++l) {
      linalg::set_gemm_choice(libraries[l]);
      auto const now = meter.measure();
      if (round <= 1) best[l] = now;  // round 0 warms up
      for (std::size_t i = 0; i < now.size(); ++i) best[l][i] = std::min(best[l][i], now[i]);
    }
  }
  for (auto& times : best)
    world.broadcast(times.data(), static_cast<std::int64_t>(times.size()), comm::Type::float64, 0).wait();
  return best;
}

/// The name and version of a library, such as "OpenBLAS 0.3.21", cut out of its longer description of itself.
std::string name_of(HostLibrary library) {
  if (library == HostLibrary::onednn) return "oneDNN " + linalg::onednn_version();
  auto const all = linalg::blas_version();
  auto const name = all.substr(0, all.find(' ', all.find_first_of("0123456789")));
  return all.empty() ? "the BLAS" : name;
}

}  // namespace

template <class P>
std::vector<GemmChoice> gemm_libraries() {
  if (!has_choice<P> || linalg::onednn_version().empty()) return {linalg::gemm_choice()};
  return {GemmChoice(HostLibrary::blas), GemmChoice(HostLibrary::onednn)};
}

template <class P>
CeilingMeter<P> trial_meter(config::Config const& c, comm::Communicator& world) {
  return {model_products(c, device::on_host() ? trial_flops : 0.0), world};
}

template <class P>
GemmTrial try_gemms(config::Config const& c, CeilingMeter<P>& meter, comm::Communicator& world) {
  auto const before = linalg::gemm_choice();
  auto const libraries = gemm_libraries<P>();
  auto const products = model_products(c);
  auto const times = best_times(meter, libraries, world);
  linalg::set_gemm_choice(before);

  // The ceiling takes the quickest library for each GEMM, also where the run uses another one.
  GemmTrial out{usual_gemms(c, world)};
  std::vector<double> least;
  for (std::size_t i = 0; i < products.size(); ++i) {
    std::size_t quickest = 0;
    for (std::size_t l = 1; l < libraries.size(); ++l)
      if (times[l][i] < times[quickest][i]) quickest = l;
    least.push_back(times[quickest][i]);
    auto const& p = products[i];
    if (libraries.size() > 1) out.choice.set(p.op_a, p.op_b, p.m, p.n, p.k, libraries[quickest].others());
  }
  out.ceiling = meter.speed(least);
  return out;
}

GemmChoice usual_gemms(config::Config const& c, comm::Communicator& world) {
  using config::HostGemm;
  auto const host = c.linalg.host;
  double without = host == HostGemm::onednn || (host == HostGemm::automatic && linalg::onednn_is_usual()) ? 0.0 : 1.0;
  world.all_reduce(&without, 1, comm::Type::float64, comm::Reduction::sum).wait();
  return GemmChoice(without == 0.0 ? HostLibrary::onednn : HostLibrary::blas);
}

template <class P>
double choose_gemms(config::Config const& c, comm::Communicator& world) {
  linalg::set_gemm_choice(usual_gemms(c, world));
  if (!engine::set_operands(c) && c.linalg.tf32)
    base::log_root("linalg.tf32 = true changes nothing here: only NVIDIA's GPUs multiply in TF32");
  bool const measures = has_choice<P> && c.linalg.host == config::HostGemm::automatic && !c.run.deterministic &&
                        gemm_libraries<P>().size() > 1;
  bool const wants_ceiling = c.run.ceiling && !c.batch.variable;
  if (!measures && !wants_ceiling) return 0.0;
  std::optional<CeilingMeter<P>> meter;
  try {
    meter.emplace(trial_meter<P>(c, world));
  } catch (base::Error const& e) {  // on all ranks: a run that fits needs no ceiling
    if (measures) throw;
    base::log_root("the ceiling of the MFU is not measured: " + e.text().found);
    return 0.0;
  }
  auto const trial = try_gemms<P>(c, *meter, world);
  if (measures) linalg::set_gemm_choice(trial.choice);
  return wants_ceiling ? trial.ceiling : 0.0;
}

std::string describe_gemms() {
  auto const& choice = linalg::gemm_choice();
  for (auto library : {HostLibrary::onednn, HostLibrary::blas})
    if (choice.shapes(library) == choice.shapes() && (choice.shapes() > 0 || choice.others() == library))
      return name_of(library);
  return fmt::format("{} for {} of {} shapes, {} for {}", name_of(HostLibrary::onednn),
                     choice.shapes(HostLibrary::onednn), choice.shapes(), name_of(HostLibrary::blas),
                     choice.shapes(HostLibrary::blas));
}

#define P3D_INSTANTIATE(P)                                                                       \
  template std::vector<GemmChoice> gemm_libraries<P>();                                          \
  template CeilingMeter<P> trial_meter<P>(config::Config const&, comm::Communicator&);           \
  template GemmTrial try_gemms<P>(config::Config const&, CeilingMeter<P>&, comm::Communicator&); \
  template double choose_gemms<P>(config::Config const&, comm::Communicator&);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::report
