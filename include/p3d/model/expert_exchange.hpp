// SPDX-License-Identifier: Apache-2.0
#pragma once
// How rows of a layer get to the ranks of their experts, and what comes back to their tokens (model.moe.dispatch).
//
// all_to_all: a row for each choice of a token goes to the ranks of its expert (layout/experts.hpp). gather: every rank
// of the group gets all tokens once, and takes the rows of its experts from them; what its experts add to a token is
// summed before it goes back. With n tokens on each of g ranks of ep x etp, a rank sends (g - 1) n tokens of width h
// each way; all_to_all sends (g - 1) / g etp top_k n rows. A rank alone needs neither.

#include <p3d/kernels/common.hpp>
#include <p3d/model/activations.hpp>

#include <cstdint>
#include <vector>

namespace p3d::model {

/// Says whether a strand lets another one compute while its messages travel (base/strand.hpp). Groups of ranks that
/// share experts go through different numbers of passes, and yet are joined by tp and cp: so a layer gives its turn
/// away at places that no router can move, twice in forward, once where it is remade and twice in backward. Then two
/// strands interleave alike on all ranks of a stage, and so do their collectives on every communicator.
enum class Turn { kept, given };

template <class P>
class ExpertExchange {
public:
  using S = typename P::Storage;
  using A = typename P::Accumulate;
  using Requests = parallel::ExpertParallel::Requests;
  ExpertExchange(MoeSizes const& sizes, int top_k) : sizes_(sizes), top_k_(top_k) {}

  /// Plans who computes which rows: a.slots, a.place, a.dispatch, of choices [n, top_k] (-1: none). Returns how many of
  /// the rank's own rows each expert gets. One all-gather, of these counts or of the choices.
  std::vector<std::int64_t> plan(ExecSpace const& exec, View2<int const> choices, MoeActivations<P> const& a,
                                 MoeScratch<P> const& t) const;

  /// Begins a pass, in forward and in backward.
  void begin(ExecSpace const& exec, int pass, MoeActivations<P> const& a, MoeScratch<P> const& t) const;
  /// Sends the rank's own `tokens` [n, hidden] to the ranks that need them.
  Requests start_rows(ExecSpace const& exec, int pass, View2<S const> tokens, MoeActivations<P> const& a,
                      MoeScratch<P> const& t) const;
  /// Copies the rows of a pass, which have arrived, into the order of the experts.
  void take_rows(ExecSpace const& exec, int pass, View2<S const> tokens, MoeActivations<P> const& a,
                 MoeScratch<P> const& t, View2<S> out) const;
  /// Sends gates the same way; take_gates() puts them into a.row_gates.
  Requests start_gates(ExecSpace const& exec, int pass, MoeActivations<P> const& a, MoeScratch<P> const& t) const;
  void take_gates(ExecSpace const& exec, int pass, MoeActivations<P> const& a, MoeScratch<P> const& t) const;
  /// Sends back `rows`, or the gradients of gates, which are in the order of the experts.
  Requests start_back(ExecSpace const& exec, int pass, View2<S const> rows, MoeActivations<P> const& a,
                      MoeScratch<P> const& t) const;
  Requests start_gates_back(ExecSpace const& exec, int pass, View1<A const> gates, MoeActivations<P> const& a,
                            MoeScratch<P> const& t) const;
  /// Waits for messages. Turn::given: another strand computes meanwhile, if there are other ranks to wait for.
  void wait(Turn turn, Requests& requests) const;
  /// Sums what came back for each of the rank's tokens, after the last pass. `rows` and `gates` went back last.
  void sum_rows(ExecSpace const& exec, View2<S const> rows, MoeActivations<P> const& a, MoeScratch<P> const& t,
                kernels::Store store, View2<S> out) const;
  void sum_gates(ExecSpace const& exec, View1<A const> gates, MoeActivations<P> const& a, MoeScratch<P> const& t,
                 View2<A> out) const;

private:
  std::vector<std::int64_t> plan_gathered(ExecSpace const& exec, View2<int const> choices, MoeActivations<P> const& a,
                                          MoeScratch<P> const& t) const;
  /// The places of the choices among the copies that all ranks of an expert send back.
  View2<int> places_of_copies(ExecSpace const& exec, MoeActivations<P> const& a, MoeScratch<P> const& t) const;

  MoeSizes sizes_;
  int top_k_;
};

}  // namespace p3d::model
