// SPDX-License-Identifier: Apache-2.0
#include "device_sums.hpp"

#include <p3d/base/error.hpp>
#include <p3d/comm/nccl.hpp>
#include <p3d/device/stream.hpp>
#include <p3d/kernels/ordered_sum.hpp>

namespace p3d::engine {

namespace {

template <class S>
void add_in_order(comm::DeviceSums::Terms const& t) {
  static_assert(static_cast<int>(kernels::Combine::max) == static_cast<int>(comm::Reduction::max) &&
                static_cast<int>(kernels::Combine::min) == static_cast<int>(comm::Reduction::min));
  auto const* const others = reinterpret_cast<S const*>(t.others);
  device::View2<S const> const rows(others, t.ranks - 1, t.stride / static_cast<std::int64_t>(sizeof(S)));
  device::View1<S> const inout(reinterpret_cast<S*>(t.inout), t.count);
  kernels::combine_in_order<S>(device::instance_on(t.stream), static_cast<kernels::Combine>(t.op), t.rank, rows, inout);
}

class Sums final : public comm::DeviceSums {
public:
  std::shared_ptr<std::byte> allocate(std::int64_t bytes) override {
    device::Owned1<std::byte> const block(Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::engine::sums_in_order"),
                                          bytes);
    return {block.data(), [block](std::byte*) {}};
  }
  void add(Terms const& terms) override {
    if (terms.type == comm::Type::float32) return add_in_order<float>(terms);
    if (terms.type == comm::Type::float64) return add_in_order<double>(terms);
    P3D_REQUIRE(terms.type.float16().has_value(), "sums in a fixed order are of floating-point numbers");
    if (*terms.type.float16() == comm::Float16Type::bfloat16) return add_in_order<device::bfloat16>(terms);
    add_in_order<device::float16>(terms);
  }
  void forget(void* stream) override { device::release_instance(stream); }
};

}  // namespace

void use_device_sums() { comm::set_device_sums(std::make_shared<Sums>()); }

}  // namespace p3d::engine
