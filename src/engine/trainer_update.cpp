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

namespace {
constexpr std::size_t all_arrays = std::numeric_limits<std::size_t>::max();
constexpr StateParts all_state{.master = true, .arrays = all_arrays, .values = true};
}  // namespace

template <class P>
void Trainer<P>::State::wait_recorded(comm::Request& request) {
  auto* const recorder = executor->recorder();
  double const begin = recorder ? Recorder::now() : 0.0;
  request.wait();
  if (recorder && tried_out) recorder->waited_between({schedule::Op::optimizer_step}, begin);
  if (recorder && !tried_out) recorder->waited({schedule::Op::optimizer_step}, begin);
}

template <class P>
void Trainer<P>::State::finish_tie() {
  if (config.memory.reduce == config::MessageEvery::microbatch)
    for (auto& [number, unit] : units) start_tie(*unit);
  if (tie.active()) wait_recorded(tie);
  auto const first = units.find(0), last = units.find(plan.stages.num_stages() - 1);
  if (!config.model.tied_embeddings || config.divides_vocabulary() || plan.stages.shares_tied() || first == last ||
      first == units.end() || last == units.end())
    return;
  using Gradient = typename P::Gradient;
  auto const a = tied_gradient(*first->second), b = tied_gradient(*last->second);
  auto const n = static_cast<std::int64_t>(a.extent(0));
  kernels::sum_into_both<Gradient>(exec, device::View2<Gradient>(a.data(), 1, n),
                                   device::View2<Gradient>(b.data(), 1, n));
}

template <class P>
void Trainer<P>::State::start_sum(double votes) {
  finish_tie();
  // One sum in the order of the model, however the stages are cut.
  device::View1<double> const squares = Kokkos::subview(sums, Kokkos::pair<int, int>(1, 2));
  for (auto& [number, unit] : units) {
    auto const& params = unit->params;
    bool const packed = config.memory.shard >= config::Shard::gradients;
    if (packed && params.shard().over > 0)
      parallel::exchange_gradients<typename P::Gradient>(exec, params.shard(), params.owned_gradients(),
                                                         replica_groups());
    parallel::add_sum_squares<typename P::Gradient>(exec, params.layout(), params.shard(),
                                                    packed ? params.owned_gradients() : params.grads(), packed, here,
                                                    unit->stage.is_first(), squares);
  }
  auto const own = take_sums();
  sum = {counts_loss() ? own[0] : 0.0, own[1], stop_asked && stop_asked() ? 1.0 : 0.0, votes};
  sum_request = mesh.world().all_reduce(sum.data(), 4, comm::Type::float64, comm::Reduction::sum);
}

template <class P>
void Trainer<P>::State::finish_sum(StepResult& result) {
  wait_recorded(sum_request);
  result.loss = sum[0] / divisor(counted_targets);
  result.grad_norm = std::sqrt(sum[1]) / result.loss_scale;
  result.stop = sum[2] > 0.0;
  result.votes = sum[3];
  bool const finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  last_fitted = finite && optim::clip_factor(result.grad_norm, config.optimizer.grad_clip) == 1.0;
  if (tried_out && !last_fitted) take_back();  // before anybody looks for what is not finite
  if (finite) {
    loss_scaler.update(false);
  } else {
    overflowed(result);
  }
}

