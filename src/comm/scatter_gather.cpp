// SPDX-License-Identifier: Apache-2.0
// Reduce-scatters and all-gathers over shares of any length: by an engine, or by MPI. MPI's own calls are used where
// they fit (MPI_Ireduce_scatter, MPI_Iallgatherv: int counts; for the sum host memory and shares without gaps);
// otherwise each share is reduced to, or broadcast from, its owner. Example: bounds {0, 3, 3, 8} give rank 0 elements 0
// to 2, rank 1 none and rank 2 elements 3 to 7; the second halves of these shares are pieces with the begins {1, 3, 5}
// and the ends {3, 3, 8}.
#include <p3d/base/error.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include "mpi_calls.hpp"
#include "mpi_types.hpp"

namespace p3d::comm {

using detail::at;
using detail::limit;
using detail::start;

namespace {

/// The shares of a buffer, whose `data` is the beginning of the first share.
struct Shares {
  std::byte* data = nullptr;
  std::vector<std::int64_t> begins, ends;

  Shares(void* inout, SharePieces const& pieces, ElementType type, int owners)
      : begins(pieces.begins), ends(pieces.ends) {
    auto const n = static_cast<std::size_t>(owners);
    P3D_REQUIRE(begins.size() == n && ends.size() == n, "every rank has one share of a buffer");
    auto const first = begins.front();
    bool ascend = first >= 0;
    for (std::size_t r = 0; r < n; ++r)
      ascend = ascend && begins[r] <= ends[r] && (r + 1 == n || ends[r] <= begins[r + 1]);
    P3D_REQUIRE(ascend, "shares follow each other in a buffer");
    data = at(inout, first, type);
    for (auto& begin : begins) begin -= first;
    for (auto& end : ends) end -= first;
  }
  std::int64_t begin(int r) const { return begins[static_cast<std::size_t>(r)]; }
  std::int64_t count(int r) const { return ends[static_cast<std::size_t>(r)] - begin(r); }
  std::int64_t count() const {
    std::int64_t sum = 0;
    for (int r = 0; r < static_cast<int>(begins.size()); ++r) sum += count(r);
    return sum;
  }
  /// Elements from the first share to the end of the last.
  std::int64_t span() const { return ends.back(); }
  bool have_gaps() const { return count() != span(); }
};

/// The pieces that are whole shares.
SharePieces pieces_of(std::span<std::int64_t const> bounds, int owners) {
  P3D_REQUIRE(bounds.size() == static_cast<std::size_t>(owners) + 1, "every rank has one share of a buffer");
  return {{bounds.begin(), bounds.end() - 1}, {bounds.begin() + 1, bounds.end()}, 0};
}

/// The counts and offsets of shares for MPI. They must live until the operation is over.
struct Counts {
  std::vector<int> counts, begins;
};
std::shared_ptr<Counts> counts_of(Shares const& shares) {
  auto out = std::make_shared<Counts>();
  for (int r = 0; r < static_cast<int>(shares.begins.size()); ++r) {
    out->begins.push_back(static_cast<int>(shares.begin(r)));
    out->counts.push_back(static_cast<int>(shares.count(r)));
  }
  return out;
}

/// Calls body(owner, first, length) for each part of each share, in order.
template <class Body>
void for_each_share(Shares const& shares, int owners, std::int64_t most, Body&& body) {
  for (int owner = 0; owner < owners; ++owner) {
    if (shares.count(owner) == 0) continue;
    detail::for_each_part(shares.count(owner), most,
                          [&](std::int64_t first, int length) { body(owner, shares.begin(owner) + first, length); });
  }
}

}  // namespace

Request Communicator::reduce_scatter(void* inout, std::span<std::int64_t const> bounds, ElementType type, Reduction op,
                                     Place place) {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  return reduce_scatter(inout, pieces_of(bounds, size()), type, op, std::move(place));
}

Request Communicator::reduce_scatter(void* inout, SharePieces const& pieces, ElementType type, Reduction op,
                                     Place place) {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  detail::require_summable(*state_, type, place.memory, "reduce_scatter");
  Shares const shares(inout, pieces, type, size());
  auto const n = shares.count();
  if (size() == 1 || n == 0) return {};
  auto request = begin("reduce_scatter", n, type, -1, false);
  auto& pending = *request.state_;
  detail::Work work{.data = shares.data,
                    .count = n,
                    .type = type,
                    .op = op,
                    .kind = detail::Collective::reduce_scatter,
                    .begins = shares.begins,
                    .ends = shares.ends,
                    .whole = pieces.whole};
  if (detail::start_in_engine(pending, std::move(work), &Sent::reduce_scatter, place)) return request;

  auto const own = shares.count(rank());
  auto const bytes = own * static_cast<std::int64_t>(size_of(type));
  state_->accounting.sent.reduce_scatter += (n - own) * static_cast<std::int64_t>(size_of(type));
  auto const mpi_type = detail::mpi_type(type.mpi().value());
  auto* const data = shares.data;
  if (place.memory == Memory::host && n <= limit(type) && !shares.have_gaps()) {
    // MPI would put the sum at the buffer's beginning, so it is received in a buffer of its own and then copied to its
    // place.
    auto const counts = counts_of(shares);
    auto const sum = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes));
    detail::begin_when_ready(pending, place.ready, [&pending, data, sum, counts, mpi_type, op] {
      start(pending, "MPI_Ireduce_scatter", [&](MPI_Request* part) {
        return MPI_Ireduce_scatter(data, sum->data(), counts->counts.data(), mpi_type, detail::mpi_op(op),
                                   pending.comm->mpi, part);
      });
    });
    request.on_complete({}, counts);
    request.on_complete(
        [to = at(data, shares.begin(rank()), type), sum = sum.get()] {
          if (!sum->empty()) std::memcpy(to, sum->data(), sum->size());
        },
        sum);
    return request;
  }
  // Memory that only MPI reads allows no copy, and long shares go in parts: each part is reduced to its owner.
  detail::begin_when_ready(pending, place.ready, [&pending, shares, type, mpi_type, op] {
    auto const& comm = *pending.comm;
    for_each_share(shares, comm.size, limit(type), [&](int owner, std::int64_t first, int length) {
      bool const mine = owner == comm.rank;
      auto* const here = at(shares.data, first, type);
      start(pending, "MPI_Ireduce", [&](MPI_Request* part) {
        return MPI_Ireduce(mine ? MPI_IN_PLACE : here, mine ? here : nullptr, length, mpi_type, detail::mpi_op(op),
                           owner, comm.mpi, part);
      });
    });
  });
  return request;
}

