// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who talks to whom, as data: what one rank sends and receives. Plain integers; no MPI.

#include <cstddef>
#include <vector>

namespace p3d::comm::detail {

/// Equal parts [begin, end) of a buffer, of so many as the algorithm cuts it into.
struct Parts {
  int begin = 0, end = 1;
  bool operator==(Parts const&) const = default;
};

/// One exchange of parts of a buffer, or of all of it: a message out, a message in, or both. It is over when both are.
/// -1: none.
struct Step {
  int send_to = -1;
  int receive_from = -1;
  bool adds = false;   ///< what arrives is reduced with what is there; otherwise it takes its place
  bool first = false;  ///< what arrives comes first in the sum
  Parts sends{}, receives{};

  bool operator==(Step const&) const = default;
};

/// An all-reduce up a binomial tree to rank 0 and down again: at most 2 ceil(log2 p) steps. Rank r is summed with r+1,
/// the pair with the pair at r+2, and so on.
std::vector<Step> tree_steps(int rank, int num_ranks);

/// An all-reduce by recursive halving and doubling (Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005) 49) of a power of two
/// of ranks, in a buffer of as many parts: 2 log2(p) steps, in which each rank sends 2 (p-1)/p of the buffer. Every
/// part is added in the tree's order: the same bits.
std::vector<Step> halving_steps(int rank, int num_ranks);

/// A buffer is cut into shares, and each has one owner. Whom a rank has something for when every owner adds up its
/// share, and who has something for it. In an all-gather messages go the other way round.
struct Pairs {
  struct Owner {
    int rank;
    int share;
  };
  int shares = 1;
  int own_share = 0;
  std::vector<Owner> owners{};  ///< in the order in which this rank sends to them
  std::vector<int> givers{};    ///< ranks that have something for this one's share, in the order of summation
  int place = 0;                ///< in that order this rank comes before givers[place]
};

/// All with all: share s is rank s's. Nobody has two messages to take in before everybody has sent one.
Pairs all_pairs(int rank, int num_ranks);

/// The ranks of several nodes, after each node has added up for itself: of what the k-th rank of a node owns, the sum
/// of another node lies with that one's rank k, modulo their number. `nodes`: the ranks of each.
Pairs node_pairs(std::vector<std::vector<int>> const& nodes, int rank);

/// The shares that each member of a node adds up for itself and for the other nodes, by its number there.
std::vector<std::vector<int>> node_shares(std::vector<std::vector<int>> const& nodes, std::size_t node);

}  // namespace p3d::comm::detail
