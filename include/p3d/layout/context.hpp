// SPDX-License-Identifier: Apache-2.0
#pragma once
// Context parallelism as arithmetic: which rank of cp has which tokens of a sequence, and how attention, which needs
// all of them, exchanges them.
//
// The cp ranks are a table of ring x all_to_all: rank = member + all_to_all * place, neighbours first. A ring (or an
// all-gather) brings the keys and values of all `ring` places to each place; inside a place an all-to-all gives each of
// its `all_to_all` members all tokens of the place, for some of the heads (Jacobs et al., arXiv 2309.14509; both: Fang
// and Zhao, arXiv 2405.07719). With all_to_all = 1 there is only the ring (Liu et al., arXiv 2310.01889), with ring = 1
// only the all-to-all.
//
// Example: cp = 4 and all_to_all = 2 give a ring of 2 places; ranks 0 and 1 are the members of place 0.

#include <p3d/base/token_set.hpp>
#include <p3d/config/config.hpp>
#include <p3d/layout/axes.hpp>

#include <cstdint>
#include <vector>

namespace p3d::layout {

using base::TokenSet;

/// The division of a sequence's tokens over cp.
struct ContextDivision {
  std::int64_t seq_len = 1;
  int cp = 1;
  int all_to_all = 1;   ///< ranks of one place
  bool gather = false;  ///< keys and values of the places come by an all-gather, not a ring
  /// The order in which tokens are given to the places of the ring. contiguous: one piece each. zigzag: among 2 ring
  /// pieces those numbered place and 2 ring - 1 - place, so that causal work is even. striped: token i to place i mod
  /// ring (Brandon et al., arXiv 2311.09431). Pieces differ by one token at most; nothing is padded.
  config::ContextOrder order = config::ContextOrder::zigzag;
  /// Latent attention: latents travel in place of keys and values, and each rank makes those of its heads of them.
  bool latents = false;

  /// The number of places.
  int ring() const { return cp / all_to_all; }
  int place(int rank) const { return rank / all_to_all; }
  int member(int rank) const { return rank % all_to_all; }
  /// The tokens of a place: a member has their queries, keys and values after the all-to-all.
  TokenSet place_tokens(int place) const;
  /// The tokens of a rank everywhere but in attention: an even share of its place's tokens.
  TokenSet tokens(int rank) const;
  Range share_of_place(int rank) const;  ///< the tokens of a rank as indices into place_tokens()
  /// The largest number of tokens of any rank.
  std::int64_t most_tokens() const;
  /// The largest number of tokens of any place.
  std::int64_t most_place_tokens() const;
  /// The division of a sequence of another length over the same ranks.
  ContextDivision of_length(std::int64_t length) const;
};

/// The heads of one rank of tp.
struct ContextHeads {
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t head_dim = 0;    ///< width of a head of queries and keys
  std::int64_t value_dim = 0;   ///< width of a head of values and outputs; 0: head_dim
  std::int64_t first_head = 0;  ///< global number of the first query head
  double scale = 1.0;           ///< factor of the scores, usually 1 / sqrt(head_dim)
  double softcap = 0.0;         ///< the cap of scores, model.attention_softcap; 0: none
  /// Latent attention: numbers of a token that the keys and values of all heads are made of; else 0.
  std::int64_t latent = 0;
  /// The width of a head of values, of the output, and of the gradients of both.
  std::int64_t values() const { return value_dim > 0 ? value_dim : head_dim; }
  std::int64_t query_columns() const { return heads * head_dim; }
  std::int64_t key_columns() const { return kv_heads * head_dim; }
  std::int64_t value_columns() const { return kv_heads * values(); }
  /// Columns of the output and of its gradient.
  std::int64_t out_columns() const { return heads * values(); }
  /// Columns of qkv: queries, then keys, then values.
  std::int64_t columns() const { return query_columns() + key_columns() + value_columns(); }
};

/// Sizes of the arrays that one layer's attention keeps and works in, for a microbatch: the same on every rank.
struct AttentionSizes {
  std::int64_t samples = 0;
  std::int64_t rows = 0, place_tokens = 0;  ///< the most tokens of any rank in all samples, of any place in one
  std::int64_t heads = 0, columns = 0, out_columns = 0;  ///< local sizes before an all-to-all
  std::int64_t place_heads = 0, place_kv_heads = 0;      ///< local heads after it
  std::int64_t head_dim = 0, value_dim = 0;  ///< widths of a head of queries and keys, and of a head of values
  std::int64_t latent = 0;                   ///< width of the latents that travel; 0: keys and values do
  int ring = 1, all_to_all = 1;
  bool gather = false;
  AttentionSizes() = default;
  AttentionSizes(ContextDivision const& division, ContextHeads const& heads, std::int64_t samples);

