// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives through memory that the ranks of a node share; between nodes, each part of an all-reduce through another
// engine.
//
// The buffer of an all-reduce is cut into segments, numbered through over the life of the communicator; segment k uses
// slot k mod num_slots of every rank's region, so several are in flight. For each segment a rank
//   posts     the elements that the others have to sum: it copies them from its buffer into its slot, or tells where
//             they lie (a buffer in the node's memory, a SharedBuffer, is read in place),
//   reduces   its own part out of all slots, when all have posted, in the order of ranks, into its slot or buffer and
//             also into the others' buffers that are in the node's memory. Then each cache line goes to the one rank
//             that sums it and later back; fetching the results instead moves it twice and takes its ownership twice,
//   collects  the other parts, when all have reduced: out of their slots, if its own buffer is not in the node's
//   memory.
// Over several nodes all parts are collected, since they are final only after the exchange between nodes. Short buffers
// go in one step: post all, then every rank sums everything itself (the same order, so the same bits). A slot is posted
// to again, and a buffer that was read in place is released, when all ranks have collected its contents.
//
// The buffer of a reduce-scatter or an all-gather has a share for each rank. A segment is a piece of every share, so
// that all ranks work on it. It goes in one step: all post, then each sums its own piece out of the others' memory in
// the order of ranks, or copies the others' pieces out of theirs. No rank writes into another's buffer.

#include <atomic>
#include <memory>
#include <vector>

#include "engine.hpp"
#include "parts.hpp"

namespace p3d::comm::detail {

/// Sizes in bytes, chosen by benchmarks/allreduce.
struct SharedSizes {
  std::size_t slot = std::size_t{512} << 10;  ///< most bytes of a segment
  std::size_t direct = std::size_t{4} << 10;  ///< buffers up to this length go in one step
};

/// The engine of the ranks of one communicator on one node.
class SharedEngine final : public Engine {
public:
  /// Segments in flight.
  static constexpr int num_slots = 4;

  /// The ranks of a communicator that are on this node, which are its members.
  struct Team {
    int me = 0;                        ///< this rank's number in the team
    std::vector<std::byte*> regions;   ///< the members' regions, zeroed before any rank starts
    std::vector<std::byte*> memories;  ///< all memory that each member shares
    std::size_t own_bytes = 0;         ///< bytes of this rank's memory
    std::vector<int> bells;            ///< node ranks of the other members, to be woken; empty without bells
    int lanes = 1;                     ///< the number of members that reduce a part of each segment, the first ones
    bool several_nodes = false;
    /// The shares that a member adds up, or has to give, by its number (indices into Work::begins).
    std::vector<std::vector<int>> shares;
  };
  /// Bytes of the region that a rank needs.
  static std::size_t region_bytes(SharedSizes const& sizes);
  /// The counter of the other members that have left a region for good.
  static std::atomic<std::uint32_t> const* users(std::byte* region);

  /// `between` sums this rank's part over the nodes; null where the team is the whole communicator or this rank has no
  /// part.
  SharedEngine(Team team, SharedSizes sizes, std::unique_ptr<Engine> between);
  /// Tells in all regions that this rank has left them.
  ~SharedEngine() override;

  bool advance() override;
  void enqueue(Work& work) override;
  bool idle() const override { return works_.empty(); }
  bool is_woken() const override { return !team_.several_nodes && !team_.bells.empty(); }
  bool sends_messages() const override { return team_.several_nodes; }

private:
  /// Counters at the beginning of a region, which the other members read.
  struct Counters;
  /// Head of a slot.
  struct Head;
  /// One member's elements of a segment whose buffer has shares.
  struct Piece {
    Range range;              ///< a run of the member's shares, which are put one after the other
    std::int64_t packed = 0;  ///< index of its first element in a slot
  };
  /// One segment in flight.
  struct Segment {
    Work* work = nullptr;
    std::int64_t begin = 0;  ///< first element, where the buffer has no shares
    std::int64_t count = 0;
    std::vector<Piece> pieces;  ///< by member, where the buffer has shares
    bool direct = false;        ///< every rank sums the whole segment
    bool in_place = false;      ///< the other members read it in this rank's buffer
    bool lent = false;          ///< they may still read it when this rank has all that it needs
    Work travels;               ///< the exchange of this rank's part between the nodes
  };

  /// Each stage does its next segment, if it can, and returns whether it did.
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
  /// Copies the other members' pieces of an all-gather into this rank's buffer.
  void fetch_pieces(Segment& segment, int slot);

  Counters& counters(int member) const;
  Head& head(int member, int slot) const;
  std::byte* data(int member, int slot) const;
  /// The address of an element that a member has posted or reduced: in the member's buffer, or in its slot.
  std::byte* element(int member, int slot, Work const& work, std::int64_t in_buffer, std::int64_t in_slot) const;
  /// Calls body(in_buffer, count, in_slot) for each run of elements in a member's piece; the two indices are those of
  /// the first element in the buffer and in a slot.
  template <class Body>
  void for_each_run(Segment const& segment, int member, Body&& body) const;
  /// True when a member fetches the results of the slot's segment; otherwise the ranks that reduce write them into its
  /// buffer.
  bool collects(int member, int slot) const;
  /// The elements of a segment that a member with a part reduces, relative to the segment's beginning.
  Range part(Segment const& segment, int member) const;
  /// True when all members have collected the first `number` segments.
  bool all_released(std::uint64_t number);

  Team team_;
  SharedSizes sizes_;
  std::unique_ptr<Engine> between_;
  std::vector<Work*> works_;  ///< unfinished, oldest first
  std::size_t posting_ = 0;   ///< index of the first work that is not wholly posted
  Segment segments_[num_slots];
  /// Counts of segments: posted up to posted_, reduced on this node up to reduced_, on all nodes up to settled_,
  /// collected by this rank up to collected_, no longer read by any rank up to finished_.
  std::uint64_t posted_ = 0, reduced_ = 0, settled_ = 0, collected_ = 0, finished_ = 0;
  int seen_posts_ = 0,
      /// Members known to have posted, and to have reduced, the oldest segment that waits for it.
      seen_reductions_ = 0;
  std::vector<std::uint64_t> released_;   ///< number of segments that each member is known to have collected
  std::vector<std::byte const*> inputs_;  ///< arguments of combine(), kept to save allocations
  std::vector<std::byte*> outputs_;
};

}  // namespace p3d::comm::detail
