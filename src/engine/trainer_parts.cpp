// SPDX-License-Identifier: Apache-2.0
// The trainer's state as parts of global arrays.

#include "trainer_state.hpp"

#include <vector>

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

/// What `host` is to a flat buffer of numbers of the file's type, whatever type the buffer's numbers have.
template <class T>
void copy_out(device::View1<T> flat, std::int64_t begin, std::int64_t count, void* host) {
  if constexpr (sizeof(T) == 2) {
    std::vector<T> numbers(static_cast<std::size_t>(count));
    Kokkos::deep_copy(host_view<T>(numbers.data(), count), piece<T>(flat, begin, count));
    auto* const out = static_cast<float*>(host);
    for (std::size_t i = 0; i < numbers.size(); ++i) out[i] = numbers[i];
  } else {
    Kokkos::deep_copy(host_view<T>(host, count), piece<T>(flat, begin, count));
  }
}
template <class T>
void copy_in(device::View1<T> flat, std::int64_t begin, std::int64_t count, void const* host) {
  if constexpr (sizeof(T) == 2) {
    auto const* const in = static_cast<float const*>(host);
    std::vector<T> numbers(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = T(in[i]);
    Kokkos::deep_copy(piece<T>(flat, begin, count), host_view<T>(numbers.data(), count));
  } else {
    Kokkos::deep_copy(piece<T>(flat, begin, count), host_view<T const>(host, count));
  }
}

/// A rectangle of a parameter, without its numbers.
io::CheckpointPart make_part(layout::LocalParam const& item, layout::Rectangle const& r, char const* group) {
  io::CheckpointPart p;
  p.array = std::string(group) + "/" + item.spec->name;
  p.global_rows = item.spec->rows;
  p.global_cols = item.spec->cols;
  p.row_begin = item.row_begin + r.row;
  p.col_begin = item.col_begin + r.col;
  p.rows = r.rows;  // padding is not stored; it stays zero
  p.cols = r.cols;
  return p;
}

/// Its numbers lie in `from` from `offset` on. `changed` becomes true when something was copied in.
template <class T>
void connect(io::CheckpointPart& p, device::View1<T> from, std::int64_t offset, bool* changed) {
  p.copy_out = [from, offset](std::int64_t first, std::int64_t count, void* out) {
    copy_out<T>(from, offset + first, count, out);
  };
  p.copy_in = [from, offset, changed](std::int64_t first, std::int64_t count, void const* in) {
    copy_in<T>(from, offset + first, count, in);
    *changed = true;
  };
}
template <class T>
void connect(io::CheckpointPart& p, device::OffloadedArray<T>& from, std::int64_t offset, bool* changed) {
  auto* const array = &from;
  p.copy_out = [array, offset](std::int64_t first, std::int64_t count, void* out) {
    array->read(offset + first, count, static_cast<T*>(out));
  };
  p.copy_in = [array, offset, changed](std::int64_t first, std::int64_t count, void const* in) {
    array->write(offset + first, count, static_cast<T const*>(in));
    *changed = true;
  };
}

}  // namespace

template <class P>
std::vector<io::CheckpointPart> Trainer<P>::checkpoint_parts(bool optimizer_state) {
  auto& s = *state_;
  auto const arrays = optimizer_state ? config::state_of(s.config.optimizer).arrays : config::StateArrays{};
  device::fence(s.exec, "p3d::engine::checkpoint_parts");
  std::vector<io::CheckpointPart> out;
  for (auto const& [number, owner] : s.units) {
    auto* const unit = owner.get();  // Clang before 16 captures no structured binding
    for (auto const& run : unit->params.shard().owned) {
      auto const visit = [&](layout::LocalParam const& item, std::int64_t begin, std::int64_t count) {
        auto& replicas = s.along(s.divides() ? item.spec->repeated_axes() : item.spec->replica_axes());
        for (auto const& r : layout::rectangles(item, begin, count)) {
          auto const at = item.offset + r.first - run.begin;
          auto const add = [&](char const* group, auto&& from, std::int64_t offset) {
            auto part = make_part(item, r, group);
            connect(part, from, offset, &s.master_is_newer);
            part.replicas = &replicas;
            part.writes = !run.copy && (!item.spec->tied || unit->stage.is_first());
            out.push_back(std::move(part));
          };
          auto& away = unit->offloaded;
          if (away && away->parts().master) {
            add("parameters", away->master, run.packed + at);
          } else {
            add("parameters", unit->params.master(run), at);
          }
          for (std::size_t k = 0; k < arrays.size(); ++k) {
            auto const add_state = [&](auto&& from) { add(arrays[k].name, from, run.packed + at); };
            if (away && k < away->parts().arrays) {
              add_state(away->state[k]);
            } else {
              unit->state.arrays()[k].visit(add_state);
            }
          }
        }
      };
      layout::for_parameters(unit->params.layout(), run.begin, run.count, visit);
    }
  }
  return out;
}

template <class P>
std::int64_t Trainer<P>::steps_done() const {
  return state_->steps_done;
}
template <class P>
std::int64_t Trainer<P>::tokens_done() const {
  return state_->tokens_done;
}
template <class P>
void Trainer<P>::set_steps_done(std::int64_t steps, std::optional<std::int64_t> tokens) {
  state_->forget_opening();
  state_->steps_done = steps;
  state_->tokens_done = tokens ? *tokens : state_->loader.sampler().tokens_before(steps * state_->config.batch.global);
}

template <class P>
optim::LossScaleState const& Trainer<P>::loss_scale() const {
  return state_->loss_scaler.state();
}
template <class P>
void Trainer<P>::set_loss_scale(optim::LossScaleState const& state) {
  state_->loss_scaler.set_state(state);
}
template <class P>
void Trainer<P>::spoil_gradient(std::string const& name) {
  state_->spoilt = state_->plan.table.find(name).name;
}

template <class P>
void Trainer<P>::stop_when(std::function<bool()> asked) {
  state_->stop_asked = std::move(asked);
}

template <class P>
bool Trainer<P>::stopped_early() const {
  return state_->stopped_early;
}

#define P3D_INSTANTIATE(P)                                                             \
  template std::vector<io::CheckpointPart> Trainer<P>::checkpoint_parts(bool);         \
  template std::int64_t Trainer<P>::steps_done() const;                                \
  template std::int64_t Trainer<P>::tokens_done() const;                               \
  template void Trainer<P>::set_steps_done(std::int64_t, std::optional<std::int64_t>); \
  template optim::LossScaleState const& Trainer<P>::loss_scale() const;                \
  template void Trainer<P>::set_loss_scale(optim::LossScaleState const&);              \
  template void Trainer<P>::spoil_gradient(std::string const&);                        \
  template bool Trainer<P>::stopped_early() const;                                     \
  template void Trainer<P>::stop_when(std::function<bool()>);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::engine