Request Communicator::all_gather(void* inout, std::span<std::int64_t const> bounds, ElementType type, Place place) {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  return all_gather(inout, pieces_of(bounds, size()), type, std::move(place));
}

Request Communicator::all_gather(void* inout, SharePieces const& pieces, ElementType type, Place place) {
  P3D_REQUIRE(valid(), "a communicator is used on its members only");
  Shares const shares(inout, pieces, type, size());
  auto const n = shares.count();
  if (size() == 1 || n == 0) return {};
  auto request = begin("all_gather", n, type, -1, false);
  auto& pending = *request.state_;
  detail::Work work{.data = shares.data,
                    .count = n,
                    .type = type,
                    .kind = detail::Collective::all_gather,
                    .begins = shares.begins,
                    .ends = shares.ends,
                    .whole = pieces.whole};
  if (detail::start_in_engine(pending, std::move(work), &Sent::all_gather, place)) return request;

  state_->accounting.sent.all_gather += shares.count(rank()) * (size() - 1) * static_cast<std::int64_t>(size_of(type));
  auto const carrier = detail::carrier(type);
  if (shares.span() <= limit(type)) {
    auto const counts = counts_of(shares);
    detail::begin_when_ready(pending, place.ready, [&pending, data = shares.data, counts, carrier] {
      start(pending, "MPI_Iallgatherv", [&](MPI_Request* part) {
        return MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, counts->counts.data(), counts->begins.data(),
                               carrier, pending.comm->mpi, part);
      });
    });
    request.on_complete({}, counts);
    return request;
  }
  detail::begin_when_ready(pending, place.ready, [&pending, shares, type, carrier] {
    for_each_share(shares, pending.comm->size, limit(type), [&](int owner, std::int64_t first, int length) {
      start(pending, "MPI_Ibcast", [&](MPI_Request* part) {
        return MPI_Ibcast(at(shares.data, first, type), length, carrier, owner, pending.comm->mpi, part);
      });
    });
  });
  return request;
}

}  // namespace p3d::comm
