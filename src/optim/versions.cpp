// SPDX-License-Identifier: Apache-2.0
// The versions of a piece, oldest first, are piece.older and then piece.master; piece.replaced_master is what layers
// read. With n versions, that of age a has index n - 1 - a. Example: n = 3, and a parameter of delay 1 reads index 1.
#include <p3d/optim/versions.hpp>

#include <p3d/base/error.hpp>

namespace p3d::optim {

namespace {

template <class T>
View1<T> part(View1<T> all, DelaySegment const& s) {
  return Kokkos::subview(all, Kokkos::pair<std::int64_t, std::int64_t>(s.begin, s.begin + s.count));
}

/// Copies the version of this age to where layers read.
template <class P>
void show(ExecSpace const& exec, Piece<P> const& piece, DelaySegment const& s, std::int64_t age) {
  auto const kept = static_cast<std::int64_t>(piece.older.size()) + 1;
  P3D_REQUIRE(age >= 0 && age < kept, "the version is kept");
  auto const at = kept - 1 - age;
  auto const& from = age == 0 ? piece.master : piece.older[static_cast<std::size_t>(at)];
  Kokkos::deep_copy(exec, part(piece.replaced_master, s), part(from, s));
}

}  // namespace

std::vector<DelaySegment> delay_segments(layout::StageParams const& params, layout::OwnedRun const& run) {
  // Padding between parameters is zero in all versions.
  std::vector<DelaySegment> out;
  layout::for_parameters(params, run.begin, run.count,
                         [&](layout::LocalParam const& item, std::int64_t first, std::int64_t count) {
                           auto const at = item.offset + first - run.begin;
                           if (out.empty() || out.back().delay != item.spec->delay)
                             out.push_back({at, 0, item.spec->delay});
                           out.back().count = at + count - out.back().begin;
                         });
  return out;
}

template <class P>
void age_versions(ExecSpace const& exec, layout::StageParams const& params, Piece<P> const& piece) {
  for (auto const& s : delay_segments(params, piece.run))
    if (s.delay > 0) show(exec, piece, s, s.delay - 1);
  for (std::size_t k = 0; k < piece.older.size(); ++k)
    Kokkos::deep_copy(exec, piece.older[k], k + 1 < piece.older.size() ? piece.older[k + 1] : piece.master);
}

template <class P>
void show_versions(ExecSpace const& exec, layout::StageParams const& params, Piece<P> const& piece,
                   std::int64_t below) {
  for (auto const& s : delay_segments(params, piece.run))
    if (s.delay < below) show(exec, piece, s, s.delay);
}

template <class P>
void update_versions(ExecSpace const& exec, Optimizer<P> const& optimizer, UpdateStep const& step,
                     layout::StageParams const& params, Piece<P> const& piece) {
  age_versions(exec, params, piece);
  auto newest = piece;
  newest.replaced_master = {};
  newest.storage = {};
  optimizer.update(exec, step, newest);
  show_versions(exec, params, piece, 1);
}

#define P3D_INSTANTIATE(P)                                                                                     \
  template void age_versions<P>(ExecSpace const&, layout::StageParams const&, Piece<P> const&);                \
  template void show_versions<P>(ExecSpace const&, layout::StageParams const&, Piece<P> const&, std::int64_t); \
  template void update_versions<P>(ExecSpace const&, Optimizer<P> const&, UpdateStep const&,                   \
                                   layout::StageParams const&, Piece<P> const&);
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::optim
