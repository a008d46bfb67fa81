// SPDX-License-Identifier: Apache-2.0
// Collectives and messages on views: each call makes the buffer of its operation (staging.hpp), starts the operation of
// room comm in it and attaches the buffer to the request. Example: an all-reduce of a contiguous view [2, 3] is one of
// 6 elements.
#include <p3d/collectives/collectives.hpp>

#include <p3d/base/error.hpp>

#include <algorithm>
#include <utility>

#include "staging.hpp"

namespace p3d::collectives {

namespace {
// These flags say where MPI reads and writes. They hold for the whole process and are set before the first message.
bool stage_always = false;
bool mpi_reaches_views = false;
bool mpi_reduces_views = false;
bool views_are_device = false;
}  // namespace

void set_always_stage(bool on) { stage_always = on; }
void set_gpu_aware(bool messages, bool collectives) {
  mpi_reaches_views = messages;
  mpi_reduces_views = messages && collectives;
}
void set_views_are_device(bool on) { views_are_device = on; }
bool views_are_on_host() { return detail::host_reaches_views && !views_are_device; }
bool stages() { return stage_always || !(detail::host_reaches_views || mpi_reaches_views); }

// clang-format off
template <> comm::ElementType type_of<float>() { return comm::Type::float32; }
template <> comm::ElementType type_of<double>() { return comm::Type::float64; }
template <> comm::ElementType type_of<std::int32_t>() { return comm::Type::int32; }
template <> comm::ElementType type_of<std::int64_t>() { return comm::Type::int64; }
template <> comm::ElementType type_of<std::uint64_t>() { return comm::Type::uint64; }
template <> comm::ElementType type_of<device::bfloat16>() { return comm::Float16Type::bfloat16; }
template <> comm::ElementType type_of<device::float16>() { return comm::Float16Type::float16; }
template <> comm::ElementType type_of<std::byte>() { return comm::Type::byte; }
// clang-format on

namespace {
/// True when a collective goes through the host: where MPI may be given the views' memory for messages only, and for
/// sums of 16-bit numbers always, since MPI has none.
template <class T>
bool through_host(bool sums) {
  return !mpi_reduces_views || (sums && type_of<T>().float16().has_value());
}
}  // namespace

template <class T>
Request start_all_reduce(ExecSpace const& exec, Communicator& comm, View1<T> inout, Reduction op, std::int64_t whole) {
  detail::require_contiguous(inout);
  auto const n = static_cast<std::int64_t>(inout.extent(0));
  if (comm.size() == 1 || n == 0) return {};
  using Buffer = detail::Buffer<T>;
  Buffer const buffer(exec, detail::by_nccl(comm), inout.data(), n, Buffer::Use::both, through_host<T>(true));
  return buffer.attach(comm.all_reduce(buffer.data(), n, type_of<T>(), op, buffer.place(), whole));
}

template <class T>
void all_reduce(ExecSpace const& exec, Communicator& comm, View1<T> inout, Reduction op) {
  start_all_reduce<T>(exec, comm, inout, op).wait();
}

namespace {
/// The pieces that are whole shares.
SharePieces pieces_of(Communicator const& comm, std::span<std::int64_t const> bounds) {
  P3D_REQUIRE(bounds.size() == static_cast<std::size_t>(comm.size()) + 1, "every rank has one share of a view");
  return {{bounds.begin(), bounds.end() - 1}, {bounds.begin() + 1, bounds.end()}, 0};
}

/// The pieces of a view that a collective works on: those of all ranks, which stand one after the other in a host copy,
/// this rank's and those of the others.
struct Owned {
  std::vector<detail::Run> all, own, others;
  std::int64_t count = 0;  ///< elements of all
  /// The pieces at a buffer's data().
  SharePieces in_buffer(SharePieces pieces, bool is_copy) const {
    for (std::size_t r = 0; is_copy && r < all.size(); ++r) {
      pieces.begins[r] = all[r].copied_to;
      pieces.ends[r] = all[r].copied_to + all[r].size();
    }
    return pieces;
  }
};
/// Checks the pieces of a view and returns them.
template <class T>
Owned check_shares(Communicator& comm, View1<T> view, SharePieces const& pieces) {
  detail::require_contiguous(view);
  auto const n = static_cast<std::size_t>(comm.size());
  P3D_REQUIRE(pieces.begins.size() == n && pieces.ends.size() == n, "every rank has one share of a view");
  Owned out;
  std::int64_t last = 0;
  for (std::size_t r = 0; r < n; ++r) {
    auto const begin = pieces.begins[r], end = pieces.ends[r];
    P3D_REQUIRE(last <= begin && begin <= end && end <= static_cast<std::int64_t>(view.extent(0)),
                "shares follow each other inside a view");
    detail::Run const run{begin, end, out.count};
    out.all.push_back(run);
    (r == static_cast<std::size_t>(comm.rank()) ? out.own : out.others).push_back(run);
    out.count += run.size();
    last = end;
  }
  return out;
}
}  // namespace

template <class T>
Request start_reduce_scatter(ExecSpace const& exec, Communicator& comm, View1<T> inout, SharePieces const& pieces,
                             Reduction op) {
  auto const shares = check_shares(comm, inout, pieces);
  if (comm.size() == 1 || shares.count == 0) return {};
  detail::Buffer<T> const buffer(exec, detail::by_nccl(comm), inout.data(), shares.count, shares.all, shares.own,
                                 through_host<T>(true));
  return buffer.attach(
      comm.reduce_scatter(buffer.data(), shares.in_buffer(pieces, buffer.is_copy()), type_of<T>(), op, buffer.place()));
}

template <class T>
Request start_all_gather(ExecSpace const& exec, Communicator& comm, View1<T> inout, SharePieces const& pieces) {
  auto const shares = check_shares(comm, inout, pieces);
  if (comm.size() == 1 || shares.count == 0) return {};
  detail::Buffer<T> const buffer(exec, detail::by_nccl(comm), inout.data(), shares.count, shares.own, shares.others,
                                 through_host<T>(false));
  return buffer.attach(
      comm.all_gather(buffer.data(), shares.in_buffer(pieces, buffer.is_copy()), type_of<T>(), buffer.place()));
}

template <class T>
Request start_reduce_scatter(ExecSpace const& exec, Communicator& comm, View1<T> inout,
                             std::span<std::int64_t const> bounds, Reduction op) {
  return start_reduce_scatter<T>(exec, comm, inout, pieces_of(comm, bounds), op);
}

template <class T>
Request start_all_gather(ExecSpace const& exec, Communicator& comm, View1<T> inout,
                         std::span<std::int64_t const> bounds) {
  return start_all_gather<T>(exec, comm, inout, pieces_of(comm, bounds));
}

double all_reduce(Communicator& comm, double value, Reduction op) {
  comm.all_reduce(&value, 1, comm::Type::float64, op).wait();
  return value;
}

std::int64_t all_reduce(Communicator& comm, std::int64_t value, Reduction op) {
  comm.all_reduce(&value, 1, comm::Type::int64, op).wait();
  return value;
}

template <class T>
Request start_broadcast(ExecSpace const& exec, Communicator& comm, View1<T> inout, int root) {
  detail::require_contiguous(inout);
  auto const n = static_cast<std::int64_t>(inout.extent(0));
  if (comm.size() == 1 || n == 0) return {};
  using Buffer = detail::Buffer<T>;
  Buffer const buffer(exec, detail::by_nccl(comm), inout.data(), n,
                      comm.rank() == root ? Buffer::Use::read : Buffer::Use::write, through_host<T>(false));
  return buffer.attach(comm.broadcast(buffer.data(), n, type_of<T>(), root, buffer.place()));
}

namespace {
template <class T>
Communicator::Message message_of(ExecSpace const& exec, T* data, std::size_t size, bool sends, int peer, int tag) {
  using Buffer = detail::Buffer<T>;
  auto const n = static_cast<std::int64_t>(size);
  Buffer const buffer(exec, false, data, n, sends ? Buffer::Use::read : Buffer::Use::write);
  Communicator::Message out{sends, buffer.data(), n, type_of<T>(), peer, tag, buffer.place()};
  if (buffer.is_copy()) out.completions.push_back(buffer.completion());
  return out;
}
}  // namespace

template <class T>
Communicator::Message message_to(ExecSpace const& exec, View2<T const> matrix, int peer, int tag) {
  detail::require_contiguous(matrix);
  return message_of<T>(exec, const_cast<T*>(matrix.data()), matrix.size(), true, peer, tag);  // a send only reads it
}

template <class T>
Communicator::Message message_from(ExecSpace const& exec, View2<T> matrix, int peer, int tag) {
  detail::require_contiguous(matrix);
  return message_of<T>(exec, matrix.data(), matrix.size(), false, peer, tag);
}

template <class T>
Request start_send(ExecSpace const& exec, Communicator& comm, View2<T const> matrix, int peer, int tag) {
  return comm.start_message(message_to<T>(exec, matrix, peer, tag));
}

template <class T>
Request start_recv(ExecSpace const& exec, Communicator& comm, View2<T> matrix, int peer, int tag) {
  return comm.start_message(message_from<T>(exec, matrix, peer, tag));
}

template <class T>
void Exchange<T>::send(View2<T const> buffer, int peer) {
  detail::require_contiguous(buffer);
  // The matrix is only read; but a Part has one kind of pointer.
  sends_.push_back({View2<T>(const_cast<T*>(buffer.data()), buffer.extent(0), buffer.extent(1)), peer});
}

template <class T>
void Exchange<T>::recv(View2<T> buffer, int peer) {
  detail::require_contiguous(buffer);
  receives_.push_back({buffer, peer});
}

template <class T>
Request Exchange<T>::start(int tag) {
  using Buffer = detail::Buffer<T>;
  bool const nccl = detail::by_nccl(*comm_);
  std::vector<Buffer> buffers;
  auto const parts = [&](std::vector<Message> const& messages, typename Buffer::Use use) {
    std::vector<Communicator::Part> out;
    for (auto const& m : messages) {
      auto const n = static_cast<std::int64_t>(m.buffer.size());
      if (n == 0) continue;
      auto const& buffer = buffers.emplace_back(exec_, nccl, m.buffer.data(), n, use);
      out.push_back({buffer.data(), n, m.peer});
    }
    return out;
  };
  auto sends = parts(sends_, Buffer::Use::read);
  auto receives = parts(receives_, Buffer::Use::write);
  comm::Place place = nccl ? detail::on_stream(exec_) : comm::Memory::host;
  for (auto const& buffer : buffers) {  // the last buffer's event comes after the others'
    if (auto const of_one = buffer.place(); of_one.ready) place.ready = of_one.ready;
  }
  auto request = comm_->exchange(std::move(sends), std::move(receives), type_of<T>(), tag, place);
  for (auto const& buffer : buffers) request = buffer.attach(std::move(request));
  return request;
}

#define P3D_INSTANTIATE(T)                                                                                            \
  template Request start_all_reduce<T>(ExecSpace const&, Communicator&, View1<T>, Reduction, std::int64_t);           \
  template void all_reduce<T>(ExecSpace const&, Communicator&, View1<T>, Reduction);                                  \
  template Request start_reduce_scatter<T>(ExecSpace const&, Communicator&, View1<T>, std::span<std::int64_t const>,  \
                                           Reduction);                                                                \
  template Request start_all_gather<T>(ExecSpace const&, Communicator&, View1<T>, std::span<std::int64_t const>);     \
  template Request start_reduce_scatter<T>(ExecSpace const&, Communicator&, View1<T>, SharePieces const&, Reduction); \
  template Request start_all_gather<T>(ExecSpace const&, Communicator&, View1<T>, SharePieces const&);                \
  template Request start_broadcast<T>(ExecSpace const&, Communicator&, View1<T>, int);                                \
  template class Exchange<T>;                                                                                         \
  template Communicator::Message message_to<T>(ExecSpace const&, View2<T const>, int, int);                           \
  template Communicator::Message message_from<T>(ExecSpace const&, View2<T>, int, int);                               \
  template Request start_send<T>(ExecSpace const&, Communicator&, View2<T const>, int, int);                          \
  template Request start_recv<T>(ExecSpace const&, Communicator&, View2<T>, int, int);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(std::int32_t)
P3D_INSTANTIATE(std::int64_t)
P3D_INSTANTIATE(std::uint64_t)
P3D_INSTANTIATE(device::bfloat16)
P3D_INSTANTIATE(device::float16)
#undef P3D_INSTANTIATE
template Request start_all_gather<std::byte>(ExecSpace const&, Communicator&, View1<std::byte>,
                                             std::span<std::int64_t const>);

}  // namespace p3d::collectives
