// SPDX-License-Identifier: Apache-2.0
#pragma once
// Versions of the weights where gradients are late (optimizer.delay, pipeline.delays): w(t+1) = w(t) - lr u(gradient of
// batch t), where layer i reads w_i(t - d_i), and w(-k) = w(0). With d_i falling from stage to stage these are the
// weights of PipeDream (Narayanan et al., SOSP 2019, section 3.3, weight stashing), with d_i = 1 those of PipeDream-2BW
// (arXiv 2006.09503). Let d be the largest d_i. The d newest versions are kept, w(t) among them, and each parameter
// has beside them the version that its layer reads. Example: d = 3 has w(t-2), w(t-1) and w(t), and a layer of d_i = 1
// a copy of w(t-1).
//
// With d = 1 for all, an update writes w(t) where layers read and w(t+1) over it, in one kernel. Else these functions
// move the versions.

#include <p3d/optim/optimizer.hpp>

namespace p3d::optim {

/// A part of an owned run whose gradients are equally late.
struct DelaySegment {
  std::int64_t begin = 0, count = 0;  ///< within the run
  std::int64_t delay = 0;
};
std::vector<DelaySegment> delay_segments(layout::StageParams const& params, layout::OwnedRun const& run);

/// Before the update of a piece (see aim_at_newest): all versions grow older by one update, those that layers read too.
/// The newest is then in two places, of which the update changes piece.master. What layers read is the caller's to
/// copy, by show_versions(), where a parameter's delay is 0.
template <class P>
void age_versions(ExecSpace const& exec, layout::StageParams const& params, Piece<P> const& piece);

/// Copies the versions that layers read from those that are kept, for parameters whose delay is less than `below`: 1
/// behind an update, which changes what they read at once; the largest delay after all versions have changed, as by a
/// file (what is as late as that lies nowhere else).
template <class P>
void show_versions(ExecSpace const& exec, layout::StageParams const& params, Piece<P> const& piece, std::int64_t below);

/// Both, and the update between them.
template <class P>
void update_versions(ExecSpace const& exec, Optimizer<P> const& optimizer, UpdateStep const& step,
                     layout::StageParams const& params, Piece<P> const& piece);

}  // namespace p3d::optim
