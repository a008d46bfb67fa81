// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/parameters.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/random.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/kernels/elementwise.hpp>

#include <utility>

namespace p3d::model {

template <class T>
Parameters<T>::Parameters(ExecSpace const& exec, layout::StageParams params, std::uint64_t seed, T* gradients)
    : params_(std::move(params)),
      values_(device::large_array<T>("p3d::model::values", params_.flat_size())),
      grads_(gradients == nullptr ? device::large_array<T>("p3d::model::grads", params_.flat_size())
                                  : device::Owned1<T>(gradients, static_cast<std::size_t>(params_.flat_size()))) {
  for (auto const& item : params_.items()) {
    auto const& spec = *item.spec;
    if (spec.init == layout::Init::zeros) continue;
    View2<T> const local(values_.data() + item.offset, item.rows, item.cols);
    if (spec.init == layout::Init::ones) {
      kernels::fill<T>(exec, device::flat(local), T(1));
    } else {
      kernels::fill_normal<T>(exec, base::random_key(seed, "init." + spec.name), spec.std, item.row_begin,
                              item.col_begin, spec.cols, item.valid_rows, local);
    }
  }
}

template <class T>
void Parameters<T>::zero_grads(ExecSpace const& exec) {
  kernels::fill<T>(exec, grads_, T(0));
}

template <class T>
Matrix<T> Parameters<T>::fused_matrix(std::string const& first, std::string const& last) const {
  auto const& a = params_.find(first);
  auto const& b = params_.find(last);
  std::int64_t const size = b.offset + b.size() - a.offset;
  P3D_REQUIRE(a.cols == b.cols && size > 0 && size % a.cols == 0, "fused parameters are neighbours of one width");
  return {View2<T>(values_.data() + a.offset, size / a.cols, a.cols),
          View2<T>(grads_.data() + a.offset, size / a.cols, a.cols)};
}

template <class T>
Vector<T> Parameters<T>::fused_vector(std::string const& first, std::string const& last) const {
  if (!params_.has(first)) return {};
  auto const& a = params_.find(first);
  auto const& b = params_.find(last);
  std::int64_t const size = b.offset + b.size() - a.offset;
  return {View1<T>(values_.data() + a.offset, size), View1<T>(grads_.data() + a.offset, size)};
}

template <class T>
Matrix<T> Parameters<T>::matrix(std::string const& name) const {
  return fused_matrix(name, name);
}

template <class T>
Vector<T> Parameters<T>::vector(std::string const& name) const {
  return fused_vector(name, name);
}

template class Parameters<float>;
template class Parameters<double>;

}  // namespace p3d::model
