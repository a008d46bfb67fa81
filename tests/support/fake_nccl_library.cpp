// SPDX-License-Identifier: Apache-2.0
// See fake_nccl_library.hpp. All ranks share one block of memory: of each communicator counters, which only grow, and
// buffers, through which data goes in pieces; of each rank what it waits for, as counters and the values that they must
// reach. That some rank waits for a counter that only a rank can move which itself waits, and so on round a circle, is
// found exactly: while a rank waits it moves no counter.
#include "fake_nccl_library.hpp"
#include "fake_nccl_shared.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace fake_nccl;
constexpr int exit_code = 86;
using Clock = std::chrono::steady_clock;

[[noreturn]] void stop_all(std::string const& text) {
  std::fprintf(stderr, "fake NCCL: %s\n", text.c_str());
  std::fflush(stderr);
  _exit(exit_code);
}

struct Call {
  enum Kind { all_reduce, reduce, reduce_scatter, all_gather, broadcast, send, receive } kind;
  void const* in;
  void* out;
  std::size_t count;
  ncclDataType_t type;
  int op, peer;  ///< the peer or the root
};
constexpr char const* names[] = {"all-reduce", "reduce",  "reduce-scatter", "all-gather",
                                 "broadcast",  "send to", "receive from"};
bool is_message(Call const& c) { return c.kind >= Call::send; }

}  // namespace

struct Launch;
struct cudaEvent {
  std::int64_t recorded = 0, reached = 0;
};
struct cudaStream {
  struct Item {
    std::function<bool()> run{};  ///< false: not yet
    Launch* launch = nullptr;
  };
  std::deque<Item> items;
};

struct Launch {
  ncclComm_t comm;
  std::vector<Call> calls;
  cudaStream_t stream;
  Clock::time_point when;
};

struct ncclComm {
  SharedComm* shared;
  int rank, size, number, made;
  std::vector<Call> group{};
  std::int64_t collectives = 0, steps = 0;
  std::int64_t sent[most_ranks] = {}, received[most_ranks] = {};  ///< messages
  std::int64_t pieces_out[most_ranks] = {}, pieces_in[most_ranks] = {};
  cudaStream_t stream = nullptr;
  bool joining = true;
  int coming = 0;  ///< launches that are not on their stream
};

namespace {

struct Device {
  std::mutex mutex;
  Shared* shared = nullptr;
  std::string name;
  int rank = 0, size = 1, made = 0;
  int delay[most_comms] = {};
  std::vector<cudaStream_t> streams;
  std::deque<std::unique_ptr<Launch>> coming;  ///< onto their streams
  std::deque<std::unique_ptr<Launch>> order;   ///< on them
  std::atomic<bool> stop = false;
  std::thread thread;
};
Device& device() {
  static auto& it = *new Device;
  return it;
}
thread_local int depth = 0;
thread_local ncclComm_t grouped = nullptr;

// Waiting.

bool open(Need const& need) { return need.counter->load() < need.value; }

/// The ranks that wait for each other, from this one on; empty where there is no circle. Under the shared lock.
std::vector<int> circle(int from) {
  auto& shared = *device().shared;
  std::vector<int> path;
  std::vector<bool> seen(most_ranks);
  std::function<bool(int)> const visit = [&](int rank) {
    if (rank == from && !path.empty()) return true;
    if (seen[static_cast<std::size_t>(rank)]) return false;
    seen[static_cast<std::size_t>(rank)] = true;
    path.push_back(rank);
    auto const& r = shared.rank[rank];
    for (int i = 0; i < r.needs; ++i)
      if (open(r.need[i]) && visit(r.need[i].rank)) return true;
    path.pop_back();
    return false;
  };
  return visit(from) ? path : std::vector<int>{};
}

struct Locked {
  Locked() { pthread_mutex_lock(&device().shared->mutex); }
  ~Locked() { pthread_mutex_unlock(&device().shared->mutex); }
};

void progress(cudaStream_t busy);

/// The same in all processes: offsets would do, but all map the memory at one address (fake_nccl_open).
void wait(std::vector<Need> const& needs, std::string const& what, cudaStream_t busy) {
  auto& d = device();
  auto& mine = d.shared->rank[d.rank];
  auto const over = [&] { return std::none_of(needs.begin(), needs.end(), open); };
  for (int spins = 0; spins < 50; ++spins) {
    if (over()) return;
    sched_yield();
  }
  {
    Locked const locked;
    mine.needs = static_cast<int>(needs.size());
    std::copy(needs.begin(), needs.end(), mine.need);
    std::snprintf(mine.what, sizeof(mine.what), "%s", what.c_str());
    if (auto const ranks = circle(d.rank); !ranks.empty()) {
      std::string text = "deadlock: launches in different orders.";
      for (std::size_t i = 0; i < ranks.size(); ++i)
        text += "\n  rank " + std::to_string(ranks[i]) + " is at " + d.shared->rank[ranks[i]].what +
                " and waits for rank " + std::to_string(ranks[(i + 1) % ranks.size()]);
      stop_all(text);
    }
  }
  while (!over() && !d.stop) {
    progress(busy);
    usleep(50);
  }
  Locked const locked;
  mine.needs = 0;
}

// Kernels.

struct Running {
  ncclComm& c;
  cudaStream_t stream;
  std::string text;

