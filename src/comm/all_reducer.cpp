// SPDX-License-Identifier: Apache-2.0
// Makes the engines of a communicator, by its algorithm and by the nodes of its ranks. With memory that a node's ranks
// share: one SharedEngine on one node; over several nodes a NodesEngine, with pairwise messages or a tree between them.
// Without: engines over messages, "tree" for short buffers and "ring" for long ones. Example: 8 ranks on 2 nodes give
// "hierarchical", whose 4 lanes each reduce a quarter of a segment inside their node and exchange it with the rank of
// the same number on the other node.
#include "all_reducer.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <utility>

#include "bell.hpp"
#include "message_engine.hpp"
#include "node_memory.hpp"
#include "nodes_engine.hpp"
#include "pair_engine.hpp"
#include "shared_engine.hpp"

namespace p3d::comm {

namespace detail {

namespace {
// Bytes of the segments of messages. They are long enough for the network's speed, and short enough that adding
// overlaps with sending (between two hosts pieces of 256 KiB reach 0.63 to 0.78 of the link's bound, pieces of 64 KiB
// 0.91).
constexpr std::size_t tree_segment = std::size_t{64} << 10;
constexpr std::size_t longest_piece = std::size_t{64} << 10;
constexpr std::size_t shortest_piece = std::size_t{4} << 10;
/// Bytes of received summands that one segment may hold until they are added.
constexpr std::size_t most_arrivals = std::size_t{8} << 20;
// Between nodes a segment should be long, since its parts are sent as messages.
constexpr SharedSizes sizes_of_many_nodes{.slot = std::size_t{512} << 10, .direct = 0};
static_assert(sizes_of_many_nodes.slot <= SharedSizes{}.slot, "open_node_memory counts with the larger");
/// Bytes below which the tree's few steps beat the ring's few bytes.
constexpr std::int64_t tree_until = std::int64_t{32} << 10;
/// The largest number of nodes that exchange pairwise.
constexpr std::size_t few_nodes = 4;
/// Bytes of a message from which on more nodes exchange pairwise too: the first bound replaces a tree of the whole
/// buffer, the second one halving, which sends as few bytes as pairs do.
constexpr std::size_t shortest_message = std::size_t{2} << 10, long_message = std::size_t{16} << 10;
// Families of messages (message_engine.hpp) of engines that share a communicator: over all ranks, and over nodes.
enum Family { ring_family, tree_family, pairs_family };
enum NodeFamily { between_family, scatter_family, gather_family, long_between_family };

/// Warns, once, that a group which might share memory has none.
void warn_of_messages(std::string const& group, std::string const& found) {
  static bool warned = false;
  if (!std::exchange(warned, true))
    base::warn_root(
        fmt::format("memory that the ranks of a node share, for the sums of '{}': {}. Messages carry them, "
                    "which is slower and may round in another order",
                    group, found));
}

/// Bytes of a message between so many ranks: the summands that arrive at the same time must not take too much memory.
std::size_t piece_bytes(std::size_t ranks) { return std::clamp(most_arrivals / ranks, shortest_piece, longest_piece); }
}  // namespace

/// This rank's region, and the addresses of all regions of its node. It is returned when the last peer has left it.
struct AllReducer::Region {
  std::int64_t offset = 0;
  std::size_t bytes = 0;
  std::vector<std::byte*> regions;  ///< regions of the ranks on this node

