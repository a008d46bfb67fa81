// SPDX-License-Identifier: Apache-2.0
// The operations of a Communicator. Each gets its number, then goes to an engine (p3d's own, or NCCL's) or becomes one
// non-blocking MPI call, or several when the count is beyond the limit of one call. Where a device still uses the
// buffer, the calls wait in late_start.hpp until it is ready. Example: all_reduce of 2^29 floats over MPI makes two
// MPI_Iallreduce of 1 GiB each, and one Request.
#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/large_count.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "all_reducer.hpp"
#include "mpi_calls.hpp"
#include "mpi_types.hpp"
#include "nccl_engine.hpp"

namespace p3d::comm {

using detail::at;
using detail::begin_with_peer;
using detail::carrier;
using detail::limit;
using detail::mpi_op;
using detail::mpi_type;
using detail::start;

namespace {

constexpr std::int64_t bytes_per_call = std::int64_t{1} << 30;
std::int64_t asked_limit = 0;  ///< set by a test; 0: the default

/// Starts the MPI calls that send one message.
void start_send(detail::Pending& pending, void const* buffer, std::int64_t count, ElementType type, int peer, int tag) {
  detail::for_each_part(count, limit(type), [&](std::int64_t first, int length) {
    start(pending, "MPI_Isend", [&](MPI_Request* part) {
      return MPI_Isend(at(buffer, first, type), length, carrier(type), peer, tag, pending.comm->mpi, part);
    });
  });
  begin_with_peer(pending, peer);
}

/// Starts the MPI calls that receive one message. Receives must come first among the parts of an operation
/// (Pending::receives).
void start_receive(detail::Pending& pending, void* buffer, std::int64_t count, ElementType type, int peer, int tag) {
  detail::for_each_part(count, limit(type), [&](std::int64_t first, int length) {
    start(pending, "MPI_Irecv", [&](MPI_Request* part) {
      return MPI_Irecv(at(buffer, first, type), length, carrier(type), peer, tag, pending.comm->mpi, part);
    });
    pending.receives.push_back(length);
  });
  begin_with_peer(pending, peer);
}

}  // namespace

namespace detail {
std::int64_t elements_per_call(std::int64_t bytes_each) {
  std::int64_t const most = std::max<std::int64_t>(1, bytes_per_call / bytes_each);
  return asked_limit > 0 ? std::min(asked_limit, most) : most;
}
}  // namespace detail

void set_max_count_per_call(std::int64_t elements) {
  P3D_REQUIRE(elements >= 0, "a count limit is not negative");
  asked_limit = elements;
}

std::size_t size_of(ElementType type) {
  if (type.float16()) return 2;
  switch (*type.mpi()) {
    case Type::int32: return 4;
    case Type::int64: return 8;
    case Type::uint64: return 8;
    case Type::float32: return 4;
    case Type::float64: return 8;
    case Type::byte: return 1;
  }
  return 0;
}

/// Numbers an operation, counts it and makes its request. `peer` is -1 for collectives.
Request Communicator::begin(char const* operation, std::int64_t count, ElementType type, int peer, bool receives) {
  P3D_REQUIRE(state_ != nullptr, "a communicator is used on its members only");
  P3D_REQUIRE(count >= 0, "a count is not negative");
  Request request;
  request.state_ = std::make_unique<Request::State>();
  auto& pending = *request.state_;
  pending.comm = state_;
  pending.operation = operation;
  pending.peer = peer;
  if (peer >= 0) pending.line = 2 * std::int64_t{peer} + (receives ? 1 : 0);
  pending.sequence = peer < 0 ? ++state_->collectives : ++state_->messages[pending.line];
  pending.type = carrier(type);
  ++state_->accounting.operations;
  state_->accounting.bytes += count * static_cast<std::int64_t>(size_of(type));
  return request;
}

namespace detail {

namespace {
/// True for the collectives of p3d's own engines, which have no broadcasts or exchanges.
bool summed_or_shared(Collective kind) { return kind < Collective::broadcast; }
}  // namespace

bool start_in_engine(Pending& pending, Work work, std::int64_t Communicator::Sent::*sent, Place const& place) {
  Engine* engine = nullptr;
  bool const on_stream = place.memory == Memory::device;
  if (on_stream) {
    engine = pending.comm->nccl.get();
    work.stream = place.stream;
    pending.stream_waits = engine != nullptr && place.stream_waits;
  } else if (auto const& reducer = pending.comm->all_reducer; reducer && summed_or_shared(work.kind)) {
    engine = &reducer->engine(work.kind, work.bytes(work.whole > 0 ? work.whole : work.count));
  }
  if (engine == nullptr) return false;
  pending.engine = engine;
  pending.work = std::move(work);
  pending.sent = sent;
  if (on_stream) {  // the engine itself waits for the stream
    engine->start(pending.work);
  } else {
    begin_when_ready(pending, place.ready, [&pending] { pending.engine->start(pending.work); });
  }
  return true;
}

void require_summable(CommRecord const& comm, ElementType type, Memory memory, char const* operation) {
  P3D_REQUIRE(type.mpi() != Type::byte, "bytes travel, they are never reduced");
  if (type.mpi() || comm.size == 1 || (memory == Memory::host ? comm.all_reducer != nullptr : comm.nccl != nullptr))
    return;
  throw base::Error(
      {.expected = fmt::format("16-bit numbers summed ({}) by one of p3d's algorithms, in host memory", operation),
       .found = memory == Memory::device ? "memory that only MPI reads, which has no such sum"
                                         : "the MPI library's, which has no such sum",
       .where = fmt::format("rank {}, communicator '{}'", base::log_rank(), comm.name),
       .fix = "set comm.allreduce to \"auto\", \"shared\", \"hierarchical\", \"ring\" or \"tree\""});
}

}  // namespace detail

Request Communicator::all_reduce(void* inout, std::int64_t count, ElementType type, Reduction op, Place place,
                                 std::int64_t whole) {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  detail::require_summable(*state_, type, place.memory, "all_reduce");
  if (size() == 1 || count == 0) return {};
  auto request = begin("all_reduce", count, type, -1, false);
  detail::Work work{.data = static_cast<std::byte*>(inout), .count = count, .type = type, .op = op, .whole = whole};
  if (detail::start_in_engine(*request.state_, std::move(work), &Sent::all_reduce, place)) return request;
  state_->accounting.sent.all_reduce +=
      detail::even_traffic(count, rank(), size()) * static_cast<std::int64_t>(size_of(type));
  auto& pending = *request.state_;
  detail::begin_when_ready(pending, place.ready, [&pending, inout, count, type, op] {
    detail::for_each_part(count, limit(type), [&](std::int64_t first, int length) {
      start(pending, "MPI_Iallreduce", [&](MPI_Request* part) {
        return MPI_Iallreduce(MPI_IN_PLACE, at(inout, first, type), length, mpi_type(type.mpi().value()), mpi_op(op),
                              pending.comm->mpi, part);
      });
    });
  });
  return request;
}

Request Communicator::all_gather(void const* in, void* out, std::int64_t count_each, ElementType type) {
  if (count_each == 0 || (size() == 1 && in == out)) return {};
  auto request = begin("all_gather", count_each * size(), type, -1, false);
  state_->accounting.sent.all_gather += count_each * (size() - 1) * static_cast<std::int64_t>(size_of(type));
  bool const in_place = in == at(out, rank() * count_each, type);  // MPI forbids to pass the same buffer twice
  auto& pending = *request.state_;
  detail::begin_when_ready(pending, {}, [&pending, in_place, in, out, count_each, type] {
    auto const& comm = *pending.comm;
    detail::for_each_part(count_each, limit(type, comm.size), [&](std::int64_t first, int length) {
      // The `length` elements of each rank land `count_each` elements apart: a type of that extent, one item of it from
      // each rank.
      MPI_Datatype packed = MPI_DATATYPE_NULL;
      MPI_Datatype strided = MPI_DATATYPE_NULL;
      auto const extent = static_cast<MPI_Aint>(count_each) * static_cast<MPI_Aint>(size_of(type));
      detail::check(MPI_Type_contiguous(length, carrier(type), &packed), "MPI_Type_contiguous", comm.name);
      detail::check(MPI_Type_create_resized(packed, 0, extent, &strided), "MPI_Type_create_resized", comm.name);
      detail::check(MPI_Type_commit(&strided), "MPI_Type_commit", comm.name);
      start(pending, "MPI_Iallgather", [&](MPI_Request* part) {
        return MPI_Iallgather(in_place ? MPI_IN_PLACE : at(in, first, type), length, carrier(type),
                              at(out, first, type), 1, strided, comm.mpi, part);
      });
      MPI_Type_free(&strided);  // the operation keeps both alive
      MPI_Type_free(&packed);
    });
  });
  return request;
}

void broadcast_text(Communicator& comm, std::string& text, int root) {
  auto length = static_cast<std::int64_t>(text.size());
  comm.broadcast(&length, 1, Type::int64, root).wait();
  text.resize(static_cast<std::size_t>(length));
  comm.broadcast(text.data(), length, Type::byte, root).wait();
}

Request Communicator::broadcast(void* inout, std::int64_t count, ElementType type, int root, Place place) {
  if (size() == 1 || count == 0) return {};
  auto request = begin("broadcast", count, type, -1, false);
  detail::Work work{.data = static_cast<std::byte*>(inout),
                    .count = count,
                    .type = type,
                    .kind = detail::Collective::broadcast,
                    .root = root};
  if (detail::start_in_engine(*request.state_, std::move(work), &Sent::broadcast, place)) return request;
  if (rank() == root) {
    state_->accounting.sent.broadcast += count * (size() - 1) * static_cast<std::int64_t>(size_of(type));
  }
  auto& pending = *request.state_;
  detail::begin_when_ready(pending, place.ready, [&pending, inout, count, type, root] {
    detail::for_each_part(count, limit(type), [&](std::int64_t first, int length) {
      start(pending, "MPI_Ibcast", [&](MPI_Request* part) {
        return MPI_Ibcast(at(inout, first, type), length, carrier(type), root, pending.comm->mpi, part);
      });
    });
  });
  return request;
}

Request Communicator::send(void const* buffer, std::int64_t count, ElementType type, int peer, int tag, Place place) {
  auto request = begin("send", count, type, peer, false);
  state_->accounting.sent.messages += count * static_cast<std::int64_t>(size_of(type));
  auto& pending = *request.state_;
  detail::begin_when_ready(pending, place.ready, [&pending, buffer, count, type, tag] {
    start_send(pending, buffer, count, type, pending.peer, tag);
  });
  return request;
}

Request Communicator::recv(void* buffer, std::int64_t count, ElementType type, int peer, int tag, Place place) {
  auto request = begin("recv", count, type, peer, true);
  auto& pending = *request.state_;
  detail::begin_when_ready(pending, place.ready, [&pending, buffer, count, type, tag] {
    start_receive(pending, buffer, count, type, pending.peer, tag);
  });
  return request;
}

Request Communicator::exchange(std::vector<Part> sends, std::vector<Part> receives, ElementType type, int tag,
                               Place place) {
  if (size() == 1) return {};
  std::erase_if(sends, [](Part const& m) { return m.count == 0; });
  std::erase_if(receives, [](Part const& m) { return m.count == 0; });
  std::int64_t count = 0, sent = 0;
  for (auto const& m : receives) count += m.count;
  for (auto const& m : sends) sent += m.count;
  auto request = begin("exchange", std::max(count, sent), type, -1, false);
  detail::Work work{.count = sent, .type = type, .kind = detail::Collective::exchange};
  if (place.memory == Memory::device && state_->nccl) {
    work.sends = std::move(sends);
    work.receives = std::move(receives);
    detail::start_in_engine(*request.state_, std::move(work), &Sent::messages, place);
    return request;
  }
  state_->accounting.sent.messages += sent * static_cast<std::int64_t>(size_of(type));
  auto& pending = *request.state_;
  detail::begin_when_ready(pending, place.ready,
                           [&pending, sends = std::move(sends), receives = std::move(receives), type, tag] {
                             for (auto const& m : receives) start_receive(pending, m.data, m.count, type, m.peer, tag);
                             for (auto const& m : sends) start_send(pending, m.data, m.count, type, m.peer, tag);
                           });
  return request;
}

Request Communicator::barrier() {
  if (size() == 1) return {};
  auto request = begin("barrier", 0, Type::byte, -1, false);
  auto& pending = *request.state_;
  detail::begin_when_ready(pending, {}, [&pending] {
    start(pending, "MPI_Ibarrier", [&](MPI_Request* part) { return MPI_Ibarrier(pending.comm->mpi, part); });
  });
  return request;
}

}  // namespace p3d::comm
