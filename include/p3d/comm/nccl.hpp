// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives on GPU memory by NCCL, or by RCCL through the same functions (CMake: P3D_NCCL). A communicator that was
// prepared with AllReduceSettings::nccl has them for buffers in Memory::device; host memory goes as without.
//
// Order. Each communicator has a stream of its own. A collective comes after all that the caller's stream (Place) had
// been given when it was started, by an event. It is over, for Request::test() and wait(), when an event after it has
// been reached; what the caller launches then comes after it (Place::stream_waits: when it is launched, and the stream
// waits). Nothing fences the device, so kernels that were launched in between run meanwhile. All collectives of a
// process are launched in the order in which they were started, whatever their communicators. No two ranks may start
// theirs in orders that form a circle: ranks that run the same program do not.
//
// Sums. With AllReduceSettings::fixed_order floating-point numbers are added by DeviceSums in the order of ranks: the
// bits of p3d's ring in host memory. Without, the order is the library's affair: its version, the algorithm and
// protocol that it chooses by size and topology (NCCL_ALGO and NCCL_PROTO fix the choice), and the layout; 16-bit
// numbers are then rounded step by step, up to p-1 times.
//
// Cost, in bytes that one of p ranks sends, n being the bytes of the buffer: all-reduce 2 (p-1)/p n (rings),
// reduce-scatter (p-1)/p n, all-gather p-1 times the own share, a broadcast n in all but one rank; an exchange its
// messages. One launch each; a sum in a fixed order
// has one for each segment of its workspace, and one to gather. Shares of different lengths go as one reduction to, or
// broadcast from, each owner of a share, grouped into one launch: up to p-1 times n/p for each rank as well, but as p
// operations. A communicator takes some MB of GPU memory, by NCCL's buffers (NCCL_BUFFSIZE).
//
// Errors. What NCCL reports, at once or later, is a base::Error with the call, the rank, the communicator and NCCL's
// text, after its abort. A wait that outlasts wait_policy().timeout_s ends all ranks as wait.hpp says, with all
// communicators aborted first, so that no kernel of NCCL stays on a GPU.

#include <p3d/base/memory_sizes.hpp>
#include <p3d/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace p3d::comm {

/// Additions on a device, for sums in a fixed order. Room comm has no device code, so another room implements this.
class DeviceSums {
public:
  /// One addition: inout[i] becomes ((x_0[i] op x_1[i]) op x_2[i]) op ..., where x_r is the summand of rank r. For r =
  /// `rank` the summand is inout itself; the others lie in `others`, `stride` bytes apart, in the order of ranks.
  /// 16-bit numbers are added in float and rounded once.
  struct Terms {
    std::byte* inout;
    std::byte const* others;
    std::int64_t stride;  ///< bytes from one summand in `others` to the next
    int rank, ranks;
    std::int64_t count;  ///< elements
    ElementType type;
    Reduction op;
    void* stream;  ///< the vendor's own stream, on which the addition is launched
  };

  DeviceSums() = default;
  DeviceSums(DeviceSums const&) = delete;
  DeviceSums& operator=(DeviceSums const&) = delete;
  virtual ~DeviceSums();
  /// Bytes of GPU memory that each communicator takes for arriving summands.
  virtual std::int64_t workspace() const { return base::fixed_order_workspace; }
  /// Allocates GPU memory.
  virtual std::shared_ptr<std::byte> allocate(std::int64_t bytes) = 0;
  /// Launches an addition on its stream and returns.
  virtual void add(Terms const& terms) = 0;
  /// Tells that `stream`, which earlier terms named, is about to be destroyed.
  virtual void forget(void* stream) = 0;
};
/// Sets the additions for communicators that are prepared from here on (AllReduceSettings::fixed_order with nccl).
void set_device_sums(std::shared_ptr<DeviceSums> sums);
bool has_device_sums();

/// Waits for the collectives that a stream waits for (Place::stream_waits), for at most wait_policy().timeout_s. Call
/// it before the host waits for that stream, as nothing else limits that wait.
void settle();

/// True when this build has NCCL or RCCL.
bool has_nccl();
/// The version, "NCCL 2.27.3"; "" in a build without.
std::string nccl_version();
/// True when every rank has a GPU of its own, as NCCL needs. Collective; needs has_nccl().
bool one_gpu_each(Communicator& world);

}  // namespace p3d::comm