  SharedComm& s() const { return *c.shared; }
  /// All ranks of the communicator have come so far.
  void meet(Counter* counters, std::int64_t value) const {
    counters[c.rank] = value;
    std::vector<Need> needs;
    for (int r = 0; r < c.size; ++r)
      if (r != c.rank) needs.push_back({&counters[r], value, s().member[r]});
    wait(needs, text, stream);
  }
  void step() const { meet(s().passed, ++c.steps); }

  void collective(Call const& call) const {
    auto const number = ++c.collectives;
    std::uint64_t const sign = (static_cast<std::uint64_t>(call.count) << 16) ^
                               (static_cast<std::uint64_t>(call.kind) << 12) ^
                               (static_cast<std::uint64_t>(call.type) << 8) ^ static_cast<std::uint64_t>(call.peer + 1);
    s().call[c.rank] = sign;
    meet(s().arrived, number);
    for (int r = 0; r < c.size; ++r)
      if (s().call[r] != sign)
        stop_all("wrong order: rank " + std::to_string(device().rank) + " is at " + text + ", rank " +
                 std::to_string(s().member[r]) + " at another one of the same communicator");
    step();
    auto const each = size_of(call.type), chunk = buffer_bytes / each;
    auto const* const in = static_cast<char const*>(call.in);
    auto* const out = static_cast<char*>(call.out);
    int const parts = call.kind == Call::reduce_scatter ? c.size : 1;
    for (int part = 0; part < parts; ++part) {
      for (std::size_t begin = 0; begin < call.count; begin += chunk) {
        auto const n = std::min(chunk, call.count - begin);
        auto const at = (static_cast<std::size_t>(part) * call.count + begin) * each;
        std::memcpy(s().buffer[c.rank], in + at, n * each);
        step();
        auto const sum = [&](char* to) {
          std::memmove(to, s().buffer[0], n * each);
          for (int r = 1; r < c.size; ++r) combine(call.type, call.op, to, s().buffer[r], n);
        };
        switch (call.kind) {
          case Call::all_reduce: sum(out + begin * each); break;
          case Call::reduce:
            if (call.peer == c.rank) sum(out + begin * each);
            break;
          case Call::reduce_scatter:
            if (part == c.rank) sum(out + begin * each);
            break;
          case Call::broadcast: std::memcpy(out + begin * each, s().buffer[call.peer], n * each); break;
          default:
            for (int r = 0; r < c.size; ++r)
              std::memcpy(out + (static_cast<std::size_t>(r) * call.count + begin) * each, s().buffer[r], n * each);
        }
        step();
      }
    }
  }

