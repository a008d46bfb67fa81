// SPDX-License-Identifier: Apache-2.0
// Parameters of a stage: where they lie, how they are drawn, and how owned parts and whole buffers get from one to the
// other. Everything goes by the rectangles of layout::for_parameters, pieces of one parameter within a run, so that
// initial values and rounding are keyed by the global number of an element and no layout changes them.
#include <p3d/model/parameters.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/random.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/update.hpp>

#include <type_traits>
#include <utility>

namespace p3d::model {

namespace {

template <class T>
device::Owned1<T> given_or_new(T* memory, char const* label, std::int64_t n) {
  if (memory == nullptr) return device::large_array<T>(label, n);
  return device::Owned1<T>(memory, static_cast<std::size_t>(n));
}

layout::StateShard everything(layout::StageParams const& params) {
  return layout::make_shard(params, params.flat_size(), layout::RankGrid({}, {}), layout::PerAxis::all(0), {});
}

/// Calls visit(item, rectangle, begin) for each piece of a parameter in a run, which begins there at `begin`.
template <class Visit>
void for_rectangles(layout::StageParams const& params, layout::OwnedRun const& run, Visit const& visit) {
  layout::for_parameters(params, run.begin, run.count,
                         [&](layout::LocalParam const& item, std::int64_t first, std::int64_t count) {
                           for (auto const& r : layout::rectangles(item, first, count))
                             visit(item, r, item.offset + r.first - run.begin);
                         });
}

}  // namespace

template <class P>
Parameters<P>::Parameters(ExecSpace const& exec, layout::StageParams params, layout::StateShard shard,
                          config::Shard divides, std::uint64_t seed, Memory memory)
    : params_(std::move(params)),
      shard_(std::move(shard)),
      divides_(divides),
      master_elsewhere_(P::has_master ? memory.master_elsewhere : memory.values_elsewhere),
      values_elsewhere_(memory.values_elsewhere),
      seed_(seed),
      values_(given_or_new(memory.values, "p3d::model::values", params_.flat_size())),
      grads_(given_or_new(memory.grads, "p3d::model::grads", params_.flat_size())) {
  P3D_REQUIRE(shard_.divided == (divides_ != config::Shard::none), "a state is divided, or it is not");
  auto const owned = shard_.owned_size;
  if (divides_ == config::Shard::parameters && !values_elsewhere_)
    owned_values_ = device::large_array<Storage>("p3d::model::owned_values", owned);
  if (divides_ >= config::Shard::gradients)
    owned_grads_ = device::large_array<Gradient>("p3d::model::owned_grads", owned);
  if (master_elsewhere_) return;
  if constexpr (P::has_master) master_ = device::large_array<Master>("p3d::model::master", owned);
  for (auto const& run : shard_.owned) draw_run(exec, run, master(run));
}

template <class P>
Parameters<P>::Parameters(ExecSpace const& exec, layout::StageParams params, std::uint64_t seed)
    : Parameters(exec, params, everything(params), config::Shard::none, seed) {}

template <class P>
void Parameters<P>::draw_run(ExecSpace const& exec, layout::OwnedRun const& run, View1<Master> out) const {
  for_rectangles(params_, run, [&](layout::LocalParam const& item, layout::Rectangle const& r, std::int64_t begin) {
    auto const& spec = *item.spec;
    if (spec.init == layout::Init::zeros) return;
    View2<Master> const local(out.data() + begin, r.rows, r.cols);
    if (spec.init == layout::Init::ones) {
      kernels::fill<Master>(exec, device::flat(local), Master(1));
    } else if (spec.init == layout::Init::constant) {
      kernels::fill<Master>(exec, device::flat(local), static_cast<Master>(spec.value));
    } else {
      kernels::fill_normal<Master>(exec, base::random_key(seed_, "init." + spec.name), spec.std, item.row_begin + r.row,
                                   item.col_begin + r.col, spec.cols, r.rows, local);
    }
  });
}

template <class P>
template <class T>
View1<T> Parameters<P>::part(View1<T> buffer, layout::OwnedRun const& run, bool packed) const {
  auto const begin = packed ? run.packed : run.begin;
  return Kokkos::subview(buffer, Kokkos::pair<std::int64_t, std::int64_t>(begin, begin + run.count));
}

template <class P>
View1<typename P::Master> Parameters<P>::master(layout::OwnedRun const& run) const {
  if constexpr (P::has_master) {
    return part(View1<Master>(master_), run, shard_.divided);
  } else {
    return stored(run);
  }
}

template <class P>
View1<typename P::Storage> Parameters<P>::stored(layout::OwnedRun const& run) const {
  P3D_REQUIRE(!values_elsewhere_, "the values are here");
  if (divides_ == config::Shard::parameters) return part(View1<Storage>(owned_values_), run, true);
  return part(View1<Storage>(values_), run, false);
}

template <class P>
View1<typename P::Gradient> Parameters<P>::reduced(layout::OwnedRun const& run) const {
  if (divides_ >= config::Shard::gradients) return part(View1<Gradient>(owned_grads_), run, true);
  return part(View1<Gradient>(grads_), run, false);
}

template <class P>
void Parameters<P>::take_gradients(ExecSpace const& exec, bool add) {
  if (!shard_.divided) return;
  if (divides_ >= config::Shard::gradients) {
    for (auto const& run : shard_.parts) {
      auto const whole = part(View1<Gradient>(grads_), run, false), own = reduced(run);
      if (add) {
        kernels::add<Gradient>(exec, View1<Gradient const>(whole), own);
      } else {
        Kokkos::deep_copy(exec, own, whole);
      }
    }
    return zero_grads(exec);
  }
  std::int64_t at = 0;
  auto const clear = [&](std::int64_t end) {
    if (end > at)
      kernels::fill<Gradient>(
          exec, Kokkos::subview(View1<Gradient>(grads_), Kokkos::pair<std::int64_t, std::int64_t>(at, end)),
          Gradient{});
  };
  for (auto const& run : shard_.owned) {
    clear(run.begin);
    at = run.begin + run.count;
  }
  clear(params_.flat_size());
}

template <class P>
void Parameters<P>::place_values(ExecSpace const& exec) {
  if (divides_ == config::Shard::parameters) place_values(exec, owned_values_);
}

template <class P>
void Parameters<P>::place_values(ExecSpace const& exec, View1<Storage const> packed) {
  for (auto const& run : shard_.owned)
    Kokkos::deep_copy(
        exec, part(View1<Storage>(values_), run, false),
        Kokkos::subview(packed, Kokkos::pair<std::int64_t, std::int64_t>(run.packed, run.packed + run.count)));
}

template <class P>
void Parameters<P>::round_run(ExecSpace const& exec, layout::OwnedRun const& run, View1<Master const> from,
                              View1<Storage> to, bool stochastic, std::int64_t update) const {
  P3D_REQUIRE(!stochastic || (std::is_same_v<Storage, device::bfloat16>),
              "only weights in bfloat16 are rounded stochastically");
  if constexpr (P::has_master) {
    if constexpr (std::is_same_v<Storage, device::bfloat16>) {
      if (stochastic) {
        for_rectangles(
            params_, run, [&](layout::LocalParam const& item, layout::Rectangle const& r, std::int64_t begin) {
              kernels::round_weights_stochastically(exec, base::random_key(seed_, "round." + item.spec->name),
                                                    static_cast<std::uint64_t>(update), item.row_begin + r.row,
                                                    item.col_begin + r.col, item.spec->cols,
                                                    View2<Master const>(from.data() + begin, r.rows, r.cols),
                                                    View2<Storage>(to.data() + begin, r.rows, r.cols));
            });
        return;
      }
    }
    kernels::convert<Master, Storage>(exec, from, to);
  }
}

template <class P>
typename Parameters<P>::Bytes Parameters<P>::bytes() const {
  auto const of = [](auto const& view) {
    return static_cast<std::int64_t>(view.size() * sizeof(typename std::decay_t<decltype(view)>::value_type));
  };
  bool const pooled = values_elsewhere_ || divides_ == config::Shard::parameters;
  return {.values = pooled ? of(owned_values_) : of(values_),
          .grads = divides_ >= config::Shard::gradients ? of(owned_grads_) : of(grads_),
          .master = of(master_)};
}

template <class P>
Parameters<P> Parameters<P>::with_values(View1<Storage> values) const {
  P3D_REQUIRE(static_cast<std::int64_t>(values.extent(0)) == params_.flat_size(), "each element has a value");
  auto out = *this;
  out.values_ = device::Owned1<Storage>(values.data(), values.extent(0));
  return out;
}

template <class P>
void Parameters<P>::zero_grads(ExecSpace const& exec) {
  kernels::fill<Gradient>(exec, grads_, Gradient{});
}

template <class P>
Matrix<P> Parameters<P>::fused_matrix(std::string const& first, std::string const& last) const {
  auto const& a = params_.find(first);
  auto const& b = params_.find(last);
  std::int64_t const size = b.offset + b.size() - a.offset;
  P3D_REQUIRE(a.cols == b.cols && size > 0 && size % a.cols == 0, "fused parameters are neighbours of one width");
  return {View2<Storage>(values_.data() + a.offset, size / a.cols, a.cols),
          View2<Gradient>(grads_.data() + a.offset, size / a.cols, a.cols)};
}

template <class P>
Vector<P> Parameters<P>::fused_vector(std::string const& first, std::string const& last) const {
  if (!params_.has(first)) return {};
  auto const& a = params_.find(first);
  auto const& b = params_.find(last);
  std::int64_t const size = b.offset + b.size() - a.offset;
  return {View1<Storage>(values_.data() + a.offset, size), View1<Gradient>(grads_.data() + a.offset, size)};
}

template <class P>
Matrix<P> Parameters<P>::matrix(std::string const& name) const {
  return fused_matrix(name, name);
}

template <class P>
Vector<P> Parameters<P>::vector(std::string const& name) const {
  return fused_vector(name, name);
}

#define P3D_INSTANTIATE(P) template class Parameters<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
