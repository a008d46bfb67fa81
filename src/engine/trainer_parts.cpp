// SPDX-License-Identifier: Apache-2.0
// The trainer's state as parts of global arrays.

#include "trainer_state.hpp"

#include <p3d/base/error.hpp>

namespace p3d::engine {

namespace {

/// Views of `count` elements of a flat buffer from `begin` on, and of host memory.
template <class T>
auto piece(device::View1<T> flat, std::int64_t begin, std::int64_t count) {
  return Kokkos::subview(flat, Kokkos::pair<std::int64_t, std::int64_t>(begin, begin + count));
}
template <class T, class V>
auto host_view(V* memory, std::int64_t count) {
  return Kokkos::View<T*, Kokkos::LayoutRight, device::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(
      static_cast<T*>(memory), static_cast<std::size_t>(count));
}

template <class T>
io::CheckpointPart make_part(layout::LocalParam const& item, char const* group, device::View1<T> flat) {
  io::CheckpointPart p;
  p.array = std::string(group) + "/" + item.spec->name;
  p.global_rows = item.spec->rows;
  p.global_cols = item.spec->cols;
  p.row_begin = item.row_begin;
  p.col_begin = item.col_begin;
  p.rows = item.valid_rows;  // padding is not stored; it stays zero
  p.cols = item.cols;
  auto const offset = item.offset;
  p.copy_out = [flat, offset](std::int64_t first, std::int64_t count, void* out) {
    Kokkos::deep_copy(host_view<T>(out, count), piece<T>(flat, offset + first, count));
  };
  p.copy_in = [flat, offset](std::int64_t first, std::int64_t count, void const* in) {
    Kokkos::deep_copy(piece<T>(flat, offset + first, count), host_view<T const>(in, count));
  };
  return p;
}

}  // namespace

template <class P>
std::vector<io::CheckpointPart> Trainer<P>::checkpoint_parts(bool moments) {
  auto& s = *state_;
  P3D_REQUIRE(!moments || s.config.optimizer.type == config::OptimizerType::adamw, "the optimizer has moments");
  device::fence(s.exec, "p3d::engine::checkpoint_parts");
  std::vector<io::CheckpointPart> out;
  for (auto const& [number, owner] : s.units) {
    auto* const unit = owner.get();  // Clang before 16 captures no structured binding
    for (auto const& item : unit->params.layout().items()) {
      auto& replicas = s.along(item.spec->split_axes().empty() ? layout::AxisSet{layout::Axis::dp, layout::Axis::tp}
                                                               : layout::AxisSet{layout::Axis::dp});
      auto const add = [&]<class T>(char const* group, device::View1<T> flat) {
        auto part = make_part<T>(item, group, flat);
        part.replicas = &replicas;
        part.writes = !item.spec->tied || unit->stage.is_first();
        out.push_back(std::move(part));
      };
      add("parameters", unit->params.master());
      if (!moments) continue;
      add("first_moment", unit->optimizer.first_moment());
      add("second_moment", unit->optimizer.second_moment());
    }
  }
  return out;
}

template <class P>
std::int64_t Trainer<P>::steps_done() const {
  return state_->steps_done;
}
template <class P>
void Trainer<P>::set_steps_done(std::int64_t steps) {
  state_->steps_done = steps;
}

template <class P>
void Trainer<P>::stop_when(std::function<bool()> asked) {
  state_->stop_asked = std::move(asked);
}

template <class P>
bool Trainer<P>::stopped_early() const {
  return state_->stopped_early;
}

template std::vector<io::CheckpointPart> Trainer<device::Fp32>::checkpoint_parts(bool);
template std::vector<io::CheckpointPart> Trainer<device::Fp64>::checkpoint_parts(bool);
template std::int64_t Trainer<device::Fp32>::steps_done() const;
template std::int64_t Trainer<device::Fp64>::steps_done() const;
template void Trainer<device::Fp32>::set_steps_done(std::int64_t);
template void Trainer<device::Fp64>::set_steps_done(std::int64_t);
template bool Trainer<device::Fp32>::stopped_early() const;
template bool Trainer<device::Fp64>::stopped_early() const;
template void Trainer<device::Fp32>::stop_when(std::function<bool()>);
template void Trainer<device::Fp64>::stop_when(std::function<bool()>);

}  // namespace p3d::engine