  Region(std::int64_t own_offset, std::size_t size) : offset(own_offset), bytes(size) {}
  Region(Region const&) = delete;
  Region& operator=(Region const&) = delete;
  ~Region() {
    if (!node_memory_is_open()) return;
    auto* const own = own_node_memory() + offset;
    retire_region(offset, bytes, SharedEngine::users(own),
                  regions.empty() ? 0 : static_cast<std::uint32_t>(regions.size() - 1));
  }
};

AllReducer::AllReducer(Communicator& comm, AllReduce algorithm) : rank_(comm.rank()), size_(comm.size()) {
  find_places(comm);
  bool const one_each = most_on_a_node_ == 1;  // then no ranks share memory
  bool const shares = algorithm == AllReduce::shared || algorithm == AllReduce::hierarchical ||
                      (algorithm == AllReduce::automatic && !one_each);
  if (shares && !find_regions(comm)) {
    auto const found = "none" + (node_memory_error().empty() ? " on some other rank" : ": " + node_memory_error());
    if (algorithm == AllReduce::automatic)
      warn_of_messages(comm.name(), found);
    else
      throw base::Error({.expected = fmt::format("memory that the ranks of a node share, for the all-reduce '{}'",
                                                 to_string(algorithm)),
                         .found = found,
                         .where = fmt::format("rank {}, communicator '{}'", base::log_rank(), comm.name()),
                         .fix = "make /dev/shm larger (containers: --shm-size or --ipc=host), or set comm.allreduce to "
                                "\"ring\" or \"tree\""});
  }
  if (region_) make_shared(comm);
  // Places alone decide here, and lengths in choice(): so every run chooses the same.
  algorithm_ = shared_ && algorithm != AllReduce::hierarchical
                   ? (nodes_.size() > 1 ? AllReduce::hierarchical : AllReduce::shared)
                   : algorithm;
  if (!shared_) make_messages(comm);
}

AllReducer::~AllReducer() = default;

/// Finds out which ranks are on which nodes. Collective.
void AllReducer::find_places(Communicator& comm) {
  using Record = std::array<std::int64_t, 2>;
  auto const here = place_on_node();
  std::vector<Record> records(static_cast<std::size_t>(size_));
  Record const own{here.node, here.rank};
  comm.all_gather(own.data(), records.data(), 2, Type::int64).wait();

  std::map<std::int64_t, std::size_t> nodes;
  for (int r = 0; r < size_; ++r) {
    auto const [node, is_new] = nodes.try_emplace(records[static_cast<std::size_t>(r)][0], nodes_.size());
    if (is_new) nodes_.emplace_back();
    nodes_[node->second].push_back(r);
  }
  lanes_ = size_;
  for (auto const& ranks : nodes_) {
    lanes_ = std::min(lanes_, static_cast<int>(ranks.size()));
    most_on_a_node_ = std::max(most_on_a_node_, static_cast<int>(ranks.size()));
  }
  node_ = nodes.at(here.node);
  numbers_.assign(static_cast<std::size_t>(size_), -1);
  for (int const r : nodes_[node_])
    numbers_[static_cast<std::size_t>(r)] = static_cast<int>(records[static_cast<std::size_t>(r)][1]);
}

/// Takes a region on each rank. Returns false, on all ranks and without any region, when some rank has no room.
/// Collective.
bool AllReducer::find_regions(Communicator& comm) {
  auto const bytes = SharedEngine::region_bytes(sizes());
  std::int64_t const offset = allocate_region(bytes);
  if (offset > 0) region_ = std::make_unique<Region>(offset, bytes);
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(size_));
  comm.all_gather(&offset, offsets.data(), 1, Type::int64).wait();
  if (std::find(offsets.begin(), offsets.end(), 0) != offsets.end()) {
    region_.reset();
    return false;
  }
  for (int const r : nodes_[node_]) {
    region_->regions.push_back(node_memory_of(numbers_[static_cast<std::size_t>(r)]) +
                               offsets[static_cast<std::size_t>(r)]);
  }
  return true;
}

SharedSizes AllReducer::sizes() const { return nodes_.size() > 1 ? sizes_of_many_nodes : SharedSizes{}; }

/// Describes this rank's node for a SharedEngine. `shares`: the shares that each of its ranks adds up.
SharedEngine::Team AllReducer::make_team(std::vector<std::vector<int>> const& shares) const {
  SharedEngine::Team team;
  team.regions = region_->regions;
  team.lanes = lanes_;
  team.own_bytes = own_node_memory_bytes();
  team.several_nodes = nodes_.size() > 1;
  team.shares = shares;
  auto const& ranks = nodes_[node_];
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    int const number = numbers_[static_cast<std::size_t>(ranks[i])];
    team.memories.push_back(node_memory_of(number));
    if (ranks[i] == rank_) {
      team.me = static_cast<int>(i);
    } else if (have_bells()) {
      team.bells.push_back(number);
    }
  }
  return team;
}

