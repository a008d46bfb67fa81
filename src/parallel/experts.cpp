// SPDX-License-Identifier: Apache-2.0
// Messages of mixture-of-experts layers. A plan (layout::ExpertDispatch) says which rows go to which rank in which
// pass; here the rows are sent in one exchange and the rows of this rank itself are copied. Each rank begins with its
// successor, so that not all send to the same rank at first. Example: of 4 ranks, rank 1 sends to 2, 3 and 0.
#include <p3d/parallel/experts.hpp>

#include <p3d/base/error.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/device/float16.hpp>

#include <algorithm>
#include <utility>

namespace p3d::parallel {

namespace {

enum ExpertTag { to_experts_tag, to_tokens_tag, share_tag, collect_tag };

/// The rows of a range.
template <class T>
View2<T> part(View2<T> all, layout::Range range) {
  P3D_REQUIRE(range.end <= static_cast<std::int64_t>(all.extent(0)), "there is room for the rows");
  return device::rows(all, range.begin, range.end);
}

}  // namespace

ExpertParallel::ExpertParallel(comm::Communicator* comm, layout::ExpertGroup group)
    : comm_(comm), group_(std::move(group)) {
  P3D_REQUIRE(group_.size() == (comm_ ? comm_->size() : 1), "the group has the ranks of the communicator");
  etp_of_.clear();
  for (int r = 0; r < size(); ++r) {
    auto const here = group_.ep_of.begin() + r;
    etp_of_.push_back(static_cast<int>(std::count(group_.ep_of.begin(), here, *here)));
  }
}

layout::ExpertDispatch ExpertParallel::plan(std::vector<std::int64_t> const& counts, std::int64_t most_rows) {
  auto all = counts;
  if (size() > 1) {
    all.resize(counts.size() * static_cast<std::size_t>(size()));
    comm_->all_gather(counts.data(), all.data(), std::ssize(counts), comm::Type::int64).wait();
  }
  return {group_, rank(), std::move(all), most_rows};
}

template <class T>
ExpertParallel::Requests ExpertParallel::start_to_experts(ExecSpace const& exec, layout::ExpertDispatch const& dispatch,
                                                          int pass, View2<T const> own, View2<T> received) {
  Requests requests;
  if (size() > 1) {
    collectives::Exchange<T> messages(exec, *comm_);
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) messages.recv(part(received, dispatch.received_from(pass, r)), r);
    }
    for (int i = 1; i < size(); ++i) {  // begins with the successor: not all send to the same rank at first
      int const r = (rank() + i) % size();
      messages.send(part(own, dispatch.sent_to(pass, r)), r);
    }
    requests.push_back(messages.start(to_experts_tag));
  }
  Kokkos::deep_copy(exec, part(received, dispatch.received_from(pass, rank())),
                    part(own, dispatch.sent_to(pass, rank())));
  return requests;
}

template <class T>
ExpertParallel::Requests ExpertParallel::start_to_tokens(ExecSpace const& exec, layout::ExpertDispatch const& dispatch,
                                                         int pass, View2<T const> received, std::int64_t own_rows,
                                                         View2<T> own) {
  auto const place = [&](int r) {
    auto const rows = dispatch.sent_to(pass, r);
    auto const before = etp_of_[static_cast<std::size_t>(r)] * own_rows;
    return layout::Range{before + rows.begin, before + rows.end};
  };
  Requests requests;
  if (size() > 1) {
    collectives::Exchange<T> messages(exec, *comm_);
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) messages.recv(part(own, place(r)), r);
    }
    for (int i = 1; i < size(); ++i) {
      int const r = (rank() + i) % size();
      messages.send(part(received, dispatch.received_from(pass, r)), r);
    }
    requests.push_back(messages.start(to_tokens_tag));
  }
  Kokkos::deep_copy(exec, part(own, place(rank())), part(received, dispatch.received_from(pass, rank())));
  return requests;
}

ExpertParallel::SharedIntegers ExpertParallel::share_choices(std::vector<int> const& own, std::int64_t most) {
  auto const each = static_cast<std::size_t>(most) + 1, ranks = static_cast<std::size_t>(size());
  P3D_REQUIRE(own.size() < each, "a rank has no more choices than the largest one");
  std::vector<std::int32_t> mine(each, -1), all(each * ranks);
  mine.front() = static_cast<std::int32_t>(own.size());
  std::copy(own.begin(), own.end(), mine.begin() + 1);
  comm_->all_gather(mine.data(), all.data(), std::ssize(mine), comm::Type::int32).wait();
  SharedIntegers out;
  for (std::size_t r = 0; r < ranks; ++r) {
    auto const begin = all.begin() + static_cast<std::ptrdiff_t>(r * each);
    out.count.push_back(*begin);
    out.values.insert(out.values.end(), begin + 1, begin + static_cast<std::ptrdiff_t>(each));
  }
  return out;
}

