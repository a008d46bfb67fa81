// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives by pairwise exchange (Thakur, Rabenseifner, Gropp, IJHPCA 19 (2005) 49). Each rank sends every owner its
// summand of that owner's share, and the owner adds all of them in one fixed order, whatever the order of arrival;
// then, or instead, it sends its share to all. An all-reduce is both, over even shares. A rank sends (p-1)/p of the
// buffer in each half, as round a ring, in one step instead of p-1; and the sum of an element does not depend on where
// it lies.

#include <mpi.h>

#include <cstddef>
#include <string>
#include <vector>

#include "engine.hpp"
#include "message_steps.hpp"
#include "parts.hpp"

namespace p3d::comm::detail {

/// The order in which an owner adds the summands.
enum class Order {
  ranks,  ///< rank after rank; 16-bit numbers in float, rounded once
  tree    ///< as tree_steps(): pairs, then pairs of pairs, each rounded to the type
};

/// The engine of one communicator and one pattern of messages.
class PairEngine final : public Engine {
public:
  /// `comm`, which the caller owns, carries nothing but the messages of engines of different families
  /// (message_engine.hpp). `piece_bytes`: the most bytes of a message.
  PairEngine(MPI_Comm comm, std::string name, Pairs pairs, Order order, std::size_t piece_bytes, int family);

  bool advance() override;
  void enqueue(Work& work) override;
  bool idle() const override { return works_.empty(); }

private:
  /// The phase of a run; an all-gather skips scatters, a reduce-scatter ends after it.
  enum class Phase { starts, scatters, gathers };
  /// One segment under way: a piece of every share.
  struct Run {
    Work* work = nullptr;     ///< null: free
    std::int64_t number = 0;  ///< number of the segment in its work
    int tag = 0;
    Phase phase = Phase::starts;
    std::vector<MPI_Request> requests;
    std::vector<std::byte> arrived;  ///< summands of the own piece, in the order of pairs_.givers
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
  /// The elements of a share.
  Range share_of(Work const& work, int share) const;

  MPI_Comm comm_;
  std::string name_;
  Pairs pairs_;
  Order order_;
  std::size_t piece_bytes_;
  int first_tag_;
  std::vector<Run> runs_;
  std::vector<Work*> works_;          ///< unfinished, oldest first
  std::int64_t segments_ = 0;         ///< segments started so far, of all works: gives the tags
  std::vector<std::byte*> summands_;  ///< buffer of add()
};

}  // namespace p3d::comm::detail
