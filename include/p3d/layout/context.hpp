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

/// Of a checked configuration; context.exchange = "auto" becomes the one that sends the fewest bytes.
ContextDivision context_division(config::Config const& config);

/// What a rank sends of queries, keys, values, outputs and their gradients for one layer and one sequence, in elements
/// (METHODS: forward 2 (r-1)/r s kv for a ring of r, twice that backward; all-to-all of a: (a-1)/a (s/cp) (2 q + 2 kv)
/// each way). `q` and `kv` are the widths of queries and of keys on a rank of tp.
struct ContextTraffic {
  double forward = 0, backward = 0;
};
ContextTraffic context_traffic(ContextDivision const& division, std::int64_t q, std::int64_t kv);

/// Scores that each place of the ring computes of one sequence whose query i sees keys [first_key[i], i]; first_key
/// empty: all from 0 on. The largest over the mean is the imbalance.
double context_imbalance(ContextDivision const& division, std::int64_t window,
                         std::vector<std::int64_t> const& first_key = {});

}  // namespace p3d::layout
