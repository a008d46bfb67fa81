// SPDX-License-Identifier: Apache-2.0
#pragma once
// Message patterns as data: what one rank sends to whom and receives from whom. Plain integers, no MPI, so that tests
// check them for any number of ranks.

#include <cstddef>
#include <vector>

namespace p3d::comm::detail {

/// A run of parts [begin, end) of a buffer that the algorithm cuts into equal parts.
struct Parts {
  int begin = 0, end = 1;
  bool operator==(Parts const&) const = default;
};

/// One exchange of parts of a buffer, or of all of it: a message out, a message in, or both. It is over when both
/// messages are. A rank of -1 means: no message.
struct Step {
  int send_to = -1;
  int receive_from = -1;
  bool adds = false;   ///< true: the message is reduced with what is there; false: it replaces that
  bool first = false;  ///< true: the message is the left operand of the reduction
  Parts sends{}, receives{};

  bool operator==(Step const&) const = default;
};

/// The steps of an all-reduce up a binomial tree to rank 0 and down again: at most 2 ceil(log2 p) steps. Rank r is
/// summed with r+1, the pair with the pair at r+2, and so on.
std::vector<Step> tree_steps(int rank, int num_ranks);

/// The steps of an all-reduce by recursive halving and doubling (Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005) 49) over
/// a power of two of ranks, in a buffer of as many parts: 2 log2(p) steps, in which each rank sends 2 (p-1)/p of the
/// buffer. Every part is added in the tree's order, so the bits are the same.
std::vector<Step> halving_steps(int rank, int num_ranks);

/// The messages of one rank when a buffer is cut into shares, each with one owner that adds it up: the owners to whom
/// this rank sends, and the givers from whom it receives. In an all-gather the messages go the other way round.
struct Pairs {
  /// A rank, and the share that it owns.
  struct Owner {
    int rank;
    int share;
  };
  int shares = 1;
  int own_share = 0;
  std::vector<Owner> owners{};  ///< the owners, in the order in which this rank sends to them
  std::vector<int> givers{};    ///< ranks that send summands of this rank's share, in the order of summation
  int place = 0;                ///< position of this rank in that order: before givers[place]
};

/// The messages of all ranks with all: share s belongs to rank s. The orders differ by rank, so that no rank receives
/// two messages before every rank has sent one.
Pairs all_pairs(int rank, int num_ranks);

/// The messages between nodes, after each node has added up for itself. For a share that the k-th rank of a node owns,
/// the sum of another node lies with that node's rank k, modulo its number of ranks. `nodes`: the ranks of each node.
Pairs node_pairs(std::vector<std::vector<int>> const& nodes, int rank);

/// The shares that each rank of a node adds up for its node, for its own use and for other nodes, by its number there.
std::vector<std::vector<int>> node_shares(std::vector<std::vector<int>> const& nodes, std::size_t node);

}  // namespace p3d::comm::detail
