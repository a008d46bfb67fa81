// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ways in which a communicator reduces and gathers: by the MPI library, or by one of p3d's own algorithms over
// messages or shared memory. What is said here of an all-reduce holds for its two halves too, reduce_scatter and
// all_gather over shares.
//
//   auto          by place: shared where all ranks are on one node, hierarchical on several; where no two ranks share a
//                 node, or memory is missing, by length: tree for short buffers, ring from 32 KiB on.
//   mpi           MPI_Iallreduce, MPI_Ireduce_scatter, MPI_Iallgatherv; the order of summation is the library's affair.
//   ring          Pairwise exchange: round the ring, beginning with its neighbour, each rank sends every other one what
//                 that one is to sum, which it does in the order of ranks; then, in the same way, its own sum (Thakur,
//                 Rabenseifner, Gropp, IJHPCA 19 (2005) 49). Each rank sends 2 (p-1)/p of the buffer, the least there
//                 is, in 2 steps of p-1 messages.
//   tree          up and down a binomial tree: 2 log2(p) steps, for short buffers between nodes. Halves go as by ring,
//                 but are added in the tree's order.
//   shared        ranks of one node: each copies its buffer in segments into memory that all can read (unless it is a
//                 SharedBuffer, which they can), sums its own part of each segment straight out of the others' memory,
//                 writes the sum into every SharedBuffer and copies the other parts out where its own is none. Over
//                 ranks of several nodes it is hierarchical.
//   hierarchical  shared inside each node; between the nodes the ranks with the same number reduce their parts by
//                 messages: up to 4 nodes as by ring; more pairwise where these messages are long (16 KiB), and else by
//                 recursive halving and doubling where their number n is a power of two (2 log2(n) messages); where it
//                 is none, pairwise from 2 KiB on, else by tree. Each rank sends 2 (n-1)/n of its part; only short
//                 parts go whole.
//
// All but mpi add in an order that depends on the ranks and the algorithm alone, never on time, nor on where in a
// buffer an element lies: the same buffers give the same bits on every rank and in every repetition, cut into whichever
// shares. ring and shared even give the same. Buffers must be memory that the host can read.
//
// 16-bit numbers are added in float and rounded where a result is stored: with shared and ring once for each element,
// with tree after each step, so log2(p) times at most; with hierarchical once inside a node and then as between nodes:
// once on up to 4 nodes, by tree on more. mpi has no such sum.

#include <p3d/base/all_reduce.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace p3d::comm {

using base::AllReduce;
using base::to_string;

/// How Communicator::prepare() sets up a communicator.
struct AllReduceSettings {
  AllReduce algorithm = AllReduce::mpi;
  /// With `nccl`: true: sums of floating-point numbers have the order of ranks (NCCL moves them, DeviceSums adds them);
  /// false: NCCL adds, in an order of its own. The order of sums in host memory follows from the algorithm alone.
  bool fixed_order = true;
  /// Device memory is reduced through NCCL (nccl.hpp). A build without NCCL throws base::Error.
  bool nccl = false;
};

/// Opens the memory that the ranks of each node share. Collective over world at its first call, free afterwards. Before
/// it, and on machines without such memory, communicators use messages only. A Mesh over all ranks calls it.
/// `buffer_bytes`: bytes that this rank will want for SharedBuffers (address space only; memory is taken when a buffer
/// is made). `groups`: number of communicators that will be prepared at the same time; each takes about 2 MiB of every
/// rank (address space too), and a few more than that find room.
void open_node_memory(std::size_t buffer_bytes = 0, int groups = 24);

/// Zeroed memory of this rank that the other ranks of its node can reach. A collective by shared memory reads a buffer
/// inside it in place, and an all-reduce writes its results there, which saves two copies. Making one is local. It must
/// live as long as operations on it.
class SharedBuffer {
public:
  SharedBuffer() = default;
  /// data() is null where there is no node memory, no room left in it, or little left in /dev/shm.
  explicit SharedBuffer(std::size_t bytes);
  SharedBuffer(SharedBuffer&& other) noexcept;
  SharedBuffer& operator=(SharedBuffer&& other) noexcept;
  ~SharedBuffer();
  void* data() const;

private:
  std::int64_t offset_ = 0;
  std::size_t bytes_ = 0;
};

/// Counts every `ranks` neighbouring ranks of a node as a node of their own, so that tests run the algorithms for
/// several nodes on one. All ranks must set the same number. It takes effect for communicators prepared afterwards; 0
/// restores the real nodes.
void set_ranks_per_node(int ranks);

}  // namespace p3d::comm
