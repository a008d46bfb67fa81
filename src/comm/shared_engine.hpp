// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives through memory that the ranks of a node share; between nodes, each part of an all-reduce through another
// engine.
//
// The buffer of an all-reduce goes in segments, numbered through over the life of the communicator; segment k uses slot
// k mod num_slots of every rank's region, so several are in flight. Of each segment a rank
//   posts     what the others have to sum from its buffer into its slot, or where it lies: a buffer in the node's
//   memory
//             (allocate_shared) is read where it is,
//   reduces   its own part out of all slots, when all have posted, in the order of ranks, into its slot or buffer and
//   straight
//             into the others' buffers that are in the node's memory. Then each line of the cache goes to the one rank
//             that sums it and later back; fetching the results instead moves it twice and takes its ownership twice,
//   collects  the other parts, when all have reduced: out of their slots, if its own buffer is not in the node's
//   memory.
// Over several nodes all parts are collected, since they are final only after their travels.
// Short buffers go in one sweep: post all, then every rank sums everything itself (the same order, so the same bits). A
// slot is posted to again, and a buffer that was read in its place is given back, when all ranks have collected what
// was in it.
//
// The buffer of a reduce-scatter or an all-gather has a share for each rank. A segment is a piece of every share, so
// that all ranks work on it. It goes in one sweep: all post, then each sums its own piece out of the others' memory in
// the order of ranks, or copies the others' pieces out of theirs. Nobody writes into another's buffer.

#include <atomic>
#include <memory>
#include <vector>

#include "engine.hpp"
#include "parts.hpp"

namespace p3d::comm::detail {

/// Sizes in bytes, chosen by benchmarks/allreduce.
struct SharedSizes {
  std::size_t slot = std::size_t{512} << 10;  ///< most of a segment
  std::size_t direct = std::size_t{4} << 10;  ///< buffers up to this go in one sweep
};

class SharedEngine final : public Engine {
public:
  static constexpr int num_slots = 4;

  /// The ranks of a communicator that are on this node.
  struct Team {
    int me = 0;                        ///< this rank's number in the team
    std::vector<std::byte*> regions;   ///< by number; zeroed before anybody starts
    std::vector<std::byte*> memories;  ///< by number: all that a member shares
    std::size_t own_bytes = 0;         ///< of this rank's memory
    std::vector<int> bells;            ///< node ranks of the others
    int lanes = 1;                     ///< so many of the team, the first ones, reduce a part of each segment
    bool several_nodes = false;
    /// By number: the shares that a member adds up, or has to give (Work::bounds).
    std::vector<std::vector<int>> shares;
  };
  static std::size_t region_bytes(SharedSizes const& sizes);
  /// How many others have left a region for good.
  static std::atomic<std::uint32_t> const* users(std::byte* region);

  /// `between`: sums this rank's part over the nodes; null where the team is the whole communicator or this rank has no
  /// part.
  SharedEngine(Team team, SharedSizes sizes, std::unique_ptr<Engine> between);
  /// Says in all regions that this rank has left them.
  ~SharedEngine() override;

  bool advance() override;
  void enqueue(Work& work) override;
  bool idle() const override { return works_.empty(); }

private:
  struct Counters;
  struct Head;
  /// What is one member's of a segment whose buffer has shares.
  struct Piece {
    Range range;              ///< of the member's shares one after the other
    std::int64_t packed = 0;  ///< where it begins in a slot
  };
  struct Segment {
    Work* work = nullptr;
    std::int64_t begin = 0;  ///< where the buffer has no shares
    std::int64_t count = 0;
    std::vector<Piece> pieces;  ///< where it has some, by member
    bool direct = false;        ///< every rank sums everything
    bool in_place = false;      ///< the others read it in this rank's buffer
    bool lent = false;          ///< and may still do so when this rank has all that it wants
    Work travels;               ///< this rank's part on its way between the nodes
  };

  bool post();
  bool reduce();
  bool settle();
  bool collect();
  bool finish();
  void cut(Segment& segment) const;
  void fill_slot(Segment const& segment, std::byte* slot) const;
  std::int64_t most(Work const& work) const;
  void reduce_direct(Segment& segment, int slot);
  void reduce_part(Segment& segment, int slot);
  void fetch_parts(Segment const& segment, int slot);
  void reduce_piece(Segment& segment, int slot);
  void fetch_pieces(Segment& segment, int slot);

  Counters& counters(int member) const;
  Head& head(int member, int slot) const;
  std::byte* data(int member, int slot) const;
  /// Where the element of a buffer is that a member has posted or reduced, in its buffer or in the slot.
  std::byte* element(int member, int slot, Work const& work, std::int64_t in_buffer, std::int64_t in_slot) const;
  /// Calls body(in_buffer, count, in_slot) for each run of elements in a member's piece.
  template <class Body>
  void for_each_run(Segment const& segment, int member, Body&& body) const;
  /// Whether a member fetches the results of the slot's segment; else those who reduce write them into its buffer.
  bool collects(int member, int slot) const;
  /// What a member with a part reduces of a segment, relative to its beginning.
  Range part(Segment const& segment, int member) const;
  bool all_released(std::uint64_t number);

  Team team_;
  SharedSizes sizes_;
  std::unique_ptr<Engine> between_;
  std::vector<Work*> works_;  ///< unfinished, oldest first
  std::size_t posting_ = 0;   ///< the first of them that is not posted wholly
  Segment segments_[num_slots];
  // Segments are posted up to posted_, reduced on this node up to reduced_, everywhere up to settled_, collected up to
  // collected_, read by nobody up to finished_.
  std::uint64_t posted_ = 0, reduced_ = 0, settled_ = 0, collected_ = 0, finished_ = 0;
  int seen_posts_ = 0,
      seen_reductions_ = 0;              ///< members known to have posted, reduced the oldest segment that waits for it
  std::vector<std::uint64_t> released_;  ///< by member: segments that it is known to have collected
  std::vector<std::byte const*> inputs_;
  std::vector<std::byte*> outputs_;
};

}  // namespace p3d::comm::detail
