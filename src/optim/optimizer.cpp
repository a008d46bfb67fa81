// SPDX-License-Identifier: Apache-2.0
// The rules of AdamW and SGD, each a class over one fused kernel, and the memory of an optimizer's state. A rule sees
// one piece at a time and cuts it into segments of equal weight decay. Example: a piece with a matrix, its bias and
// half of the next matrix has three segments, of which the middle one has no decay.
#include <p3d/optim/optimizer.hpp>

#include <p3d/base/error.hpp>
#include <p3d/device/memory.hpp>

#include <cmath>
#include <string>

namespace p3d::optim {

namespace {

/// The elements of a run in an array of all owned runs; empty for an empty array.
template <class T>
View1<T> part_of(View1<T> all, layout::OwnedRun const& run) {
  if (all.extent(0) == 0) return {};
  return Kokkos::subview(all, Kokkos::pair<std::int64_t, std::int64_t>(run.packed, run.packed + run.count));
}

/// Neighbouring parameters with the same decay form one segment: the padding between them is zero, and an update keeps
/// it zero.
std::vector<kernels::DecaySegment> decay_segments(layout::StageParams const& params, layout::OwnedRun const& run,
                                                  double weight_decay) {
  std::vector<kernels::DecaySegment> segments;
  layout::for_parameters(params, run.begin, run.count,
                         [&](layout::LocalParam const& item, std::int64_t first, std::int64_t count) {
                           auto const at = item.offset + first - run.begin;
                           double const decay = item.spec->decay ? weight_decay : 0.0;
                           if (segments.empty() || segments.back().decay != decay) segments.push_back({at, 0, decay});
                           segments.back().count = at + count - segments.back().begin;
                         });
  return segments;
}

template <class P>
class AdamW final : public Optimizer<P> {
public:
  using Master = typename P::Master;
  AdamW(config::Optimizer const& options, layout::StageParams const& params) : options_(options), params_(&params) {}

  void update(ExecSpace const& exec, UpdateStep const& step, Piece<P> const& piece) const override {
    kernels::AdamW a;
    a.lr = step.lr;
    a.beta1 = options_.beta1;
    a.beta2 = options_.beta2;
    a.eps = options_.eps;
    a.correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(step.number));
    a.correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(step.number));
    a.grad_scale = step.grad_scale;
    a.clear_gradient = !step.keep_gradients;
    a.store_replaced = options_.delay > 0;
    auto const segments = decay_segments(*params_, piece.run, options_.weight_decay);
    P3D_REQUIRE(piece.state.size() == 2, "AdamW has two moments");
    auto const apply = [&]<class M>(View1<M> StateView<P>::*in) {
      kernels::Replaced<Master, M> replaced{piece.replaced_master};
      if (!piece.replaced_state.empty()) {
        replaced.m = piece.replaced_state[0].*in;
        replaced.v = piece.replaced_state[1].*in;
      }
      kernels::adamw<Master, typename P::Gradient, M, typename P::Storage>(exec, a, segments, piece.master,
                                                                           piece.gradient, piece.state[0].*in,
                                                                           piece.state[1].*in, piece.storage, replaced);
    };
    piece.state[0].narrow.extent(0) > 0 ? apply(&StateView<P>::narrow) : apply(&StateView<P>::wide);
  }

private:
  config::Optimizer options_;
  layout::StageParams const* params_;
};

template <class P>
class Sgd final : public Optimizer<P> {
public:
  Sgd(config::Optimizer const& options, layout::StageParams const& params) : options_(options), params_(&params) {}

  void update(ExecSpace const& exec, UpdateStep const& step, Piece<P> const& piece) const override {
    auto const segments = decay_segments(*params_, piece.run, options_.weight_decay);
    kernels::sgd<typename P::Master, typename P::Gradient, typename P::Storage>(
        exec, {step.lr, 0.0, step.grad_scale, !step.keep_gradients, options_.delay > 0}, segments, piece.master,
        piece.gradient, piece.storage, {piece.replaced_master, {}, {}});
  }

private:
  config::Optimizer options_;
  layout::StageParams const* params_;
};

}  // namespace

