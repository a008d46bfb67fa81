// SPDX-License-Identifier: Apache-2.0
#include "all_reducer.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "bell.hpp"
#include "message_engine.hpp"
#include "node_memory.hpp"
#include "shared_engine.hpp"

namespace p3d::comm {

namespace detail {

namespace {
// Segments of messages: long enough for the network's speed, short enough that adding overlaps with sending.
constexpr std::size_t tree_segment = std::size_t{64} << 10;
constexpr std::size_t ring_chunk = std::size_t{64} << 10;
// Between nodes a segment should be long: its parts travel.
constexpr SharedSizes sizes_of_many_nodes{.slot = std::size_t{512} << 10, .direct = 0};
static_assert(sizes_of_many_nodes.slot <= SharedSizes{}.slot, "open_node_memory counts with the larger");
/// Up to here the tree's few steps beat the ring's few bytes.
constexpr std::int64_t tree_until = std::int64_t{32} << 10;
}  // namespace

/// This rank's region, and everybody's. Given back when the last peer has left it.
struct AllReducer::Region {
  std::int64_t offset = 0;
  std::size_t bytes = 0;
  std::vector<std::byte*> regions;  ///< of the ranks on this node

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

AllReducer::AllReducer(Communicator& comm, AllReduceSettings const& settings) : rank_(comm.rank()), size_(comm.size()) {
  auto const algorithm = settings.algorithm;
  find_places(comm);
  bool const one_each = most_on_a_node_ == 1;  // nothing to share
  bool const shares = algorithm == AllReduce::shared || algorithm == AllReduce::hierarchical ||
                      (algorithm == AllReduce::automatic && !one_each);
  if (shares && !find_regions(comm) && algorithm != AllReduce::automatic) {
    throw base::Error(
        {.expected =
             fmt::format("memory that the ranks of a node share, for the all-reduce '{}'", to_string(algorithm)),
         .found = "none" + (node_memory_fault().empty() ? " on some other rank" : ": " + node_memory_fault()),
         .where = fmt::format("rank {}, communicator '{}'", base::log_rank(), comm.name()),
         .fix = "make /dev/shm larger (containers: --shm-size or --ipc=host), or set comm.allreduce to "
                "\"ring\" or \"tree\""});
  }
  if (region_) make_shared(comm, settings.fixed_order);
  bool const measures = algorithm == AllReduce::automatic && !settings.fixed_order;
  if (algorithm == AllReduce::ring || algorithm == AllReduce::tree || measures ||
      (algorithm == AllReduce::automatic && !shared_)) {
    make_messages(comm);
  }
  if (algorithm == AllReduce::automatic) {
    choose_by_rule();  // or measure()
  } else {
    table_ = {{0, algorithm == AllReduce::shared && num_nodes_ > 1 ? AllReduce::hierarchical : algorithm}};
  }
}

AllReducer::~AllReducer() = default;

/// Which ranks are on which nodes.
void AllReducer::find_places(Communicator& comm) {
  using Record = std::array<std::int64_t, 2>;
  auto const here = place_on_node();
  std::vector<Record> records(static_cast<std::size_t>(size_));
  Record const own{here.node, here.rank};
  comm.all_gather(own.data(), records.data(), 2, Type::int64).wait();

  std::map<std::int64_t, std::vector<int>> nodes;
  for (int r = 0; r < size_; ++r) nodes[records[static_cast<std::size_t>(r)][0]].push_back(r);
  num_nodes_ = static_cast<int>(nodes.size());
  lanes_ = size_;
  for (auto const& [node, ranks] : nodes) {
    lanes_ = std::min(lanes_, static_cast<int>(ranks.size()));
    most_on_a_node_ = std::max(most_on_a_node_, static_cast<int>(ranks.size()));
  }
  team_ = nodes.at(here.node);
  numbers_.assign(static_cast<std::size_t>(size_), -1);
  for (int const r : team_)
    numbers_[static_cast<std::size_t>(r)] = static_cast<int>(records[static_cast<std::size_t>(r)][1]);
}

/// A region for each rank; false, and none, when some rank has no room.
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
  for (int const r : team_) {
    region_->regions.push_back(node_memory_of(numbers_[static_cast<std::size_t>(r)]) +
                               offsets[static_cast<std::size_t>(r)]);
  }
  return true;
}

SharedSizes AllReducer::sizes() const { return num_nodes_ > 1 ? sizes_of_many_nodes : SharedSizes{}; }

void AllReducer::make_shared(Communicator& comm, bool fixed_order) {
  bool const several = num_nodes_ > 1;
  SharedEngine::Team team;
  team.regions = region_->regions;
  team.lanes = lanes_;
  team.own_bytes = own_node_memory_bytes();
  for (int const r : team_) team.memories.push_back(node_memory_of(numbers_[static_cast<std::size_t>(r)]));
  team.several_nodes = several;
  for (std::size_t i = 0; i < team_.size(); ++i) {
    if (team_[i] == rank_) {
      team.me = static_cast<int>(i);
    } else if (have_bells()) {
      team.bells.push_back(numbers_[static_cast<std::size_t>(team_[i])]);
    }
  }
  std::unique_ptr<Engine> between;
  if (several) {
    lane_ = comm.split(team.me < lanes_ ? team.me : -1, rank_, comm.name() + " between nodes");
    if (lane_.valid()) {
      // Two steps of half the buffer beat up and down with all of it, but many short ones do not.
      auto steps = num_nodes_ <= 4 ? ring_steps(lane_.rank(), num_nodes_) : tree_steps(lane_.rank(), num_nodes_);
      between =
          std::make_unique<MessageEngine>(lane_.mpi(), lane_.name(), std::move(steps), sizes_of_many_nodes.slot, 0);
      if (!fixed_order) between = std::make_unique<MpiEngine>(lane_.mpi(), lane_.name(), std::move(between));
    }
  }
  shared_ = std::make_unique<SharedEngine>(std::move(team), sizes(), std::move(between));
}

void AllReducer::make_messages(Communicator& comm) {
  messages_ = comm.split(0, rank_, comm.name() + " messages");
  auto const make = [&](Steps steps, std::size_t segment, int family) {
    return std::make_unique<MessageEngine>(messages_.mpi(), messages_.name(), std::move(steps), segment, family);
  };
  ring_ = make(ring_steps(rank_, size_), ring_chunk * static_cast<std::size_t>(size_), 0);
  tree_ = make(tree_steps(rank_, size_), tree_segment, 1);
}

/// The same in every run: goes by places and lengths alone.
void AllReducer::choose_by_rule() {
  if (shared_) {
    table_ = {{0, num_nodes_ > 1 ? AllReduce::hierarchical : AllReduce::shared}};
  } else {
    table_ = {{0, AllReduce::tree}, {tree_until, AllReduce::ring}};
  }
}

AllReduce AllReducer::choice(std::int64_t bytes) const {
  auto row = table_.begin();
  while (row + 1 != table_.end() && (row + 1)->bytes <= bytes) ++row;
  return row->algorithm;
}

Engine* AllReducer::engine(std::int64_t bytes, ElementType type) const {
  auto algorithm = choice(bytes);
  if (algorithm == AllReduce::mpi && type.float16()) {  // measured for sums that MPI has
    algorithm = shared_ ? AllReduce::shared : bytes < tree_until ? AllReduce::tree : AllReduce::ring;
  }
  switch (algorithm) {
    case AllReduce::ring: return ring_.get();
    case AllReduce::tree: return tree_.get();
    case AllReduce::hierarchical:
    case AllReduce::shared: return shared_.get();
    case AllReduce::mpi:
    case AllReduce::automatic: break;
  }
  return nullptr;
}

std::string AllReducer::describe() const {
  std::vector<std::string> parts;
  for (auto const& row : table_) {
    parts.push_back(row.bytes == 0 ? std::string(to_string(row.algorithm))
                                   : fmt::format("{} from {}", to_string(row.algorithm),
                                                 base::human_bytes(static_cast<double>(row.bytes))));
  }
  return base::join(parts, ", ");
}

}  // namespace detail
}  // namespace p3d::comm
