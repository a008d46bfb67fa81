// SPDX-License-Identifier: Apache-2.0
#pragma once
// All-reduce algorithms as data: what one rank sends and receives, step by step. Plain integers; no MPI.

#include <vector>

namespace p3d::comm::detail {

/// One exchange: a message out, a message in, or both. It is over when both are. -1: none. Buffers are cut into chunks,
/// as evenly as they go.
struct Step {
  int send_to = -1;
  int send_chunk = 0;
  int receive_from = -1;
  int receive_chunk = 0;
  bool adds = false;  ///< what arrives is reduced with what is there; otherwise it takes its place

  bool operator==(Step const&) const = default;
};

/// A rank's steps, and the number of chunks that they speak of.
struct Steps {
  std::vector<Step> steps;
  int chunks = 1;
};

/// Reduce-scatter, then all-gather, round the ring: 2 (p-1) steps of one of p chunks each. Chunk c is summed in the
/// order c, c+1, ..., p-1, 0, ..., c-1 of ranks.
Steps ring_steps(int rank, int num_ranks);

/// Up a binomial tree to rank 0 and down again: at most 2 ceil(log2 p) steps of the whole buffer. Rank r is summed with
/// r+1, the pair with the pair at r+2, and so on.
Steps tree_steps(int rank, int num_ranks);

}  // namespace p3d::comm::detail