/// Makes the engine that sums the parts of an all-reduce over the nodes; null on a rank without a part.
std::unique_ptr<Engine> AllReducer::make_between(int number) {
  if (number >= lanes_) return {};
  int const node = static_cast<int>(node_);
  int const nodes = static_cast<int>(nodes_.size());
  auto const rank_on = [&](int other) {
    return other < 0 ? other : nodes_[static_cast<std::size_t>(other)][static_cast<std::size_t>(number)];
  };
  auto const pairwise = [&](Order order, NodeFamily family) {
    auto pairs = all_pairs(node, nodes);
    for (auto& owner : pairs.owners) owner.rank = rank_on(owner.rank);
    for (auto& giver : pairs.givers) giver = rank_on(giver);
    return std::make_unique<PairEngine>(between_nodes_.mpi(), between_nodes_.name(), std::move(pairs), order,
                                        piece_bytes(nodes_.size()), family);
  };
  // Two steps of half the buffer beat up and down with all of it, unless that makes many short messages.
  if (nodes_.size() <= few_nodes) return pairwise(Order::ranks, between_family);
  auto const by_steps = [&](std::vector<Step> steps, int parts) {
    for (auto& step : steps) {
      step.send_to = rank_on(step.send_to);
      step.receive_from = rank_on(step.receive_from);
    }
    return std::make_unique<MessageEngine>(between_nodes_.mpi(), between_nodes_.name(), std::move(steps), parts,
                                           sizes_of_many_nodes.slot, between_family);
  };
  // All three add in the tree's order. In halving each step waits for the one before it: where messages are long
  // enough, sending all of them at once is quicker.
  bool const halves = std::has_single_bit(static_cast<unsigned>(nodes));
  auto few_bytes = halves ? by_steps(halving_steps(node, nodes), nodes) : by_steps(tree_steps(node, nodes), 1);
  auto const message = halves ? long_message : shortest_message;
  return std::make_unique<LengthEngine>(std::move(few_bytes), pairwise(Order::tree, long_between_family),
                                        nodes * static_cast<std::int64_t>(message));
}

void AllReducer::make_shared(Communicator& comm) {
  auto team = make_team(node_shares(nodes_, node_));
  if (nodes_.size() == 1) {
    shared_ = std::make_unique<SharedEngine>(std::move(team), sizes(), nullptr);
    return;
  }
  between_nodes_ = Communicator(comm.mpi(), comm.name() + " between nodes");
  auto between = make_between(team.me);
  auto inside = std::make_unique<SharedEngine>(std::move(team), sizes(), std::move(between));
  auto const order = nodes_.size() <= few_nodes ? Order::ranks : Order::tree;
  auto const travel = [&](NodeFamily family) {
    return std::make_unique<PairEngine>(between_nodes_.mpi(), between_nodes_.name(), node_pairs(nodes_, rank_), order,
                                        piece_bytes(nodes_.size()), family);
  };
  auto scatter = travel(scatter_family);
  shared_ = std::make_unique<NodesEngine>(std::move(inside), std::move(scatter), travel(gather_family));
}

void AllReducer::make_messages(Communicator& comm) {
  messages_ = Communicator(comm.mpi(), comm.name() + " messages");
  auto const exchange = [&](Order order, Family family) {
    return std::make_unique<PairEngine>(messages_.mpi(), messages_.name(), all_pairs(rank_, size_), order,
                                        piece_bytes(static_cast<std::size_t>(size_)), family);
  };
  ring_ = exchange(Order::ranks, ring_family);
  tree_ = std::make_unique<MessageEngine>(messages_.mpi(), messages_.name(), tree_steps(rank_, size_), 1, tree_segment,
                                          tree_family);
  pairs_ = exchange(Order::tree, pairs_family);
}

AllReduce AllReducer::choice(std::int64_t bytes) const {
  if (algorithm_ != AllReduce::automatic) return algorithm_;
  return bytes < tree_until ? AllReduce::tree : AllReduce::ring;
}

Engine& AllReducer::engine(Collective kind, std::int64_t bytes) const {
  switch (choice(bytes)) {
    case AllReduce::ring: return *ring_;
    case AllReduce::tree: return kind == Collective::all_reduce ? *tree_ : *pairs_;
    default: return *shared_;
  }
}

std::string AllReducer::describe() const {
  if (algorithm_ != AllReduce::automatic) return to_string(algorithm_);
  return fmt::format("tree, ring from {}", base::human_bytes(static_cast<double>(tree_until)));
}

}  // namespace detail
}  // namespace p3d::comm