  /// All at once: each waits for its other end, then pieces go.
  void messages(std::vector<Call> const& calls) const {
    int const me = c.rank;
    std::vector<Need> needs;
    for (auto const& call : calls) {
      int const peer = call.peer;
      if (call.kind == Call::send)
        needs.push_back({&s().receives[me][peer], s().sends[me][peer] = ++c.sent[peer], s().member[peer]});
      else
        needs.push_back({&s().sends[peer][me], s().receives[peer][me] = ++c.received[peer], s().member[peer]});
    }
    wait(needs, text, stream);
    std::vector<std::size_t> done(calls.size());
    for (bool more = true; more && !device().stop;) {
      more = false;
      bool moved = false;
      for (std::size_t i = 0; i < calls.size(); ++i) {
        auto const& call = calls[i];
        auto const bytes = call.count * size_of(call.type);
        if (done[i] == bytes) continue;
        more = true;
        int const peer = call.peer;
        auto const n = std::min<std::size_t>(buffer_bytes, bytes - done[i]);
        if (call.kind == Call::send) {
          if (s().read[me][peer] < c.pieces_out[peer]) continue;  // the mailbox is full
          std::memcpy(s().mail[me][peer], static_cast<char const*>(call.in) + done[i], n);
          s().written[me][peer] = ++c.pieces_out[peer];
        } else {
          if (s().written[peer][me] <= c.pieces_in[peer]) continue;
          std::memcpy(static_cast<char*>(call.out) + done[i], s().mail[peer][me], n);
          s().read[peer][me] = ++c.pieces_in[peer];
        }
        done[i] += n;
        moved = true;
      }
      if (more && !moved) {
        progress(stream);
        usleep(20);
      }
    }
  }
};

void run(Launch const& launch) {
  auto& c = *launch.comm;
  auto const text = [&](Call const& call) {
    std::string out =
        std::string(names[call.kind]) + (is_message(call) ? " " + std::to_string(c.shared->member[call.peer]) : "");
    out += " of " + std::to_string(call.count) + " elements, communicator of ranks";
    for (int r = 0; r < c.size; ++r) out += " " + std::to_string(c.shared->member[r]);
    return out;
  };
  std::vector<Call> messages;
  for (auto const& call : launch.calls) {
    if (is_message(call))
      messages.push_back(call);
    else
      Running{c, launch.stream, text(call)}.collective(call);
  }
  if (!messages.empty()) Running{c, launch.stream, text(messages.front())}.messages(messages);
}

/// What is on the streams but kernels of NCCL; `busy` runs one.
void progress(cudaStream_t busy) {
  auto& d = device();
  std::lock_guard const lock(d.mutex);
  while (!d.coming.empty() && d.coming.front()->when <= Clock::now()) {
    auto launch = std::move(d.coming.front());
    d.coming.pop_front();
    launch->stream->items.push_back({{}, launch.get()});
    --launch->comm->coming;
    d.order.push_back(std::move(launch));
  }
  for (auto* stream : d.streams) {
    while (stream != busy && !stream->items.empty() && stream->items.front().run && stream->items.front().run())
      stream->items.pop_front();
  }
}

void work() {
  auto& d = device();
  while (!d.stop) {
    progress(nullptr);
    Launch* first = nullptr;
    {
      std::lock_guard const lock(d.mutex);
      if (!d.order.empty()) {
        auto const& items = d.order.front()->stream->items;
        if (!items.empty() && items.front().launch == d.order.front().get()) first = d.order.front().get();
      }
    }
    if (first == nullptr) {
      usleep(20);
      continue;
    }
    run(*first);
    if (d.stop) break;
    std::lock_guard const lock(d.mutex);
    first->stream->items.pop_front();
    d.order.pop_front();
  }
}

ncclResult_t add(Call call, ncclComm_t comm, cudaStream_t stream) {
  if (depth == 0) stop_all("a call outside a group");
  if (grouped != nullptr && grouped != comm) stop_all("two communicators in one group");
  grouped = comm;
  if (comm->coming > 0) stop_all("a call follows one that is in progress");
  comm->stream = stream;
  comm->group.push_back(call);
  return ncclSuccess;
}

}  // namespace