  std::int64_t place_rows() const { return samples * place_tokens; }
  /// Elements of a layer's qkv.
  std::int64_t qkv_elements() const;
  /// Elements that an all-to-all sends or receives at most: those of qkv, of the output, or of latents for each member.
  std::int64_t exchanged_elements() const;
  /// Elements of the output of a place's tokens, for the heads of one rank.
  std::int64_t out_elements() const { return place_rows() * place_heads * value_dim; }
  /// Elements of the sums for queries' gradients or for outputs of a place's tokens, whichever are more.
  std::int64_t sum_elements() const;
  /// Elements of a layer's log-sum-exp.
  std::int64_t lse_elements() const;
  /// Elements of the keys and values of one place.
  std::int64_t block_elements() const { return place_rows() * place_kv_heads * (head_dim + value_dim); }
  /// Elements of the latents of one place.
  std::int64_t latent_elements() const { return place_rows() * latent; }
  /// Elements of what travels between places: the latents or the keys and values of one place.
  std::int64_t travelling_elements() const { return latent > 0 ? latent_elements() : block_elements(); }
};

/// Speeds of a rank and of the connection between two ranks. The defaults are those of a CPU core; only the ratio of
/// the values decides between schedules, and between exchanges.
struct MachineRates {
  double flops = 1e11;      ///< operations per second of a rank
  double bandwidth = 1e10;  ///< bytes per second between two ranks
  double latency = 5e-6;    ///< seconds until a message arrives, apart from its bytes
};

/// The division of a checked configuration. context.exchange = "auto" becomes the ring or the [a, r] whose layers wait
/// least forward and backward (context_wait with the default rates); among equals the smallest a.
ContextDivision context_division(config::Config const& config);

/// Widths of a rank of tp, in elements: of queries, keys, values and outputs; and the number of query heads. `latent`:
/// with latent attention the numbers of a token that keys and values of all heads are made of (kv_lora_rank +
/// qk_rope_head_dim), which are the same on every rank of tp.
struct ContextWidths {
  std::int64_t q = 0, k = 0, v = 0, out = 0, heads = 0, latent = 0;
};
ContextWidths context_widths(config::Config const& config);

/// The data that a rank sends for one layer and one sequence, in elements: queries, keys, values, outputs and their
/// gradients. (Forward (r-1)/r s (k + v) for a ring of r, twice that backward; all-to-all of a: (a-1)/a (s/cp) (q +
/// k + v + out) each way, and backward a number for each query and head.) `sums` are those elements of backward that
/// have the type of sums, the others have the storage type. `again` is a forward whose queries, keys and values are
/// kept behind the all-to-all.
///
/// Where latents of `latent` numbers travel (ContextDivision::latents), a ring sends (r-1)/r s latent forward and twice
/// that backward. The members of a place give their latents to each other, (a-1) (s/cp) latent, in place of keys and
/// values: once forward, and backward once more, with as many gradients behind them.
struct ContextTraffic {
  double forward = 0, backward = 0, again = 0;
  double sums = 0;
};
ContextTraffic context_traffic(ContextDivision const& division, ContextWidths const& widths);

/// Bytes of a stored number and of a sum.
struct ContextBytes {
  double storage = 4, sums = 4;
};
/// True where latents in place of keys and values are fewer bytes, forward and backward together. In a ring that is
/// where `latent` is less than k + v; among a members about where 3 a latent is less than 2 (k + v).
bool latents_are_less(ContextDivision division, ContextWidths const& widths, ContextBytes const& bytes);

/// The work of one layer and microbatch on a rank, as a mean over the ranks.
struct ContextWork {
  ContextWidths widths;
  double samples = 1;            ///< sequences of a microbatch
  double storage = 4, sums = 4;  ///< bytes of a stored number, and of a sum
  double forward = 0;            ///< seconds of attention forward; backward takes twice that
  double expansion = 0;          ///< seconds in which keys and values of the rank's tokens are made of latents
};
ContextWork context_work(config::Config const& config, std::int64_t layer, MachineRates const& rates);

/// Seconds that a rank waits for other ranks of cp, by the order of work of parallel::ContextAttention. A message takes
/// latency + bytes / bandwidth, and the messages of a rank follow each other. All-to-alls and all-gathers are waited
/// for. In a ring of r, forward hides r - 1 hops behind as many blocks of attention: (r-1) max(0, keys - forward / r).
/// Backward waits for the first hop of keys and the last of gradients; the other hops go beside r - 1 blocks of twice
/// the work, keys with blocks 1 to r-2, gradients with blocks 2 to r-1. Where latents travel, the time in which the
/// keys and values of the other r - 1 places are made of them counts as well: once forward; backward once more, and
/// twice for the gradients of latents and of the weights.
struct ContextWait {
  double forward = 0, backward = 0, again = 0;  ///< as in ContextTraffic
};
ContextWait context_wait(ContextDivision const& division, ContextWork const& work, MachineRates const& rates);

/// The mean number of keys that a query sees in causal attention: query i sees min(i + 1, window), with window 0 i + 1.
double mean_keys(std::int64_t seq_len, std::int64_t window);

/// The imbalance of the ring: the largest number of scores that a place computes, over the mean. In one sequence query
/// i sees keys [first_key[i], i]; with first_key empty all keys from 0 on.
double context_imbalance(ContextDivision const& division, std::int64_t window,
                         std::vector<std::int64_t> const& first_key = {});

}  // namespace p3d::layout
