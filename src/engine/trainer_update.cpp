// SPDX-License-Identifier: Apache-2.0
// The end of a step: sums over the ranks, loss scale, update of the weights.

#include "trainer_state.hpp"

#include <p3d/base/error.hpp>
#include <p3d/kernels/elementwise.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace p3d::engine {

template <class P>
void Trainer<P>::State::wait_recorded(comm::Request& request) {
  auto* const recorder = executor->recorder();
  double const begin = recorder ? Recorder::now() : 0.0;
  request.wait();
  if (recorder) recorder->waited({schedule::Op::optimizer_step}, begin);
}

template <class P>
void Trainer<P>::State::finish_tie() {
  if (tie.active()) wait_recorded(tie);
  auto const first = units.find(0), last = units.find(plan.stages.num_stages() - 1);
  if (!config.model.tied_embeddings || first == last || first == units.end() || last == units.end()) return;
  auto const a = first->second->params.matrix("embed.token.weight").grad,
             b = last->second->params.matrix("embed.token.weight").grad;
  kernels::sum_into_both<typename P::Gradient>(exec, a, b);
}

template <class P>
void Trainer<P>::State::sum_up(double loss_sum, StepResult& result) {
  finish_tie();
  double squares = 0.0;
  for (auto& [number, unit] : units) {
    squares += parallel::local_sum_squares<typename P::Gradient>(exec, unit->params.layout(), unit->params.grads(),
                                                                 plan.grid.sizes(), here, unit->stage.is_first());
  }
  // Every rank of a tp group saw the whole group's loss.
  std::array<double, 4> sums{counts_loss() ? loss_sum : 0.0, squares, stop_asked && stop_asked() ? 1.0 : 0.0,
                             result.votes};
  auto summed = mesh.world().all_reduce(sums.data(), 4, comm::Type::float64, comm::Reduction::sum);
  wait_recorded(summed);
  result.loss = sums[0] / static_cast<double>(tokens_per_step());
  result.grad_norm = std::sqrt(sums[1]) / result.loss_scale;
  result.stop = sums[2] > 0.0;
  result.votes = sums[3];
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) {
    loss_scaler.update(false);
  } else {
    overflowed(result);
  }
}

template <class P>
void Trainer<P>::State::update(double loss_sum, int stage, StepResult& result) {
  if (!std::exchange(summed_up, true)) sum_up(loss_sum, result);
  if (result.skipped()) {
    gradients_are_zero = false;
    return;
  }
  double const factor = optim::clip_factor(result.grad_norm, config.optimizer.grad_clip) / result.loss_scale;
  for (auto& [number, unit] : units) {
    if (stage >= 0 && number != stage) continue;
    bool const stochastic = config.precision.stochastic_rounding;
    device::View1<typename P::Storage> rounded;
    if (P::has_master && !stochastic) rounded = unit->params.values();
    unit->optimizer.apply(exec, updates_done() + 1, result.lr, factor, unit->params.master(), unit->params.grads(),
                          rounded, keep_gradients);
    if (stochastic) unit->params.round_values(exec, true, updates_done() + 1);
  }
  gradients_are_zero = !keep_gradients;
}

template <class P>
void Trainer<P>::State::refresh_weights() {
  if (!std::exchange(master_is_newer, false) || !P::has_master) return;
  for (auto& [number, unit] : units)
    unit->params.round_values(exec, config.precision.stochastic_rounding, updates_done());
}

template <class P>
void Trainer<P>::State::spoil(int stage, std::size_t first, std::size_t last) {
  auto& unit = *units.at(stage);
  auto const& items = unit.params.layout().items();
  for (std::size_t i = first; i < last; ++i) {
    if (items[i].spec->name != spoilt || (items[i].spec->tied && !unit.stage.is_first())) continue;
    spoilt.clear();
    if (!here.zero(layout::stage_axes)) return;
    auto const element = Kokkos::subview(
        unit.params.grads(), Kokkos::pair<std::int64_t, std::int64_t>(items[i].offset, items[i].offset + 1));
    kernels::fill<typename P::Gradient>(exec, element,
                                        static_cast<typename P::Gradient>(std::numeric_limits<float>::infinity()));
  }
}

template <class P>
void Trainer<P>::State::overflowed(StepResult& result) {
  auto const where = find_not_finite();
  double const scale = loss_scaler.scale();
  if (loss_scaler.update(true)) {
    result.overflow = where;
    return;
  }
  bool const scaled = loss_scaler.skips();
  throw base::Error(
      {.expected = "a finite loss and gradient norm",
       .found = fmt::format("loss {}, gradient norm {} at step {}{}; {}", result.loss, result.grad_norm, result.step,
                            scaled ? fmt::format(" with a loss scale of {}, its floor", scale) : "", where),
       .where = fmt::format("step {} of {}", result.step, config.run.steps),
       .fix = "lower optimizer.lr, raise optimizer.warmup_steps, set optimizer.grad_clip = 1.0, or use "
              "run.precision = \"fp64\" to see whether it is rounding"},
      base::ExitCode::not_finite);
}

template <class P>
std::string Trainer<P>::State::find_not_finite() {
  // Key of a bad tensor: its place in the table, values before gradients. The smallest over all ranks is the first.
  auto const& specs = plan.table.specs();
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::int64_t first = none;
  std::int64_t elements = 0;
  auto const scan = [&](std::int64_t only) {
    for (auto& [number, unit] : units) {
      for (auto const& item : unit->params.layout().items()) {
        auto const row = item.spec - specs.data();
        auto const range = Kokkos::pair<std::int64_t, std::int64_t>(item.offset, item.offset + item.size());
        for (int g = 0; g < 2; ++g) {
          std::int64_t const key = row + g * static_cast<std::int64_t>(specs.size());
          if (only >= 0 && key != only) continue;
          auto const count = [&]<class T>(device::View1<T> all) {
            return kernels::count_not_finite<T>(exec, device::View1<T const>(Kokkos::subview(all, range)));
          };
          auto const bad = g == 0 ? count(unit->params.master()) : count(unit->params.grads());
          if (bad > 0) first = std::min(first, key);
          elements += bad;
        }
      }
    }
  };
  scan(-1);
  mesh.world().all_reduce(&first, 1, comm::Type::int64, comm::Reduction::min).wait();
  elements = 0;
  if (first != none) scan(first);
  mesh.world().all_reduce(&elements, 1, comm::Type::int64, comm::Reduction::max).wait();
  std::string tensor = "no parameter or gradient holds a bad element: the loss or the norm itself overflowed";
  if (first != none) {
    auto const n = static_cast<std::int64_t>(specs.size());
    tensor = fmt::format("first bad tensor in model order: the {} of {} ({} bad elements on the rank that has most)",
                         first < n ? "value" : "gradient", specs[static_cast<std::size_t>(first % n)].name, elements);
  }
  return tensor;
}

#define P3D_INSTANTIATE(P)                                               \
  template void Trainer<P>::State::refresh_weights();                    \
  template void Trainer<P>::State::spoil(int, std::size_t, std::size_t); \
  template void Trainer<P>::State::wait_recorded(comm::Request&);        \
  template void Trainer<P>::State::update(double, int, StepResult&);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
