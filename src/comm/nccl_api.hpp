// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the engine for GPUs needs of NCCL (or RCCL) and of the device's runtime: one object for the process. The one in
// nccl_library.cpp calls the libraries; a test gives another one, which does the same in host memory.

#include <p3d/comm/communicator.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace p3d::comm::detail {

class NcclApi {
public:
  using Id = std::array<std::byte, 128>;
  using Group = void*;   ///< a communicator of the library
  using Stream = void*;  ///< the vendor's own, as device::native_stream() gives it
  using Event = void*;

  enum class State { done, open, failed };
  struct Result {
    State state = State::done;
    std::string text{};  ///< of a failure: what the library says
  };

  NcclApi() = default;
  NcclApi(NcclApi const&) = delete;
  NcclApi& operator=(NcclApi const&) = delete;
  virtual ~NcclApi();

  virtual std::string version() const = 0;  ///< "NCCL 2.27.3"
  virtual std::string gpu() const = 0;      ///< this process' current one: its address on the PCI bus of this host
  /// Whether this GPU may stop for ever where collectives of two communicators are on it at once. RCCL on AMD's gfx90a
  /// does (github.com/ROCm/rccl, issue 2191).
  virtual bool one_at_a_time() const { return false; }

  virtual Result new_id(Id& id) = 0;
  /// Never blocks for long: while it is open, state() says how it goes.
  virtual Result init(Group& group, int size, Id const& id, int rank) = 0;
  /// How the last call goes, and errors that come later. Open: the last call is still at work, no other may follow.
  virtual Result state(Group group) = 0;
  virtual Result finalize(Group group) = 0;  ///< may be open
  virtual Result destroy(Group group) = 0;
  virtual Result abort(Group group) = 0;

  // All between begin() and end(), which may be open; then the calls are not yet on the stream.
  virtual Result begin() = 0;
  virtual Result end(Group group) = 0;
  virtual Result all_reduce(void* inout, std::int64_t count, ElementType type, Reduction op, Group, Stream) = 0;
  virtual Result reduce(void* inout, std::int64_t count, ElementType type, Reduction op, int root, Group, Stream) = 0;
  virtual Result reduce_scatter(void const* in, void* out, std::int64_t count_each, ElementType type, Reduction op,
                                Group, Stream) = 0;
  virtual Result all_gather(void const* in, void* out, std::int64_t count_each, ElementType type, Group, Stream) = 0;
  virtual Result broadcast(void* inout, std::int64_t count, ElementType type, int root, Group, Stream) = 0;
  virtual Result send(void const* buffer, std::int64_t count, ElementType type, int peer, Group, Stream) = 0;
  virtual Result recv(void* buffer, std::int64_t count, ElementType type, int peer, Group, Stream) = 0;

  virtual Result new_stream(Stream& stream) = 0;
  virtual void free_stream(Stream stream) = 0;  ///< does not wait for what is on it
  virtual Result new_event(Event& event) = 0;
  virtual void free_event(Event event) = 0;
  virtual Result record(Event event, Stream stream) = 0;
  virtual Result wait(Stream stream, Event event) = 0;  ///< the stream waits, nobody else
  virtual Result query(Event event) = 0;                ///< open: not reached yet
};

/// The library's; null in a build without NCCL. (nccl_library.cpp, no_nccl.cpp)
std::shared_ptr<NcclApi> nccl_library();

/// What engines made from here on use: the library's, unless a test has given another one.
std::shared_ptr<NcclApi> nccl_api();
void set_nccl_api(std::shared_ptr<NcclApi> api);

}  // namespace p3d::comm::detail
