// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/parameters.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/random.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/update.hpp>

#include <type_traits>
#include <utility>

namespace p3d::model {

template <class P>
Parameters<P>::Parameters(ExecSpace const& exec, layout::StageParams params, std::uint64_t seed, Gradient* gradients)
    : params_(std::move(params)),
      seed_(seed),
      values_(device::large_array<Storage>("p3d::model::values", params_.flat_size())),
      grads_(gradients == nullptr
                 ? device::large_array<Gradient>("p3d::model::grads", params_.flat_size())
                 : device::Owned1<Gradient>(gradients, static_cast<std::size_t>(params_.flat_size()))) {
  if constexpr (P::has_master) master_ = device::large_array<Master>("p3d::model::master", params_.flat_size());
  auto const all = master();
  for (auto const& item : params_.items()) {
    auto const& spec = *item.spec;
    if (spec.init == layout::Init::zeros) continue;
    View2<Master> const local(all.data() + item.offset, item.rows, item.cols);
    if (spec.init == layout::Init::ones) {
      kernels::fill<Master>(exec, device::flat(local), Master(1));
    } else {
      kernels::fill_normal<Master>(exec, base::random_key(seed, "init." + spec.name), spec.std, item.row_begin,
                                   item.col_begin, spec.cols, item.valid_rows, local);
    }
  }
}

template <class P>
View1<typename P::Master> Parameters<P>::master() const {
  if constexpr (P::has_master) {
    return master_;
  } else {
    return values_;
  }
}

template <class P>
void Parameters<P>::round_values(ExecSpace const& exec, bool stochastic, std::int64_t update) {
  if constexpr (std::is_same_v<Storage, device::bfloat16>) {
    if (stochastic) {
      for (auto const& item : params_.items()) {
        View2<Master const> const from(master_.data() + item.offset, item.rows, item.cols);
        View2<Storage> const to(values_.data() + item.offset, item.rows, item.cols);
        kernels::round_weights_stochastically(exec, base::random_key(seed_, "round." + item.spec->name),
                                              static_cast<std::uint64_t>(update), item.row_begin, item.col_begin,
                                              item.spec->cols, from, to);
      }
      return;
    }
  }
  P3D_REQUIRE(!stochastic, "only weights in bfloat16 are rounded stochastically");
  if constexpr (P::has_master) kernels::convert<Master, Storage>(exec, View1<Master const>(master_), values_);
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
