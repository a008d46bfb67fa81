// SPDX-License-Identifier: Apache-2.0
#include <p3d/device/arena.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/device/memory.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>

namespace p3d::device {

namespace {

/// Allocates one alignment more than was asked for, so that the first piece can start on a multiple of the alignment
/// wherever the allocation begins.
Kokkos::View<std::byte*, MemSpace> allocate(std::size_t bytes, std::string const& label) {
  try {
    Kokkos::View<std::byte*, MemSpace> const out(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, "p3d::device::arena::" + label), bytes + Arena::alignment);
    prefer_large_pages(out.data(), out.size());
    make_unusable(ExecSpace(), out);
    return out;
  } catch (std::exception const& reason) {
    throw base::Error(
        {.expected = "memory for arena '" + label + "': " + base::human_bytes(static_cast<double>(bytes)),
         .found = "the allocation failed in " + std::string(MemSpace::name()) + " memory: " + reason.what(),
         .where = {},
         .fix = "use a smaller microbatch or sequence, or more ranks (tensor or pipeline parallel)"});
  }
}

/// The bytes from p to the next multiple of the alignment.
std::size_t misalignment(void const* p) {
  auto const offset = reinterpret_cast<std::uintptr_t>(p) % Arena::alignment;
  return offset == 0 ? 0 : Arena::alignment - offset;
}

}  // namespace

Arena::Arena(std::size_t bytes, std::string const& label, void* memory)
    : label_(label),
      storage_(memory == nullptr
                   ? allocate(padded(bytes), label)
                   : Kokkos::View<std::byte*, MemSpace>(static_cast<std::byte*>(memory), padded(bytes) + alignment)),
      capacity_(padded(bytes)) {}

void* Arena::take_bytes(std::size_t bytes) {
  std::size_t const left = capacity_ - used_;
  // The size is compared before padding: a size near the maximum must not wrap round to a small one.
  if (bytes > left || padded(bytes) > left) {
    throw base::Error({.expected = "room for " + std::to_string(bytes) + " bytes in arena '" + label_ + "'",
                       .found = std::to_string(left) + " of " + std::to_string(capacity_) + " bytes left",
                       .where = {},
                       .fix = "this is an error in p3d's memory plan; please report it with the input file"});
  }
  std::byte* const piece = storage_.data() + misalignment(storage_.data()) + used_;
  used_ += padded(bytes);
  high_water_ = std::max(high_water_, used_);
  return piece;
}

}  // namespace p3d::device
