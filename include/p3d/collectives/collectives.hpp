// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives and point-to-point messages on Views. They take a communicator and know no axis names. Each starts a
// non-blocking operation; the short forms wait at once. The operation comes after the caller's kernels on `exec`, by an
// event: the host goes on launching, and MPI begins when the event is reached (comm::Place::ready); NCCL
// (comm/nccl.hpp) waits for it on the GPU. Name T explicitly. Instantiated for float, double, std::int32_t,
// std::int64_t, std::uint64_t, device::bfloat16 and device::float16; all-gathers for std::byte too. Sums of 16-bit
// numbers are computed in float, and only by p3d's own algorithms (comm/all_reduce.hpp).
//
// Memory that neither the host nor MPI can reach goes through a host copy (pinned, on GPUs) which the request keeps
// alive. After wait() or a true test(), kernels that `exec` is given find the result in the view. Until then the view's
// own memory must stay valid, and nothing but earlier kernels on `exec` may touch it, except to read the share that the
// rank brings to an all-gather.
//
// Example:  auto request = start_all_reduce<float>(exec, comm, gradients);  ... more kernels ...  request.wait();

#include <p3d/comm/communicator.hpp>
#include <p3d/device/float16.hpp>
#include <p3d/device/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace p3d::collectives {

using comm::Communicator;
using comm::Reduction;
using comm::Request;
using comm::SharePieces;
using device::ExecSpace;
using device::View1;
using device::View2;

/// The element type of room comm that stands for T.
template <class T>
comm::ElementType type_of();
template <>
comm::ElementType type_of<float>();
template <>
comm::ElementType type_of<double>();
template <>
comm::ElementType type_of<std::int32_t>();
template <>
comm::ElementType type_of<std::int64_t>();
template <>
comm::ElementType type_of<std::uint64_t>();
template <>
comm::ElementType type_of<device::bfloat16>();
template <>
comm::ElementType type_of<device::float16>();
template <>
comm::ElementType type_of<std::byte>();

/// Makes host copies even of views that the host can reach, so that tests take the path of device memory. Default: off.
void set_always_stage(bool on);
/// Allows that MPI is given the address of memory that the host cannot reach (comm.gpu_aware), for messages and
/// exchanges, and with `collectives` for its collectives too. Default: for neither.
void set_gpu_aware(bool messages, bool collectives = false);
/// True when messages go through host copies.
bool stages();
/// True when views lie in memory that the host reaches; NCCL is not used then.
bool views_are_on_host();
/// Treats views as device memory although the host reaches them, so that tests take NCCL's path. Default: off.
void set_views_are_device(bool on);

/// Starts an all-reduce: inout on every rank becomes the reduction over all ranks. The view must be contiguous. A
/// communicator of size 1 costs nothing. Parts of a view that are reduced one after the other give the bits of the
/// whole, where `whole` tells its length.
template <class T>
Request start_all_reduce(ExecSpace const& exec, Communicator& comm, View1<T> inout, Reduction op = Reduction::sum,
                         std::int64_t whole = 0);
/// An all-reduce that waits.
template <class T>
void all_reduce(ExecSpace const& exec, Communicator& comm, View1<T> inout, Reduction op = Reduction::sum);

/// Starts a reduce-scatter. Rank r owns elements bounds[r] up to bounds[r + 1] of inout, perhaps none (size() + 1
/// ascending offsets, the same on all ranks). The elements that a rank owns become the reduction over all ranks, with
/// the bits of an all-reduce from bounds.front() to bounds.back(); its other elements in that range are unspecified
/// afterwards.
template <class T>
Request start_reduce_scatter(ExecSpace const& exec, Communicator& comm, View1<T> inout,
                             std::span<std::int64_t const> bounds, Reduction op = Reduction::sum);
/// Starts an all-gather, the opposite of a reduce-scatter: each rank brings the elements that it owns and gets those of
/// all ranks.
template <class T>
Request start_all_gather(ExecSpace const& exec, Communicator& comm, View1<T> inout,
                         std::span<std::int64_t const> bounds);
/// Starts one part of a reduce-scatter, of a piece of each rank's share. Parts of a view that are reduced one after the
/// other give the bits of the whole, where pieces.whole tells its length.
template <class T>
Request start_reduce_scatter(ExecSpace const& exec, Communicator& comm, View1<T> inout, SharePieces const& pieces,
                             Reduction op = Reduction::sum);
/// Starts one part of an all-gather.
template <class T>
Request start_all_gather(ExecSpace const& exec, Communicator& comm, View1<T> inout, SharePieces const& pieces);

/// An all-reduce of one number on the host, which waits.
double all_reduce(Communicator& comm, double value, Reduction op = Reduction::sum);
/// An all-reduce of one integer on the host, which waits.
std::int64_t all_reduce(Communicator& comm, std::int64_t value, Reduction op = Reduction::sum);

/// Starts a broadcast: every rank gets the root's elements.
template <class T>
Request start_broadcast(ExecSpace const& exec, Communicator& comm, View1<T> inout, int root);

/// Messages between many ranks at once: name them, then start them all (Communicator::exchange; by NCCL where the
/// communicator has it). Every rank of the communicator must start an exchange, even one without messages. An empty
/// matrix is no message. The matrices are contiguous and must stay valid until the request is done.
template <class T>
class Exchange {
public:
  Exchange(ExecSpace const& exec, Communicator& comm) : exec_(exec), comm_(&comm) {}
  void send(View2<T const> buffer, int peer);
  void recv(View2<T> buffer, int peer);
  Request start(int tag);

private:
  struct Message {
    View2<T> buffer;
    int peer;
  };
  ExecSpace exec_;
  Communicator* comm_;
  std::vector<Message> sends_, receives_;
};

/// A message of a contiguous matrix that has not started yet. Send and receive must agree on the number of elements.
template <class T>
Communicator::Message message_to(ExecSpace const& exec, View2<T const> buffer, int peer, int tag);
template <class T>
Communicator::Message message_from(ExecSpace const& exec, View2<T> buffer, int peer, int tag);
/// Starts to send a contiguous matrix by MPI. Send and receive must agree on the number of elements.
template <class T>
Request start_send(ExecSpace const& exec, Communicator& comm, View2<T const> buffer, int peer, int tag);
/// Starts to receive a contiguous matrix by MPI.
template <class T>
Request start_recv(ExecSpace const& exec, Communicator& comm, View2<T> buffer, int peer, int tag);

}  // namespace p3d::collectives
