// SPDX-License-Identifier: Apache-2.0
#pragma once
// The functions of NCCL (or RCCL) and of the device's runtime that the engine for GPUs needs, as an interface. The
// process has one object. The one in nccl_library.cpp calls the libraries; tests give another one, which works in host
// memory.

#include <p3d/comm/communicator.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace p3d::comm::detail {

/// All calls return at once. A call that is not over is `open`; state() tells when it is.
class NcclApi {
public:
  using Id = std::array<std::byte, 128>;  ///< the unique id of the library
  using Group = void*;                    ///< a communicator of the library
  using Stream = void*;                   ///< the vendor's own, as device::native_stream() gives it
  using Event = void*;                    ///< an event of the device's runtime

  enum class State { done, open, failed };
  struct Result {
    State state = State::done;
    std::string text{};  ///< the library's text about a failed call
  };

  NcclApi() = default;
  NcclApi(NcclApi const&) = delete;
  NcclApi& operator=(NcclApi const&) = delete;
  virtual ~NcclApi();

  virtual std::string version() const = 0;  ///< "NCCL 2.27.3"
  virtual std::string gpu() const = 0;  ///< the current GPU of this process: its address on the PCI bus of this host
  /// True when this GPU may stop for ever once collectives of two communicators run on it at the same time. RCCL on
  /// AMD's gfx90a does (github.com/ROCm/rccl, issue 2191).
  virtual bool one_at_a_time() const { return false; }

  /// Makes the id of a new communicator, on one rank.
  virtual Result new_id(Id& id) = 0;
  /// Begins to make a communicator. Never blocks for long: while it is open, state() tells how it goes.
  virtual Result init(Group& group, int size, Id const& id, int rank) = 0;
  /// The state of the last call, and errors that come later. Open: the last call is still at work, and no other may
  /// follow.
  virtual Result state(Group group) = 0;
  virtual Result finalize(Group group) = 0;  ///< may be open; then state() tells when it is over
  virtual Result destroy(Group group) = 0;
  virtual Result abort(Group group) = 0;

  // Calls of collectives stand between begin() and end(). end() may be open; then the calls are not on the stream yet.
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
  virtual void free_stream(Stream stream) = 0;  ///< does not wait for the work on it
  virtual Result new_event(Event& event) = 0;
  virtual void free_event(Event event) = 0;
  virtual Result record(Event event, Stream stream) = 0;
  virtual Result wait(Stream stream, Event event) = 0;  ///< makes the stream wait; the host goes on
  virtual Result query(Event event) = 0;                ///< open: the event has not been reached yet
};

/// The object that calls the libraries; null in a build without NCCL. (nccl_library.cpp, no_nccl.cpp)
std::shared_ptr<NcclApi> nccl_library();

/// The object for engines that are made from here on: the libraries', unless a test has set another one.
std::shared_ptr<NcclApi> nccl_api();
void set_nccl_api(std::shared_ptr<NcclApi> api);

}  // namespace p3d::comm::detail
