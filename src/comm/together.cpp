// SPDX-License-Identifier: Apache-2.0
// Messages that start together: a send and a receive in one MPI_Isendrecv, or one exchange with the neighbours on a
// ring. One call carries several operations (SharedCall); the first of them is begun like any other, and begins when
// all are ready. Example: of "send to 1, receive from 1" the send is begun as an operation of both lines, that of the
// messages to rank 1 and that of those from it.
#include <p3d/base/error.hpp>
#include <p3d/comm/wait.hpp>

#include <algorithm>
#include <utility>

#include "mpi_calls.hpp"
#include "mpi_types.hpp"

namespace p3d::comm {

using detail::carrier;
using detail::check;
using detail::limit;

namespace {

using Message = Communicator::Message;

void add_completions(Request& request, Message& message) {
  for (auto& [hook, keep] : message.completions) request.on_complete(std::move(hook), std::move(keep));
}

/// Is true when all messages may begin. It never asks one again that was ready.
std::function<bool()> all_ready(std::vector<Message> const& messages) {
  std::vector<Place::Ready> asked;
  for (auto const& m : messages)
    if (m.place.ready) asked.push_back(m.place.ready);
  if (asked.empty()) return {};
  return [asked = std::move(asked)]() mutable {
    std::erase_if(asked, [](auto const& ready) { return ready(); });
    return asked.empty();
  };
}

/// True when one call can carry the message.
bool fits(Message const& m) { return m.count <= limit(m.type); }

#if MPI_VERSION >= 4
constexpr bool has_send_receive = true;
int send_receive(Message const& out, Message const& in, MPI_Comm comm, MPI_Request* request) {
  return MPI_Isendrecv(out.data, static_cast<int>(out.count), carrier(out.type), out.peer, out.tag, in.data,
                       static_cast<int>(in.count), carrier(in.type), in.peer, in.tag, comm, request);
}
#else
constexpr bool has_send_receive = false;
int send_receive(Message const&, Message const&, MPI_Comm, MPI_Request*) { return MPI_ERR_OTHER; }
#endif

}  // namespace

Request Communicator::start_message(Message message) {
  auto request = message.sends
                     ? send(message.data, message.count, message.type, message.peer, message.tag, message.place)
                     : recv(message.data, message.count, message.type, message.peer, message.tag, message.place);
  add_completions(request, message);
  return request;
}

std::pair<Request, Request> Communicator::start_pair(Message first, Message second) {
  P3D_REQUIRE(first.sends != second.sends && first.peer == second.peer, "a pair is a send and a receive with one rank");
  if (!has_send_receive || !fits(first) || !fits(second)) {
    auto earlier = start_message(std::move(first));
    return {std::move(earlier), start_message(std::move(second))};
  }
  auto const begin_one = [&](Message const& m) {
    if (m.sends) state_->accounting.sent.messages += m.count * static_cast<std::int64_t>(size_of(m.type));
    return begin(m.sends ? "send" : "recv", m.count, m.type, m.peer, !m.sends);
  };
  std::pair<Request, Request> out{begin_one(first), begin_one(second)};
  auto& leader = *out.first.state_;
  leader.second_line = out.second.state_->line;
  leader.shared = out.second.state_->shared = std::make_shared<detail::SharedCall>();
  auto ready = all_ready({first, second});
  add_completions(out.first, first);
  add_completions(out.second, second);
  if (!first.sends) std::swap(first, second);
  detail::begin_when_ready(leader, std::move(ready), [&leader, send = std::move(first), receive = std::move(second)] {
    check(send_receive(send, receive, leader.comm->mpi, &leader.shared->request), "MPI_Isendrecv", leader.comm->name);
    leader.shared->begun = true;
    detail::begin_with_peer(leader, send.peer);
  });
  return out;
}

std::vector<Request> Communicator::exchange_with_neighbours(std::vector<Message> messages) {
  auto const& neighbours = state_->neighbours;
  auto call = std::make_shared<detail::SharedCall>();
  for (auto* blocks : {&call->sends, &call->receives}) {
    blocks->counts.assign(neighbours.size(), 0);
    blocks->addresses.assign(neighbours.size(), 0);
    blocks->types.assign(neighbours.size(), MPI_BYTE);
  }
  std::int64_t sent = 0, most = 0;
  for (auto const& m : messages) {
    auto const at = std::find(neighbours.begin(), neighbours.end(), m.peer) - neighbours.begin();
    P3D_REQUIRE(at < static_cast<std::ptrdiff_t>(neighbours.size()), "messages go to neighbours on the ring");
    auto& blocks = m.sends ? call->sends : call->receives;
    auto const i = static_cast<std::size_t>(at);
    P3D_REQUIRE(blocks.addresses[i] == 0, "one message to, and one from, each neighbour");
    P3D_REQUIRE(fits(m), "a message of an exchange with neighbours fits one call");
    blocks.counts[i] = static_cast<int>(m.count);
    blocks.types[i] = carrier(m.type);
    check(MPI_Get_address(m.data, &blocks.addresses[i]), "MPI_Get_address", name());
    auto const bytes = m.count * static_cast<std::int64_t>(size_of(m.type));
    if (m.sends) sent += bytes;
    most = std::max(most, bytes);
  }
  std::vector<Request> out;
  out.push_back(begin("neighbour exchange", most, Type::byte, -1, false));
  state_->accounting.sent.messages += sent;
  auto& leader = *out.front().state_;
  leader.shared = call;
  for (std::size_t i = 1; i < messages.size(); ++i) {
    auto& other = *(out.emplace_back().state_ = std::make_unique<Request::State>());
    other.comm = leader.comm;
    other.operation = leader.operation;
    other.sequence = leader.sequence;
    other.shared = call;
  }
  auto ready = all_ready(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) add_completions(out[i], messages[i]);
  detail::begin_when_ready(leader, std::move(ready), [&leader] {
    auto& [request, begun, sends, receives] = *leader.shared;
    check(MPI_Ineighbor_alltoallw(MPI_BOTTOM, sends.counts.data(), sends.addresses.data(), sends.types.data(),
                                  MPI_BOTTOM, receives.counts.data(), receives.addresses.data(), receives.types.data(),
                                  leader.comm->mpi, &request),
          "MPI_Ineighbor_alltoallw", leader.comm->name);
    begun = true;
    for (int const peer : leader.comm->neighbours)
      if (peer != MPI_PROC_NULL) detail::begin_with_peer(leader, peer);
  });
  return out;
}

Communicator Communicator::ring(bool periodic, std::string name) const {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  P3D_REQUIRE(!periodic || size() > 2, "on two ranks a neighbour is below and above at once");
  detail::watched_barrier(state_->mpi, state_->name, "make the ring");
  MPI_Comm handle = MPI_COMM_NULL;
  int const ranks = size(), around = periodic ? 1 : 0;
  check(blocking("MPI_Cart_create", name, [&] { return MPI_Cart_create(state_->mpi, 1, &ranks, &around, 0, &handle); }),
        "MPI_Cart_create", name);
  auto out = adopt(handle, std::move(name));
  int const first = around ? ranks - 1 : MPI_PROC_NULL, last = around ? 0 : MPI_PROC_NULL;
  out.state_->neighbours = {rank() > 0 ? rank() - 1 : first, rank() + 1 < ranks ? rank() + 1 : last};
  return out;
}

}  // namespace p3d::comm