template <class P>
void Trainer<P>::State::update(int stage, StepResult& result) {
  if (!std::exchange(summed_up, true)) {
    start_sum(result.votes);
    tried_out = tries_out();
    if (tried_out) {
      ++post_validation.tried_out;
    } else {
      finish_sum(result);
    }
  }
  skipped_update = result.skipped();
  if (skipped_update) {
    gradients_are_zero = false;
    return;
  }
  double const clip = tried_out ? 1.0 : optim::clip_factor(result.grad_norm, config.optimizer.grad_clip);
  // What an update that is tried out replaces is kept, and so are the gradients: they may be needed once more.
  optim::UpdateStep const step{updates_done() + 1, result.lr, clip / result.loss_scale, keep_gradients || tried_out};
  bool const stochastic = config.precision.stochastic_rounding;
  bool const rounds = P::has_master && !stochastic;
  for (auto& [number, unit] : units) {
    if (stage >= 0 && number != stage) continue;
    auto& params = unit->params;
    auto const update_piece = [&](optim::Piece<P>& piece, device::View1<typename P::Storage> values) {
      piece.gradient = params.reduced(piece.run);
      if (rounds) piece.storage = values;
      unit->optimizer->update(exec, step, piece);
      if (stochastic) params.round_run(exec, piece.run, piece.master, values, true, step.number);
    };
    if (unit->offloaded) {
      auto const away = unit->offloaded->parts();
      unit->offloaded->stream(exec, *staging, params.shard(), {.master = true, .arrays = all_arrays}, all_state,
                              [&](layout::OwnedRun const& run, auto const& there) {
                                optim::Piece<P> piece{run, away.master ? there.master : params.master(run)};
                                if (away.arrays > 0)
                                  piece.state = there.state;
                                else
                                  unit->state.bind(piece);
                                device::View1<typename P::Storage> values;
                                if constexpr (P::has_master) values = away.values ? there.values : params.stored(run);
                                update_piece(piece, values);
                              });
    } else {
      for (auto const& run : params.shard().owned) {
        optim::Piece<P> piece{run, params.master(run)};
        unit->state.bind(piece);
        if (tried_out) unit->state.keep_replaced(piece);
        update_piece(piece, params.stored(run));
      }
    }
    if (unit->sharded) unit->sharded->updated();
  }
  // From there on the sum of a step takes the place of the last one's, and whole gradients are zero already.
  bool const overwritten = config.memory.shard >= config::Shard::gradients;
  gradients_are_zero = !keep_gradients && (!tried_out || overwritten);
}

template <class P>
void Trainer<P>::State::refresh_weights() {
  if (!std::exchange(master_is_newer, false)) return;
  forget_opening();  // it read the old ones
  for (auto& [number, unit] : units) {
    auto& params = unit->params;
    bool const stochastic = config.precision.stochastic_rounding;
    if (P::has_master && unit->offloaded && unit->offloaded->parts().values) {
      bool const away = unit->offloaded->parts().master;
      unit->offloaded->stream(exec, *staging, params.shard(), {.master = true}, {.values = true},
                              [&](layout::OwnedRun const& run, auto const& there) {
                                params.round_run(exec, run, away ? there.master : params.master(run), there.values,
                                                 stochastic, updates_done());
                              });
    } else if (P::has_master) {
      for_master(*unit, [&](layout::OwnedRun const& run, auto const& master) {
        params.round_run(exec, run, master, params.stored(run), stochastic, updates_done());
      });
    }
    if (unit->sharded) unit->sharded->updated();
  }
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
    for (auto& [number, owner] : units) {
      auto const& params = owner->params;
      auto const count_bad = [&]<class T>(layout::OwnedRun const& run, device::View1<T> all, std::int64_t first_key) {
        layout::for_parameters(params.layout(), run.begin, run.count,
                               [&](layout::LocalParam const& item, std::int64_t begin, std::int64_t count) {
                                 auto const key = first_key + static_cast<std::int64_t>(item.spec - specs.data());
                                 if (only >= 0 && key != only) return;
                                 auto const at = item.offset + begin - run.begin;
                                 auto const part =
                                     Kokkos::subview(all, Kokkos::pair<std::int64_t, std::int64_t>(at, at + count));
                                 auto const bad = kernels::count_not_finite<T>(exec, device::View1<T const>(part));
                                 if (bad > 0) first = std::min(first, key);
                                 elements += bad;
                               });
      };
      for_master(*owner, [&](layout::OwnedRun const& run, auto const& master) {
        count_bad(run, device::View1<typename P::Master>(master), 0);
      });
      for (auto const& run : params.shard().owned)
        count_bad(run, params.reduced(run), static_cast<std::int64_t>(specs.size()));
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
  template void Trainer<P>::State::finish_sum(StepResult&);              \
  template void Trainer<P>::State::wait_recorded(comm::Request&);        \
  template void Trainer<P>::State::update(int, StepResult&);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
