// SPDX-License-Identifier: Apache-2.0
// The shared memory of a node: one MPI window, of which each rank owns a part. A rank allocates regions in its own part
// alone, from a list of free pieces, so allocating needs no other rank. A region that peers may still read is retired:
// it becomes free when their count says that all have left. Address space is reserved for all groups at the start;
// pages are made when a region is allocated.
#include "node_memory.hpp"

#include <p3d/base/error.hpp>
#include <p3d/comm/all_reduce.hpp>
#include <p3d/comm/wait.hpp>

#include <fcntl.h>
#include <mpi.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <utility>

#include "bell.hpp"
#include "internal.hpp"
#include "shared_engine.hpp"

namespace p3d::comm {

namespace detail {
namespace {

constexpr std::size_t page = 4096;
/// Groups beside those of a mesh: the trainer's, and old ones that peers have not left yet.
constexpr int spare_groups = 8;

std::size_t whole_pages(std::size_t bytes) { return (bytes + page - 1) / page * page; }

/// A free piece of this rank's part, [begin, end) in bytes.
struct Free {
  std::size_t begin, end;
};
/// A region that peers may still read, and the count by which they leave it.
struct Retired {
  std::size_t begin, end;
  std::atomic<std::uint32_t> const* users;
  std::uint32_t expected;
};
/// The window of this process.
struct NodeMemory {
  bool tried = false;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Win window = MPI_WIN_NULL;
  NodePlace place;
  std::vector<std::byte*> parts;  ///< one part for each rank on the node
  std::size_t bytes = 0;          ///< length of this rank's part
  std::string error = "it was not opened";
  std::vector<Free> free;
  std::vector<Retired> retired;
};
NodeMemory the_memory;
int ranks_per_node = 0;  ///< set by a test; 0: the real nodes

/// Makes pages exist, zeroed, before anybody writes to them: a full /dev/shm is then an answer and not a bus error. The
/// system writes the zeros (a read from /dev/zero): where it finds no room it says so, whatever other ranks take
/// meanwhile and however old the kernel is.
bool make_present(std::byte* begin, std::size_t bytes) {
  int const zeros = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  if (zeros < 0) return false;
  constexpr std::size_t most_at_once = std::size_t{1} << 30;
  std::size_t done = 0;
  while (done < bytes) {
    auto const n = ::read(zeros, begin + done, std::min(bytes - done, most_at_once));
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      break;
    }
  }
  ::close(zeros);
  if (done == bytes) return true;
#if defined(MADV_REMOVE)
  madvise(begin, bytes, MADV_REMOVE);  // returns the pages that were made before there was no more room
#endif
  return false;
}

/// Frees the retired regions that all peers have left, and joins free pieces that touch.
void reclaim() {
  std::erase_if(the_memory.retired, [](Retired const& region) {
    if (region.users->load(std::memory_order_acquire) < region.expected) return false;
    the_memory.free.push_back({region.begin, region.end});
    return true;
  });
  auto& free = the_memory.free;
  std::sort(free.begin(), free.end(), [](Free const& a, Free const& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < free.size();) {
    if (free[i - 1].end == free[i].begin) {
      free[i - 1].end = free[i].end;
      free.erase(free.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

/// Sets `good` to the least value of all ranks. Collective over `comm`.
void agree(std::int32_t& good, MPI_Comm comm) {
  check(blocking("MPI_Allreduce", "node",
                 [&] { return MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT32_T, MPI_MIN, comm); }),
        "MPI_Allreduce", "node");
}

/// The first whole page at or after an address.
std::byte* whole_page(void* begin) {
  auto const skip = (page - reinterpret_cast<std::uintptr_t>(begin) % page) % page;
  return static_cast<std::byte*>(begin) + skip;
}

/// Opens the window and finds its parts by rank; leaves them empty with `error` set when there is no window.
/// Collective.
void open_window(NodeMemory& memory) {
  int size = 1;
  MPI_Comm_size(memory.comm, &size);
  void* own = nullptr;
  // Some libraries begin a part inside a page. So each part has a page more than is used, and all ranks round up alike,
  // since the window itself begins at a page in every process.
  auto const bytes = static_cast<MPI_Aint>(memory.bytes + page);
  int const code = blocking("MPI_Win_allocate_shared", "node", [&] {
    return MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, memory.comm, &own, &memory.window);
  });
  std::int32_t good = code == MPI_SUCCESS ? 1 : 0;
  agree(good, memory.comm);
  if (good == 0) {
    memory.error = "MPI_Win_allocate_shared fails here: is /dev/shm missing, full or very small?";
    return;
  }
  // The memory is used by plain loads and stores with C++ atomics, inside one epoch that lasts as long as the window.
  check(blocking("MPI_Win_lock_all", "node", [&] { return MPI_Win_lock_all(MPI_MODE_NOCHECK, memory.window); }),
        "MPI_Win_lock_all", "node");
  for (int rank = 0; rank < size; ++rank) {
    MPI_Aint bytes_there = 0;
    int unit = 1;
    void* part = nullptr;
    check(MPI_Win_shared_query(memory.window, rank, &bytes_there, &unit, &part), "MPI_Win_shared_query", "node");
    memory.parts.push_back(whole_page(part));
  }
}

}  // namespace

void close_node_memory() {
  auto& memory = the_memory;
  close_bells();
  if (memory.window != MPI_WIN_NULL) {
    blocking("MPI_Win_unlock_all", "node", [&] { return MPI_Win_unlock_all(memory.window); });
    blocking("MPI_Win_free", "node", [&] { return MPI_Win_free(&memory.window); });
  }
  if (memory.comm != MPI_COMM_NULL) blocking("MPI_Comm_free", "node", [&] { return MPI_Comm_free(&memory.comm); });
  memory = {};
}

bool node_memory_is_open() { return !the_memory.parts.empty(); }
std::string const& node_memory_error() { return the_memory.error; }

NodePlace place_on_node() {
  NodePlace place = the_memory.place;
  if (ranks_per_node > 0) place.node += (place.rank / ranks_per_node) << 32;
  return place;
}

bool all_on_one_node() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return static_cast<int>(the_memory.parts.size()) == size;
}

std::vector<int> numbers_on_node(MPI_Comm comm) {
  MPI_Group group = MPI_GROUP_NULL, node = MPI_GROUP_NULL;
  int size = 0;
  MPI_Comm_size(comm, &size);
  check(MPI_Comm_group(comm, &group), "MPI_Comm_group", "node");
  check(MPI_Comm_group(the_memory.comm, &node), "MPI_Comm_group", "node");
  std::vector<int> ranks(static_cast<std::size_t>(size)), numbers(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  check(MPI_Group_translate_ranks(group, size, ranks.data(), node, numbers.data()), "MPI_Group_translate_ranks",
        "node");
  MPI_Group_free(&group);
  MPI_Group_free(&node);
  for (int& number : numbers)
    if (number == MPI_UNDEFINED) number = -1;
  return numbers;
}

void wake_peer(CommRecord& comm, int peer) {
  if (!have_bells() || peer < 0) return;
  if (comm.numbers_on_node.empty()) comm.numbers_on_node = numbers_on_node(comm.mpi);
  int const number = comm.numbers_on_node[static_cast<std::size_t>(peer)];
  if (number >= 0) ring_bells({&number, 1});
}

std::byte* node_memory_of(std::int64_t node_rank) { return the_memory.parts[static_cast<std::size_t>(node_rank)]; }
std::size_t own_node_memory_bytes() { return the_memory.bytes; }
std::byte* own_node_memory() { return node_memory_of(the_memory.place.rank); }

std::int64_t allocate_region(std::size_t bytes) {
  if (!node_memory_is_open()) return 0;
  reclaim();
  bytes = whole_pages(bytes);
  for (auto& piece : the_memory.free) {
    if (piece.end - piece.begin < bytes) continue;
    auto const begin = piece.begin;
    if (!make_present(own_node_memory() + begin, bytes)) {
      the_memory.error = "no memory is left in /dev/shm";
      return 0;
    }
    piece.begin += bytes;
    the_memory.error.clear();
    return static_cast<std::int64_t>(begin);
  }
  the_memory.error =
      "what was reserved at start is used up: more groups of ranks than were told of (comm::open_node_memory)";
  return 0;
}

void free_region(std::int64_t offset, std::size_t bytes) {
  auto const begin = static_cast<std::size_t>(offset);
  the_memory.free.push_back({begin, begin + whole_pages(bytes)});
}

void retire_region(std::int64_t offset, std::size_t bytes, std::atomic<std::uint32_t> const* users,
                   std::uint32_t expected) {
  auto const begin = static_cast<std::size_t>(offset);
  the_memory.retired.push_back({begin, begin + whole_pages(bytes), users, expected});
}

}  // namespace detail

SharedBuffer::SharedBuffer(std::size_t bytes) : bytes_(bytes) {
  // At most half of the free space is taken, counting that of the other ranks of the node, which take theirs at the
  // same time: MPI and other programs need room there too, and take it without asking.
  struct statvfs files {};
  auto const ranks = static_cast<std::size_t>(std::max(1, node_share().ranks));
  if (bytes == 0 || statvfs("/dev/shm", &files) != 0 || files.f_bavail * files.f_frsize / 2 / ranks < bytes) return;
  offset_ = detail::allocate_region(bytes);
}

SharedBuffer::SharedBuffer(SharedBuffer&& other) noexcept
    : offset_(std::exchange(other.offset_, 0)), bytes_(other.bytes_) {}

SharedBuffer& SharedBuffer::operator=(SharedBuffer&& other) noexcept {
  std::swap(offset_, other.offset_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedBuffer::~SharedBuffer() {
  if (offset_ != 0 && detail::node_memory_is_open()) detail::free_region(offset_, bytes_);
}

void* SharedBuffer::data() const { return offset_ == 0 ? nullptr : detail::own_node_memory() + offset_; }

void open_node_memory(std::size_t buffer_bytes, int groups) {
  using namespace detail;
  auto& memory = the_memory;
  if (memory.tried) return;
  memory.tried = true;
  memory.error.clear();
  int world_rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  watched_barrier(MPI_COMM_WORLD, "world", "open node memory");
  check(blocking(
            "MPI_Comm_split_type", "world",
            [&] { return MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &memory.comm); }),
        "MPI_Comm_split_type", "world");
  MPI_Comm_set_errhandler(memory.comm, MPI_ERRORS_RETURN);
  int rank = 0;
  MPI_Comm_rank(memory.comm, &rank);
  std::int64_t first = world_rank;
  check(blocking("MPI_Bcast", "node", [&] { return MPI_Bcast(&first, 1, MPI_INT64_T, 0, memory.comm); }), "MPI_Bcast",
        "node");
  memory.place = {first, rank};
  // This is address space only; pages appear when a region is allocated.
  auto const region = whole_pages(SharedEngine::region_bytes({}));
  memory.bytes = page + static_cast<std::size_t>(groups + spare_groups) * region + whole_pages(buffer_bytes);
  open_window(memory);
  std::int32_t good = 0;
  if (!memory.parts.empty()) {
    if (make_present(memory.parts[static_cast<std::size_t>(rank)], page)) good = 1;
    memory.free.push_back({page, memory.bytes});
  }
  // No rank may wake another before every flag exists; and either all ranks have flags or none.
  agree(good, memory.comm);
  if (good == 0) {
    memory.parts.clear();
    if (memory.error.empty()) memory.error = "no memory is left in /dev/shm";
    return;
  }
  open_bells(memory.parts, rank);
}

void set_ranks_per_node(int ranks) {
  P3D_REQUIRE(ranks >= 0, "a number of ranks is not negative");
  detail::ranks_per_node = ranks;
}

}  // namespace p3d::comm