template <class P>
std::unique_ptr<Optimizer<P>> make_optimizer(config::Optimizer const& options, layout::StageParams const& params) {
  switch (options.type) {
    case config::OptimizerType::adamw: return std::make_unique<AdamW<P>>(options, params);
    case config::OptimizerType::sgd: return std::make_unique<Sgd<P>>(options, params);
  }
  P3D_REQUIRE(false, "an optimizer has a rule");
  return nullptr;
}

template <class P>
StateMemory<P>::StateMemory(config::Optimizer const& options, std::int64_t owned, bool narrow, bool resident)
    : can_take_back_(options.post_validation) {
  P3D_REQUIRE(resident || !options.post_validation, "what is taken back is resident");
  P3D_REQUIRE(!narrow || StateView<P>::may_be_narrow, "moments in bfloat16 stand for some in float");
  if (options.post_validation) replaced_master_ = device::large_array<Master>("p3d::optim::replaced_weights", owned);
  if (!resident) return;
  auto const take = [&](std::vector<StateView<P>>& views, std::string const& label, bool weights) {
    auto const allocate = [&]<class T>(std::vector<device::Owned1<T>>& arrays) {
      return View1<T>(arrays.emplace_back(device::large_array<T>(label, owned)));
    };
    auto& view = views.emplace_back();
    if (narrow && !weights)
      view.narrow = allocate(memory_.narrow);
    else
      view.wide = allocate(memory_.wide);
  };
  for (auto const& array : config::state_of(options).arrays) {
    take(arrays_, std::string("p3d::optim::") + array.name, array.weights);
    if (options.post_validation) take(replaced_, std::string("p3d::optim::replaced_") + array.name, array.weights);
  }
}

template <class P>
std::vector<StateView<P>> StateMemory<P>::part(std::vector<StateView<P>> const& arrays, layout::OwnedRun const& run) {
  std::vector<StateView<P>> out;
  for (auto const& all : arrays) out.push_back({part_of(all.wide, run), part_of(all.narrow, run)});
  return out;
}

template <class P>
void StateMemory<P>::keep_replaced(Piece<P>& piece) const {
  P3D_REQUIRE(can_take_back_, "a state that has room for what an update replaces");
  piece.replaced_master = part_of(View1<Master>(replaced_master_), piece.run);
  piece.replaced_state = part(replaced_, piece.run);
}

template <class P>
void StateMemory<P>::take_back(ExecSpace const& exec, layout::OwnedRun const& run, View1<Master> master) const {
  Kokkos::deep_copy(exec, master, part_of(View1<Master>(replaced_master_), run));
  auto const now = part(arrays_, run), before = part(replaced_, run);
  for (std::size_t k = 0; k < now.size(); ++k) {
    Kokkos::deep_copy(exec, now[k].wide, before[k].wide);
    Kokkos::deep_copy(exec, now[k].narrow, before[k].narrow);
  }
}

template <class P>
std::int64_t StateMemory<P>::bytes() const {
  std::size_t sum = replaced_master_.size() * sizeof(Master);
  for (auto const* arrays : {&arrays_, &replaced_})
    for (auto const& a : *arrays)
      sum += a.wide.size() * sizeof(typename P::Moment) + a.narrow.size() * sizeof(typename StateView<P>::Narrow);
  return static_cast<std::int64_t>(sum);
}

double clip_factor(double global_norm, double clip) {
  return clip > 0.0 && global_norm > clip ? clip / global_norm : 1.0;
}

#define P3D_INSTANTIATE(P)       \
  template class StateMemory<P>; \
  template std::unique_ptr<Optimizer<P>> make_optimizer<P>(config::Optimizer const&, layout::StageParams const&);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::optim
