// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/workspace.hpp>

#include <utility>

namespace p3d::model {

template <class P>
void Workspace<P>::take(device::Arena& arena) {
  auto const& c = *config_;
  auto const s = layout::block_sizes(c, rank, kernels::have_device_form());
  parallel::take_all<S>(arena, s, block);
  parallel::take_all<S>(arena, s, block.moe);
  using Attention = parallel::ContextAttention<S>;
  block.attention = std::make_shared<Attention>(Attention::take(arena, s.attention, layout::context_heads(c, rank.tp)));
  remade.assign(static_cast<std::size_t>(recompute_.layers), {});
  inputs.clear();
  for (auto const& taken : layout::remade_buffers(recompute_, s.sequence)) {
    auto const memory = parallel::take<S>(arena, taken.buffer, s);
    if (taken.buffer == Buffer::stage_input)
      parallel::set_view(inputs.emplace_back(), memory.data, memory.shape);
    else
      remade[static_cast<std::size_t>(taken.index)].bind(memory);
  }
  if (with_loss_) parallel::take_all<S>(arena, s, *this);
  if (s.sequence) dfinal = block.dnorm = block.branch;
  if (!recompute_.one_norm() || !s.norms_before) return;
  for (auto& set : remade) {
    // A norm makes its output at its place among the gathered rows.
    if (s.sequence) set.norm1_y = device::rows(block.gathered, s.first_row, s.first_row + s.rows);
    set.norm2_y = set.norm1_y;
  }
}

template <class P>
Workspace<P>::Workspace(config::Config const& c, RecomputeScratch const& recompute, bool with_loss,
                        device::Arena& arena, int tp_rank, StageExchanges exchanges)
    : config_(&c), recompute_(recompute), with_loss_(with_loss) {
  rank = {tp_rank, exchanges.context ? exchanges.context->rank() : 0, c.model.seq_len};
  exchanges_ = std::move(exchanges);
  memory_ = MemoryPiece::of(arena, [&] { take(arena); });
  attach();
}

template <class P>
void Workspace<P>::attach() {
  if (exchanges_.context) block.attention->attach(ExecSpace(), *exchanges_.context);
  block.moe.experts = exchanges_.experts;
  block.moe.sample_ranks = exchanges_.sample_ranks;
}

template <class P>
void Workspace<P>::begin_action(ExecSpace const& exec, std::int64_t length) {
  if (length != rank.length) {
    rank.length = length;
    auto memory = memory_.opened();
    take(memory);
    attach();
  }
  parallel::make_unusable(exec, block);
  parallel::make_unusable(exec, block.moe);
  parallel::make_unusable(exec, *this);
  for (auto& set : remade) {
    parallel::make_unusable(exec, set);
    parallel::make_unusable(exec, set.moe);
  }
  for (auto const& input : inputs) device::make_unusable(exec, input);
}

#define P3D_INSTANTIATE(P) template struct Workspace<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
