// SPDX-License-Identifier: Apache-2.0
#pragma once
// Context parallelism as arithmetic: which rank of cp has which tokens of a sequence, and how attention, which needs
// all of them, brings them together.
//
// The cp ranks are a table of ring x all_to_all: rank = member + all_to_all * place, neighbours first. A ring (or an
// all-gather) brings the keys and values of the `ring` places together; inside a place an all-to-all gives each of its
// `all_to_all` members all tokens of the place, of some of the heads (Jacobs et al., arXiv 2309.14509; both: Fang and
// Zhao, arXiv 2405.07719). With all_to_all = 1 there is only the ring (Liu et al., arXiv 2310.01889), with ring = 1
// only the all-to-all.

#include <p3d/base/token_set.hpp>
#include <p3d/config/config.hpp>
#include <p3d/layout/axes.hpp>

#include <cstdint>
#include <vector>

namespace p3d::layout {

using base::TokenSet;

/// How the tokens of a sequence are divided over cp.
struct ContextDivision {
  std::int64_t seq_len = 1;
  int cp = 1;
  int all_to_all = 1;   ///< ranks of a place
  bool gather = false;  ///< keys and values of the places come by an all-gather instead of a ring
  /// The order deals the tokens to the places of the ring: contiguous: one piece each; zigzag: of 2 ring pieces those
  /// numbered place and 2 ring - 1 - place, so that causal work is even; striped: token i to place i mod ring
  /// (Brandon et al., arXiv 2311.09431). Pieces differ by one token at most; nothing is padded.
  config::ContextOrder order = config::ContextOrder::zigzag;

  int ring() const { return cp / all_to_all; }
  int place(int rank) const { return rank / all_to_all; }
  int member(int rank) const { return rank % all_to_all; }
  /// The tokens of a place: those whose queries, keys and values a member has after the all-to-all.
  TokenSet place_tokens(int place) const;
  /// The tokens of a rank everywhere but in attention: an even share of its place's.
  TokenSet tokens(int rank) const;
  Range share_of_place(int rank) const;  ///< the same as places in place_tokens
  /// The largest number of tokens of any rank, and of any place.
  std::int64_t most_tokens() const;
  std::int64_t most_place_tokens() const;
  /// The same ranks and another length.
  ContextDivision of_length(std::int64_t length) const;
};

/// What a rank and the way between two of them can do. The defaults are a CPU core's; only their ratio decides between
/// schedules, and between exchanges.
struct MachineRates {
  double flops = 1e11;      ///< operations per second of a rank
  double bandwidth = 1e10;  ///< bytes per second between two ranks
  double latency = 5e-6;    ///< seconds
};

/// Of a checked configuration; context.exchange = "auto" becomes the ring or [a, r] whose layers wait least forward and
/// backward (context_wait with the default rates; of equals the smallest a).
ContextDivision context_division(config::Config const& config);

/// Of a rank of tp: the widths of queries and of keys (or values), and the heads of queries.
struct ContextWidths {
  std::int64_t q = 0, kv = 0, heads = 0;
};
ContextWidths context_widths(config::Config const& config);

/// What a rank sends of queries, keys, values, outputs and their gradients for one layer and one sequence, in elements
/// (METHODS: forward 2 (r-1)/r s kv for a ring of r, twice that backward; all-to-all of a: (a-1)/a (s/cp) (2 q + 2 kv)
/// each way, and backward a number for each query and head). Backward sends as much as forward in the storage type, the
/// rest are sums. `again`: of a forward whose queries, keys and values are kept behind the all-to-all.
struct ContextTraffic {
  double forward = 0, backward = 0, again = 0;
};
ContextTraffic context_traffic(ContextDivision const& division, ContextWidths const& widths);

/// One layer and microbatch on a rank, in the mean over the ranks.
struct ContextWork {
  ContextWidths widths;
  double samples = 1;
  double storage = 4, sums = 4;  ///< bytes of a number
  double forward = 0;            ///< seconds that attention computes forward; backward takes twice that
};
ContextWork context_work(config::Config const& config, std::int64_t layer, MachineRates const& rates);

/// Seconds that a rank waits for others of cp, by the order of work of parallel::ContextAttention. A message takes
/// latency + bytes / bandwidth, a rank's follow each other. All-to-alls and gathers are waited for. In a ring of r
/// forward hides r - 1 hops behind as many blocks of attention: (r-1) max(0, keys - forward / r). Backward waits for
/// the first hop of keys and the last of gradients; the others travel beside r - 1 blocks of twice the work, keys with
/// the 1st to r-2nd, gradients with the 2nd to the last.
struct ContextWait {
  double forward = 0, backward = 0, again = 0;  ///< as in ContextTraffic
};
ContextWait context_wait(ContextDivision const& division, ContextWork const& work, MachineRates const& rates);

/// Keys that a query sees in causal attention, in the mean over a sequence: of min(i + 1, window); window 0: of i + 1.
double mean_keys(std::int64_t seq_len, std::int64_t window);

/// Scores that each place of the ring computes of one sequence whose query i sees keys [first_key[i], i]; first_key
/// empty: all from 0 on. The largest over the mean is the imbalance.
double context_imbalance(ContextDivision const& division, std::int64_t window,
                         std::vector<std::int64_t> const& first_key = {});

}  // namespace p3d::layout
