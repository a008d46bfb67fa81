// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives by pairwise exchange (Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005) 49): each rank sends every owner its
// summand of that one's share, the owner adds all of them up in one fixed order, whatever the order in which they come;
// then, or instead, it sends its share to all. An all-reduce is both, over even shares. A rank sends (p-1)/p of the
// buffer in each half, as it does round a ring, in one step instead of p-1; and the sum of an element does not depend
// on where it lies.

#include <mpi.h>

#include <cstddef>
#include <string>
#include <vector>

#include "engine.hpp"
#include "message_steps.hpp"
#include "parts.hpp"

namespace p3d::comm::detail {

/// How an owner adds up.
enum class Order {
  ranks,  ///< one after the other, 16-bit numbers in float, rounded once
  tree    ///< as tree_steps() do: pairs, then pairs of pairs, each rounded to the type
};

class PairEngine final : public Engine {
public:
  /// `comm`, which the caller owns, carries nothing but the messages of engines of different families
  /// (message_engine.hpp). `piece_bytes`: most of a message.
  PairEngine(MPI_Comm comm, std::string name, Pairs pairs, Order order, std::size_t piece_bytes, int family);

  bool advance() override;
  void enqueue(Work& work) override;
  bool idle() const override { return works_.empty(); }

private:
  enum class Phase { starts, scatters, gathers };
  /// One segment under way: a piece of every share.
  struct Run {
    Work* work = nullptr;  ///< null: free
    std::int64_t number = 0;
    int tag = 0;
    Phase phase = Phase::starts;
    std::vector<MPI_Request> requests;
    std::vector<std::byte> arrived;  ///< summands of the own piece, in order
  };

  bool open(Run& run);
  bool move(Run& run);
  void scatter(Run& run);
  void add(Run& run);
  void gather(Run& run);
  void send(Run& run, Range piece, int to);
  void receive(Run& run, std::byte* to, std::int64_t count, int from);
  /// The piece of a share that a run carries, as elements of the buffer.
  Range piece(Run const& run, int share) const;
  std::int64_t begin_of(Work const& work, int share) const;

  MPI_Comm comm_;
  std::string name_;
  Pairs pairs_;
  Order order_;
  std::size_t piece_bytes_;
  int first_tag_;
  std::vector<Run> runs_;
  std::vector<Work*> works_;  ///< unfinished, oldest first
  std::int64_t segments_ = 0;
  std::vector<std::byte*> summands_;
};

}  // namespace p3d::comm::detail
