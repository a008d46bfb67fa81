// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parts of views that are as long as the worst case.

#include <p3d/device/view.hpp>

#include <cstdint>

namespace p3d::model::detail {

template <class T>
device::View2<T> first_rows(device::View2<T> v, std::int64_t n) {
  return device::rows(v, 0, n);
}
template <class T>
device::View1<T> first(device::View1<T> v, std::int64_t n) {
  return device::View1<T>(v.data(), n);
}
/// Numbers as rows of one column.
template <class T>
device::View2<T> as_rows(device::View1<T> v) {
  return device::View2<T>(v.data(), v.extent(0), 1);
}

}  // namespace p3d::model::detail