namespace {
/// The first `rows` rows of a rank's block; the blocks of all ranks are equally large.
template <class T>
View2<T> block(View2<T> all, int ranks, int rank, std::int64_t rows) {
  auto const each = static_cast<std::int64_t>(all.extent(0)) / ranks;
  P3D_REQUIRE(rows <= each, "there is room for the tokens of every rank");
  return device::rows(all, rank * each, rank * each + rows);
}
}  // namespace

template <class T>
ExpertParallel::Requests ExpertParallel::start_share(ExecSpace const& exec, std::vector<std::int64_t> const& rows,
                                                     View2<T const> own, View2<T> all) {
  Requests requests;
  auto const of = [&](int r) { return block(all, size(), r, rows[static_cast<std::size_t>(r)]); };
  if (size() > 1) {
    collectives::Exchange<T> messages(exec, *comm_);
    for (int i = 1; i < size(); ++i) {
      int const r = (rank() + i) % size();
      messages.recv(of(r), r);
      messages.send(own, r);
    }
    requests.push_back(messages.start(share_tag));
  }
  Kokkos::deep_copy(exec, of(rank()), own);
  return requests;
}

template <class T>
ExpertParallel::Requests ExpertParallel::start_collect(ExecSpace const& exec, std::vector<std::int64_t> const& rows,
                                                       View2<T const> all, View2<T> blocks) {
  Requests requests;
  auto const mine = rows[static_cast<std::size_t>(rank())];
  if (size() > 1) {
    collectives::Exchange<T> messages(exec, *comm_);
    for (int i = 1; i < size(); ++i) {
      int const r = (rank() + i) % size();
      messages.recv(block(blocks, size(), r, mine), r);
      messages.send(block(all, size(), r, rows[static_cast<std::size_t>(r)]), r);
    }
    requests.push_back(messages.start(collect_tag));
  }
  Kokkos::deep_copy(exec, block(blocks, size(), rank(), mine), block(all, size(), rank(), mine));
  return requests;
}

void SampleRanks::sum(std::vector<std::int64_t>& counts) const {
  for (auto* comm : comms_)
    comm->all_reduce(counts.data(), std::ssize(counts), comm::Type::int64, comm::Reduction::sum).wait();
}

std::vector<std::int64_t> SampleRanks::before(std::vector<std::int64_t> counts) const {
  std::vector<std::int64_t> out(counts.size());
  for (auto* comm : comms_) {
    std::vector<std::int64_t> all(counts.size() * static_cast<std::size_t>(comm->size()));
    comm->all_gather(counts.data(), all.data(), std::ssize(counts), comm::Type::int64).wait();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      counts[i] = 0;  // becomes the sum over all these ranks, for the next communicator
      for (int r = 0; r < comm->size(); ++r) {
        auto const n = all[static_cast<std::size_t>(r) * counts.size() + i];
        counts[i] += n;
        if (r < comm->rank()) out[i] += n;
      }
    }
  }
  return out;
}

template <class T>
void sum_over(TensorParallel& tp, View1<T> numbers) {
  collectives::all_reduce<T>(tp.exec, *tp.comm, numbers);
}
template void sum_over<float>(TensorParallel&, View1<float>);
template void sum_over<double>(TensorParallel&, View1<double>);

#define P3D_INSTANTIATE(T)                                                                                             \
  template ExpertParallel::Requests ExpertParallel::start_to_experts<T>(                                               \
      ExecSpace const&, layout::ExpertDispatch const&, int, View2<T const>, View2<T>);                                 \
  template ExpertParallel::Requests ExpertParallel::start_to_tokens<T>(                                                \
      ExecSpace const&, layout::ExpertDispatch const&, int, View2<T const>, std::int64_t, View2<T>);                   \
  template ExpertParallel::Requests ExpertParallel::start_share<T>(ExecSpace const&, std::vector<std::int64_t> const&, \
                                                                   View2<T const>, View2<T>);                          \
  template ExpertParallel::Requests ExpertParallel::start_collect<T>(                                                  \
      ExecSpace const&, std::vector<std::int64_t> const&, View2<T const>, View2<T>);
P3D_INSTANTIATE(float)
P3D_INSTANTIATE(double)
P3D_INSTANTIATE(device::bfloat16)
P3D_INSTANTIATE(device::float16)
#undef P3D_INSTANTIATE

}  // namespace p3d::parallel