extern "C" {

void fake_nccl_open(char const* name, int rank, int size) {
  auto& d = device();
  if (size > most_ranks) stop_all("too many ranks");
  int const file = shm_open(name, rank == 0 ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
  if (file < 0 || (rank == 0 && ftruncate(file, sizeof(Shared)) != 0)) stop_all("no shared memory");
  // One address for all, since counters are named by their addresses.
  auto* const address = reinterpret_cast<void*>(std::uintptr_t{0x5a0000000000});
  void* const memory = mmap(address, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
  close(file);
  if (memory != address) stop_all("the address of the shared memory is taken");
  d.shared = static_cast<Shared*>(memory);
  if (rank == 0) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&d.shared->mutex, &attributes);
    d.shared->ready = 1;
  }
  d.name = name;
  d.rank = rank;
  d.size = size;
  d.stop = false;
  d.thread = std::thread(work);
}

void fake_nccl_all_opened() {
  if (device().rank == 0) shm_unlink(device().name.c_str());
}

void fake_nccl_close() {
  auto& d = device();
  d.stop = true;
  d.thread.join();
  munmap(d.shared, sizeof(Shared));
  d.shared = nullptr;
  std::fill(std::begin(d.delay), std::end(d.delay), 0);
}

void fake_nccl_delay(int communicator, int microseconds) {
  for (int i = 0; i < most_comms; ++i)
    if (communicator < 0 || i == communicator) device().delay[i] = microseconds;
}

int fake_nccl_made() { return device().made; }

void fake_nccl_run_on(cudaStream_t stream, void (*function)(void*), void* argument) {
  std::lock_guard const lock(device().mutex);
  stream->items.push_back({[=] {
    function(argument);
    return true;
  }});
}

char const* cudaGetErrorString(cudaError_t) { return "an error of the fake device"; }
cudaError_t cudaGetDevice(int* number) {
  *number = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", device().rank);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* most) {
  *least = 0;
  *most = -1;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  std::lock_guard const lock(device().mutex);
  *stream = device().streams.emplace_back(new cudaStream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::lock_guard const lock(device().mutex);
  std::erase(device().streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new cudaEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
// Kernels of the host, which are on no stream, are over.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  std::lock_guard const lock(device().mutex);
  auto const number = ++event->recorded;
  if (stream == nullptr) {
    event->reached = number;
  } else {
    stream->items.push_back({[=] {
      event->reached = std::max(event->reached, number);
      return true;
    }});
  }
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::lock_guard const lock(device().mutex);
  auto const number = event->recorded;
  if (stream != nullptr) stream->items.push_back({[=] { return event->reached >= number; }});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  std::lock_guard const lock(device().mutex);
  return event->reached >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  Locked const locked;
  auto& shared = *device().shared;
  for (int i = 0; i < most_comms; ++i) {
    if (shared.comm[i].used != 0) continue;
    std::memset(static_cast<void*>(&shared.comm[i]), 0, sizeof(SharedComm));
    shared.comm[i].used = 1;
    std::memset(id->internal, 0, sizeof(id->internal));
    std::memcpy(id->internal, &i, sizeof(i));
    return ncclSuccess;
  }
  stop_all("too many communicators");
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) stop_all("a communicator whose calls block");
  auto& d = device();
  int number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  auto& shared = d.shared->comm[number];
  shared.size = size;
  shared.member[rank] = d.rank;
  *comm = new ncclComm{&shared, rank, size, number, d.made++};
  shared.joined += 1;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  std::lock_guard const lock(device().mutex);
  if (comm->joining) comm->joining = comm->shared->joined < comm->size;
  *state = comm->joining || comm->coming > 0 ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  // As NCCL does, it waits for the communicator's work; for at most half a minute, as ranks may be gone.
  auto& d = device();
  auto const under_way = [&] {
    std::lock_guard const lock(d.mutex);
    auto const is_its = [&](auto const& launch) { return launch->comm == comm; };
    return std::any_of(d.coming.begin(), d.coming.end(), is_its) || std::any_of(d.order.begin(), d.order.end(), is_its);
  };
  for (auto const end = Clock::now() + std::chrono::seconds(30); under_way() && Clock::now() < end;) usleep(20);
  if (++comm->shared->left == comm->size) comm->shared->used = 0;
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
char const* ncclGetErrorString(ncclResult_t) { return "an error of the fake NCCL"; }
char const* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  auto& d = device();
  if (--depth > 0 || grouped == nullptr) return ncclSuccess;
  auto* const comm = std::exchange(grouped, nullptr);
  std::lock_guard const lock(d.mutex);
  auto const when = Clock::now() + std::chrono::microseconds(d.delay[std::min(comm->made, most_comms - 1)]);
  auto launch = std::make_unique<Launch>(Launch{comm, std::exchange(comm->group, {}), comm->stream, when});
  ++comm->coming;
  auto const after = std::find_if(d.coming.begin(), d.coming.end(), [&](auto const& l) { return l->when > when; });
  d.coming.insert(after, std::move(launch));
  return ncclInProgress;
}
ncclResult_t ncclAllReduce(void const* in, void* out, std::size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return add({Call::all_reduce, in, out, n, type, op, 0}, comm, stream);
}
ncclResult_t ncclReduce(void const* in, void* out, std::size_t n, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return add({Call::reduce, in, out, n, type, op, root}, comm, stream);
}
ncclResult_t ncclReduceScatter(void const* in, void* out, std::size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return add({Call::reduce_scatter, in, out, n, type, op, 0}, comm, stream);
}
ncclResult_t ncclAllGather(void const* in, void* out, std::size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add({Call::all_gather, in, out, n, type, 0, 0}, comm, stream);
}
ncclResult_t ncclBroadcast(void const* in, void* out, std::size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return add({Call::broadcast, in, out, n, type, 0, root}, comm, stream);
}
ncclResult_t ncclSend(void const* in, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({Call::send, in, nullptr, n, type, 0, peer}, comm, stream);
}
ncclResult_t ncclRecv(void* out, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add({Call::receive, nullptr, out, n, type, 0, peer}, comm, stream);
}
}
