// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of mixture-of-experts layers: the router, the order of rows by expert, and the copies of rows to the experts'
// order and back. All are rank-local. A slot is one choice of a token; its number is token * top_k + k. S and Acc are
// explained in common.hpp; A is float or double, the type that the router computes in. No result depends on the number
// of threads or on the layout.

#include <p3d/kernels/common.hpp>

namespace p3d::kernels {

/// The score that a token's logits become: softmax over all experts (Mixtral arXiv 2401.04088, DeepSeek-V2 arXiv
/// 2405.04434) or the sigmoid of each (DeepSeek-V3, arXiv 2412.19437).
enum class Score { softmax, sigmoid };

/// The rules by which tokens choose experts. With `normalize`, softmax over all experts equals softmax over the chosen
/// ones.
struct Routing {
  int experts = 0;  ///< number of experts of the layer
  int top_k = 0;    ///< experts that a token chooses
  Score score = Score::softmax;
  int groups = 1;          ///< experts are groups of experts / groups neighbours
  int group_top_k = 1;     ///< groups that a token may choose from
  bool normalize = false;  ///< the gates of a token sum to `scale`
  double scale = 1.0;      ///< factor of all gates
};
/// The largest number of groups that experts may be divided into.
inline constexpr int most_expert_groups = 64;
/// Throws base::Error where no token could choose top_k experts.
void require_valid(Routing const& routing);

/// The samples that the rows (tokens) of a matrix belong to: sample(row) = (first_row + row) / per_sample.
struct SampleRows {
  std::int64_t per_sample = 1;  ///< rows of a sample
  std::int64_t first_row = 0;   ///< rows of the first sample that lie on other ranks, before those here
  KOKKOS_FUNCTION std::int64_t sample(std::int64_t row) const { return (first_row + row) / per_sample; }
  /// The first of `rows` rows that belongs to a sample, or to a later one.
  KOKKOS_FUNCTION std::int64_t begin(std::int64_t sample, std::int64_t rows) const {
    std::int64_t const row = sample * per_sample - first_row;
    return row < 0 ? 0 : (row < rows ? row : rows);
  }
};

/// The results of route_forward that route_backward and routing_sums need.
template <class A>
struct RouterScores {
  View2<A> scores;  ///< [tokens, experts]: softmax or sigmoid of the logits
  View1<A> lse;     ///< [tokens]: log-sum-exp of the logits
  View1<A> total;   ///< [tokens]: the sum of the token's scores; 1 with softmax
};

/// Routes tokens: logits [tokens, experts] -> saved, and choice and gates [tokens, top_k]. A token chooses the top_k
/// largest of score + bias, in that order, the lower expert of equal ones (NaN counts as -infinity). bias is [experts]
/// or empty and affects the choice only (arXiv 2408.15664). gate = scale * score, divided by the sum over the token's
/// slots (+ 1e-20) with `normalize`. Where experts are grouped, a token chooses among the group_top_k groups of largest
/// value (of equal ones the lower group). The value of a group is its largest score + bias with softmax, and the sum of
/// its two largest with sigmoid. Reads and writes about 2 * experts numbers per token.
template <class A>
void route_forward(ExecSpace const& exec, Routing const& routing, View2<A const> logits, Given<View1<A const>> bias,
                   RouterScores<A> const& saved, View2<int> choice, Given<View2<A>> gates);

/// d_logits [tokens, experts] = the gradient of sum d_gates gates + sum_te auxiliary(sample(t), e) p(t, e) + c_z sum_t
/// lse(t)^2, where p are the scores divided by their sum over all experts. d_gates [tokens, top_k] must be 0 for slots
/// that were dropped. auxiliary [samples, experts] may be empty: the caller knows which tokens a loss of load balancing
/// counts. c_z is the coefficient of the z-loss (ST-MoE, arXiv 2202.08906, equation 5). The choice and the bias are
/// constants here.
template <class A>
void route_backward(ExecSpace const& exec, Routing const& routing, View2<A const> logits, RouterScores<A> const& saved,
                    View2<int const> choice, Given<View2<A const>> d_gates, SampleRows rows,
                    Given<View2<A const>> auxiliary, double c_z, Given<View2<A>> d_logits);

/// Sums for losses and reports, in double: probabilities [samples, experts] = sum over the sample's tokens here of p(t,
/// e), z [samples] = sum over them of lse(t)^2.
template <class A>
void routing_sums(ExecSpace const& exec, RouterScores<A> const& saved, SampleRows rows, View2<double> probabilities,
                  View1<double> z);

/// counts [samples, experts] = how often the sample's tokens here chose the expert. A choice of -1 is not counted.
void count_choices(ExecSpace const& exec, View2<int const> choice, SampleRows rows, View2<std::int64_t> counts);

/// Orders the slots by (expert, token, k). choice is [tokens, top_k]; -1 marks a dropped slot. offsets [experts + 1]
/// gets the first place of each expert's slots. slots [tokens * top_k] gets the slots in order, and -1 from
/// offsets[experts] on. place [tokens, top_k] gets the place of each slot, -1 if it was dropped. It is a counting sort
/// by blocks of tokens, whose counts lie in workspace (base::sort_workspace integers). Throws base::Error where the
/// number of slots or of workspace integers exceeds an int.
void sort_by_expert(ExecSpace const& exec, View2<int const> choice, View1<int> offsets, View1<int> slots,
                    View2<int> place, View1<int> workspace);

/// out[i] = x[slots[i] / top_k], or zero where the slot is -1. x is [tokens, hidden], out [rows, hidden]; slots [rows]
/// is any range of the slots of sort_by_expert.
template <class S>
void permute_rows(ExecSpace const& exec, View2<S const> x, View1<int const> slots, int top_k, View2<S> out);
/// dx[t] = sum over k, in that order, of d_rows[place[t, k]]; a place of -1 adds nothing. With Store::add, dx keeps
/// what it had.
template <class S>
void permute_rows_backward(ExecSpace const& exec, View2<S const> d_rows, View2<int const> place, Store store,
                           View2<S> dx);

/// y[t] = sum over k, in that order, of gates[t, k] expert_out[place[t, k]]; a place of -1 adds nothing. With
/// Store::add, y keeps what it had (the output of shared experts). expert_out is [rows, hidden], y [tokens, hidden].
template <class S>
void combine(ExecSpace const& exec, View2<S const> expert_out, View2<int const> place, View2<Acc<S> const> gates,
             Store store, View2<S> y);
/// d_expert_out[place[t, k]] = gates[t, k] dy[t]; d_gates[t, k] = dy[t] . expert_out[place[t, k]], or 0 where place is
/// -1. Rows of d_expert_out that belong to no slot keep their values. d_expert_out may be expert_out.
template <class S>
void combine_backward(ExecSpace const& exec, View2<S const> expert_out, View2<int const> place,
                      View2<Acc<S> const> gates, View2<S const> dy, View2<S> d_expert_out, View2<Acc<S>> d_gates);

/// position [tokens, top_k]: how many earlier tokens of the same sample chose the same expert; -1 where choice is -1.
/// start [samples, experts] is the number of the sample's tokens on other ranks that chose the expert and come before
/// those here; empty means none.
void position_in_queue(ExecSpace const& exec, View2<int const> choice, SampleRows rows, int experts,
                       View2<std::int64_t const> start, View2<int> position);
/// Drops the slots whose position is not below `capacity` (per sample and expert): kept = -1 and their gate becomes 0;
/// for other slots kept = choice. kept may be choice itself, but route_backward needs the choice from before.
template <class A>
void drop_beyond(ExecSpace const& exec, View2<int const> position, std::int64_t capacity, View2<int const> choice,
                 View2<int> kept, Given<View2<A>> gates);

}  // namespace p3d::kernels
