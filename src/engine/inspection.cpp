// SPDX-License-Identifier: Apache-2.0
#include <p3d/engine/inspection.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/layout/communicators.hpp>

#include <limits>

#include "rank_memory.hpp"
#include "step_end.hpp"

namespace p3d::engine {

template <class P>
Inspection<P>::Inspection(RankContext& rank, RankMemory<P>& memory, StepEnd<P>& end)
    : rank_(&rank), memory_(&memory), end_(&end) {}

template <class P>
std::vector<double> Inspection<P>::gather_value(std::string const& name) {
  return gather(name, false);
}

template <class P>
std::vector<double> Inspection<P>::gather_gradient(std::string const& name) {
  P3D_REQUIRE(!end_->gradients_are_zero(), "the gradients of the last step were kept");
  return gather(name, true);
}

template <class P>
std::vector<double> Inspection<P>::gather(std::string const& name, bool gradient) {
  end_->settle();
  auto const& spec = rank_->plan.table.find(name);
  std::vector<double> full(static_cast<std::size_t>(spec.size()), 0.0);
  for (auto& [number, owner] : memory_->units()) {
    auto* const unit = owner.get();  // Clang before 16 captures no structured binding
    if (!unit->params.has(name) || (spec.tied && !unit->stage.is_first())) continue;
    if (!rank_->here.zero(spec.repeated_axes())) continue;
    auto const visit = [&](layout::OwnedRun const& run, auto const& numbers) {
      if (run.copy) return;  // the first group's count
      auto const host = device::copy_to_host("p3d::engine::gather", rank_->exec, numbers);
      layout::for_parameters(unit->params.layout(), run.begin, run.count,
                             [&](layout::LocalParam const& item, std::int64_t first, std::int64_t count) {
                               if (item.spec != &spec) return;
                               for (std::int64_t k = first; k < first + count && k < item.valid_rows * item.cols; ++k) {
                                 auto const row = item.row_begin + k / item.cols, col = item.col_begin + k % item.cols;
                                 full[static_cast<std::size_t>(row * spec.cols + col)] =
                                     static_cast<double>(host(item.offset + k - run.begin));
                               }
                             });
    };
    if (gradient) {
      for (auto const& run : unit->params.shard().owned) visit(run, unit->params.reduced(run));
    } else {
      memory_->for_master(*unit, visit);
    }
  }
  rank_->along(gather_axes(spec, rank_->divides()))
      .all_reduce(full.data(), static_cast<std::int64_t>(full.size()), comm::Type::float64, comm::Reduction::sum)
      .wait();
  return full;
}

template <class P>
void Inspection<P>::keep_gradients(bool keep) {
  end_->keep_gradients(keep);
}

template <class P>
void Inspection<P>::spoil_gradient(std::string const& name) {
  spoilt_ = rank_->plan.table.find(name).name;
}

template <class P>
void Inspection<P>::spoil(int stage, std::size_t first, std::size_t last) {
  if (spoilt_.empty()) return;
  using Gradient = typename P::Gradient;
  auto& unit = memory_->unit(stage);
  auto const& items = unit.params.layout().items();
  for (std::size_t i = first; i < last; ++i) {
    if (items[i].spec->name != spoilt_ || (items[i].spec->tied && !unit.stage.is_first())) continue;
    spoilt_.clear();
    if (!rank_->here.zero(layout::stage_axes)) return;
    auto const element = Kokkos::subview(
        unit.params.grads(), Kokkos::pair<std::int64_t, std::int64_t>(items[i].offset, items[i].offset + 1));
    kernels::fill<Gradient>(rank_->exec, element, static_cast<Gradient>(std::numeric_limits<float>::infinity()));
  }
}

template <class P>
void Inspection<P>::record_routes(model::RouteLog* log) {
  routes_.record = log;
  tap_routes();
}

template <class P>
void Inspection<P>::replay_routes(model::RouteLog const* log) {
  routes_.replay = log;
  routes_.flipped = 0;
  tap_routes();
}

template <class P>
void Inspection<P>::tap_routes() {
  for (auto& w : memory_->workspaces()) w.set_routes(&routes_);
}

template <class P>
std::int64_t Inspection<P>::flipped_routes() {
  auto flipped = routes_.flipped;
  rank_->mesh.world().all_reduce(&flipped, 1, comm::Type::int64, comm::Reduction::sum).wait();
  return flipped;
}

template <class P>
std::int64_t Inspection<P>::context_bytes() const {
  return rank_->context.sent_bytes();
}

template <class P>
std::size_t Inspection<P>::activation_high_water() const {
  return memory_->arena().high_water();
}

template <class P>
std::size_t Inspection<P>::activation_capacity() const {
  return memory_->arena().capacity();
}

#define P3D_INSTANTIATE(P) template class Inspection<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
