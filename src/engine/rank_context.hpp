// SPDX-License-Identifier: Apache-2.0
#pragma once
// The objects of a trainer share one context: the input and its plan, the mesh with this rank's coordinates, and the
// groups of ranks that compute a layer together.

#include <p3d/base/poll.hpp>
#include <p3d/comm/all_reduce.hpp>
#include <p3d/comm/mesh.hpp>
#include <p3d/config/config.hpp>
#include <p3d/device/view.hpp>
#include <p3d/layout/axes.hpp>
#include <p3d/parallel/context.hpp>
#include <p3d/parallel/experts.hpp>
#include <p3d/parallel/linear.hpp>
#include <p3d/engine/run_plan.hpp>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace p3d::engine {

/// The settings by which all communicators of training sum.
inline comm::AllReduceSettings all_reduce_settings(config::Config const& c, bool nccl = false) {
  return {c.comm.allreduce, c.run.deterministic, nccl};
}

/// The names under which the mesh knows these axes.
std::vector<std::string> axis_names(layout::AxisSet axes);

/// The question whether the run is to stop, which each rank is asked. The answer of one counts for all.
class StopRequest {
public:
  void ask(std::function<bool()> asked) { asked_ = std::move(asked); }
  /// True when this rank was asked to stop.
  bool here() const { return asked_ && asked_(); }
  /// True when any rank was asked to stop, which is noted as `early`. Collective where ask() was called.
  bool anywhere(comm::Communicator& world);

  bool early = false;  ///< the last evaluation or sample ended early

private:
  std::function<bool()> asked_;  ///< empty: nobody is asked
};

/// Must not move: its groups refer to its mesh, and everybody refers to it.
struct RankContext {
  config::Config config;
  RunPlan plan;
  comm::Mesh mesh;
  layout::PerAxis here;  ///< this rank's coordinates
  device::ExecSpace exec{};
  parallel::TensorParallel tp;
  parallel::ContextParallel context;
  parallel::ExpertParallel experts;
  StopRequest stop;

  /// Makes the mesh over `parent`. Collective.
  RankContext(config::Config const& c, RunPlan run_plan, comm::Communicator const& parent);
  RankContext(RankContext const&) = delete;
  RankContext& operator=(RankContext const&) = delete;

  comm::Communicator& along(layout::AxisSet axes) { return mesh.along(axis_names(axes)); }
  /// True when this rank's loss counts: of ranks that see the same tokens only the first one's does. All of them know
  /// the loss of the whole group.
  bool counts_loss() const { return here.zero(layout::stage_axes.minus(layout::token_axes)); }
  bool divides() const { return config.memory.divides(); }
  /// Chooses how messages over tp are hidden (comm.overlap_tp): by a rule, or by a trial where "auto" may change last
  /// bits (run.deterministic = false) and they go between nodes. The mesh must be prepared. Collective.
  void choose_overlap();
  /// How often GEMMs look after messages that hide behind them. The mesh must be prepared.
  base::Polls polls();
  /// Seconds that stages of this rank have waited for others inside actions.
  double wait_seconds();
};

}  // namespace p3d::engine
