// SPDX-License-Identifier: Apache-2.0
#include "expert_balance.hpp"

#include <p3d/device/guard.hpp>
#include <p3d/layout/params.hpp>

#include <algorithm>
#include <cmath>

namespace p3d::engine {

double ExpertLoad::busiest() const {
  double most = 0.0, sum = 0.0;
  for (auto n : tokens) {
    most = std::max(most, static_cast<double>(n));
    sum += static_cast<double>(n);
  }
  return sum > 0 ? most * static_cast<double>(tokens.size()) / sum : 0.0;
}

double ExpertLoad::entropy() const {
  double sum = 0.0, entropy = 0.0;
  for (auto n : tokens) sum += static_cast<double>(n);
  for (auto n : tokens) {
    double const share = static_cast<double>(n) / sum;
    if (n > 0) entropy -= share * std::log(share);
  }
  return tokens.size() > 1 ? entropy / std::log(static_cast<double>(tokens.size())) : 1.0;
}

template <class P>
std::vector<ExpertLoad> ExpertBalance<P>::loads() {
  auto const& model = rank_->config.model;
  std::vector<ExpertLoad> out;
  if (!model.moe.on()) return out;
  std::vector<std::int64_t> counts;  // other ranks of the pipeline have other layers
  for (std::int64_t l = 0; l < model.all_layers(); ++l) {
    if (!model.has_experts(l)) continue;
    auto const mine = chosen_.find(l);
    out.push_back({l, {}});
    if (mine == chosen_.end())
      counts.insert(counts.end(), static_cast<std::size_t>(model.moe.experts), 0);
    else
      counts.insert(counts.end(), mine->second.begin(), mine->second.end());
  }
  rank_->mesh.along("pp").all_reduce(counts.data(), std::ssize(counts), comm::Type::int64, comm::Reduction::sum).wait();
  for (std::size_t i = 0; i < out.size(); ++i) {
    auto const begin = counts.begin() + static_cast<std::ptrdiff_t>(i) * model.moe.experts;
    out[i].tokens.assign(begin, begin + model.moe.experts);
  }
  return out;
}

template <class P>
void ExpertBalance<P>::follow(bool updated) {
  auto const& config = rank_->config;
  if (!config.model.moe.on()) return;
  auto const experts_of_layer = static_cast<std::size_t>(config.model.moe.experts);
  std::vector<std::int64_t> counts;  // of this rank's layers with experts, one behind the other
  std::vector<std::int64_t> layers;
  for (auto& [number, unit] : memory_->units()) {
    auto layer = rank_->plan.stages.layers(number).begin;
    for (auto const& of_layer : unit->stage.take_expert_counts()) {
      if (!of_layer.empty()) {
        layers.push_back(layer);
        counts.insert(counts.end(), of_layer.begin(), of_layer.end());
      }
      ++layer;
    }
  }
  for (auto a : layout::stage_axes.list()) {
    if (config.parallel[a] > 1)
      rank_->mesh.along(layout::name(a))
          .all_reduce(counts.data(), std::ssize(counts), comm::Type::int64, comm::Reduction::sum)
          .wait();
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    auto const begin = counts.begin() + static_cast<std::ptrdiff_t>(i * experts_of_layer);
    chosen_[layers[i]].assign(begin, begin + static_cast<std::ptrdiff_t>(experts_of_layer));
  }
  if (config.model.moe.changes_router() && updated) change_router();
}

template <class P>
void ExpertBalance<P>::change_router() {
  using Master = typename P::Master;
  double const rate = rank_->config.model.moe.bias_update_rate;
  for (auto& [number, owner] : memory_->units()) {
    auto* const unit = owner.get();
    memory_->for_master(*unit, [&](layout::OwnedRun const& run, auto const& numbers) {
      layout::for_parameters(
          unit->params.layout(), run.begin, run.count,
          [&](layout::LocalParam const& item, std::int64_t first, std::int64_t count) {
            bool const load = item.spec->name.ends_with(".load");
            if (item.spec->trained || (!load && rate == 0.0)) return;
            auto const& of_layer = chosen_.at(item.spec->layer);
            std::int64_t all = 0;
            for (auto n : of_layer) all += n;
            auto const begin = item.offset + first - run.begin;
            auto const part = Kokkos::subview(numbers, Kokkos::pair<std::int64_t, std::int64_t>(begin, begin + count));
            auto const host = device::copy_to_host("p3d::engine::expert_balance", rank_->exec, part);
            auto const moved = device::new_host_view(part);
            for (std::int64_t k = 0; k < count; ++k) {
              auto const chose = of_layer[static_cast<std::size_t>(first + k)];
              // Against the mean, in integers: the same on every rank.
              auto const n = chose * std::ssize(of_layer);
              double const step = n < all ? rate : n > all ? -rate : 0.0;
              double const share = all > 0 ? static_cast<double>(chose) / static_cast<double>(all) : 0.0;
              moved(k) = static_cast<Master>(load ? share : static_cast<double>(host(k)) + step);
            }
            device::copy_from_host<Master>(rank_->exec, {moved.data(), moved.size()}, device::View1<Master>(part));
          });
    });
    if (unit->sharded) unit->sharded->updated();
  }
  if (P::has_master || memory_->has_many_versions()) memory_->master_changed();
}

#define P3D_INSTANTIATE(P) template class ExpertBalance<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
