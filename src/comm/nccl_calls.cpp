// SPDX-License-Identifier: Apache-2.0
// The calls of NCCL for each collective. One group of calls is one launch of an NcclEngine. A sum in a fixed order
// takes several launches: for each segment of the workspace, scatter_segment() brings each rank the summands of its
// piece and add_segment() adds them; the last launch of an all-reduce gathers the sums. Example: 3 ranks and 10
// elements have shares of 3, 3 and 4 elements.
#include <algorithm>

#include "nccl_engine.hpp"
#include "parts.hpp"

namespace p3d::comm::detail {

namespace {

using State = NcclApi::State;

/// True for shares of the same length that follow each other: NCCL has calls for those.
bool even(Work const& work) {
  for (int s = 1; s < static_cast<int>(work.begins.size()); ++s) {
    if (work.share(s) != work.share(0) || work.share_begin(s) != s * work.share(0)) return false;
  }
  return true;
}

/// Elements of a share of an all-reduce in a fixed order. All shares are equal, except that the last rank's also has
/// the remaining elements.
std::int64_t even_share(Work const& work, int ranks) { return work.count / ranks; }

}  // namespace

/// Makes the calls of launch `step` of a work.
NcclEngine::Result NcclEngine::call(Work& work, int step) {
  if (sums_here(work)) return step < segments(work) ? scatter_segment(work, step) : gather_sums(work);
  switch (work.kind) {
    case Collective::all_reduce:
      call_ = "ncclAllReduce";
      work.sent += work.bytes(even_traffic(work.count, rank_, size_));
      return api_->all_reduce(work.data, work.count, work.type, work.op, group_, stream_);
    case Collective::reduce_scatter: return reduce_scatter(work);
    case Collective::all_gather: return all_gather(work);
    case Collective::broadcast:
      call_ = "ncclBroadcast";
      if (rank_ == work.root) work.sent += work.bytes(work.count) * (size_ - 1);
      return api_->broadcast(work.data, work.count, work.type, work.root, group_, stream_);
    case Collective::exchange: return exchange(work);
  }
  return {};
}

NcclEngine::Result NcclEngine::reduce_scatter(Work& work) {
  work.sent += work.bytes(work.count - work.share(rank_));
  auto const at = [&](int s) { return work.at(work.share_begin(s)); };
  if (even(work)) {
    call_ = "ncclReduceScatter";
    return api_->reduce_scatter(work.data, at(rank_), work.share(0), work.type, work.op, group_, stream_);
  }
  call_ = "ncclReduce";
  for (int s = 0; s < size_; ++s) {
    if (work.share(s) == 0) continue;
    if (auto r = api_->reduce(at(s), work.share(s), work.type, work.op, s, group_, stream_); r.state == State::failed)
      return r;
  }
  return {};
}

NcclEngine::Result NcclEngine::all_gather(Work& work) {
  work.sent += work.bytes(work.share(rank_)) * (size_ - 1);
  auto const at = [&](int s) { return work.at(work.share_begin(s)); };
  if (even(work)) {
    call_ = "ncclAllGather";
    return api_->all_gather(at(rank_), work.data, work.share(0), work.type, group_, stream_);
  }
  call_ = "ncclBroadcast";
  for (int s = 0; s < size_; ++s) {
    if (work.share(s) == 0) continue;
    if (auto r = api_->broadcast(at(s), work.share(s), work.type, s, group_, stream_); r.state == State::failed)
      return r;
  }
  return {};
}

NcclEngine::Result NcclEngine::exchange(Work& work) {
  for (auto const& m : work.receives) {
    call_ = "ncclRecv";
    if (auto r = api_->recv(m.data, m.count, work.type, m.peer, group_, stream_); r.state == State::failed) return r;
  }
  for (auto const& m : work.sends) {
    call_ = "ncclSend";
    work.sent += work.bytes(m.count);
    if (auto r = api_->send(m.data, m.count, work.type, m.peer, group_, stream_); r.state == State::failed) return r;
  }
  return {};
}

// From here on: sums in the order of ranks.

/// True when the work adds floating-point numbers in a fixed order. Maxima and minima count too: with zeros of both
/// signs their order can be seen.
bool NcclEngine::sums_here(Work const& work) const {
  bool const reduces = work.kind == Collective::all_reduce || work.kind == Collective::reduce_scatter;
  bool const real = work.type.float16() || work.type == Type::float32 || work.type == Type::float64;
  return sums_ && reduces && real;
}

/// The number of elements of one summand for which the workspace has room, for each other rank.
std::int64_t NcclEngine::piece_length(Work const& work) const {
  return std::max<std::int64_t>(1, sums_->workspace() / (size_ - 1) / work.bytes(1) / 64 * 64);
}

/// The elements of a share that belong to a segment.
NcclEngine::Piece NcclEngine::piece(Work const& work, int share, int segment) const {
  std::int64_t begin = 0, end = 0;
  if (work.kind == Collective::all_reduce) {
    begin = even_share(work, size_) * share;
    end = share + 1 == size_ ? work.count : begin + even_share(work, size_);
  } else {
    begin = work.share_begin(share);
    end = begin + work.share(share);
  }
  auto const length = piece_length(work);
  begin = std::min(end, begin + segment * length);
  return {begin, std::min(length, end - begin)};
}

/// The number of segments, so that the longest share is done; it is the same on all ranks.
int NcclEngine::segments(Work const& work) const {
  std::int64_t longest = 0;
  if (work.kind == Collective::all_reduce) {
    longest = work.count - even_share(work, size_) * (size_ - 1);
  } else {
    for (int s = 0; s < size_; ++s) longest = std::max(longest, work.share(s));
  }
  auto const length = piece_length(work);
  return static_cast<int>((longest + length - 1) / length);
}

/// The number of launches of a work.
int NcclEngine::launches(Work const& work) const {
  if (!sums_here(work)) return 1;
  return segments(work) + (work.kind == Collective::all_reduce ? 1 : 0);
}

/// Sends every other rank the summands of its piece, and receives those of this rank's piece into the workspace.
NcclEngine::Result NcclEngine::scatter_segment(Work& work, int segment) {
  if (segment == 0) {
    work.sent += work.bytes(work.kind == Collective::all_reduce ? even_traffic(work.count, rank_, size_)
                                                                : work.count - work.share(rank_));
  }
  auto const own = piece(work, rank_, segment);
  auto const stride = work.bytes(piece_length(work));
  auto* to = workspace_.get();
  for (int s = 0; s < size_; ++s) {
    if (s == rank_) continue;
    if (own.count > 0) {
      call_ = "ncclRecv";
      if (auto r = api_->recv(to, own.count, work.type, s, group_, stream_); r.state == State::failed) return r;
      to += stride;
    }
    auto const theirs = piece(work, s, segment);
    if (theirs.count == 0) continue;
    call_ = "ncclSend";
    if (auto r = api_->send(work.at(theirs.begin), theirs.count, work.type, s, group_, stream_);
        r.state == State::failed)
      return r;
  }
  return {};
}

void NcclEngine::add_segment(Work& work, int segment) {
  if (segment >= segments(work)) return;
  auto const own = piece(work, rank_, segment);
  if (own.count == 0) return;
  sums_->add({.inout = work.at(own.begin),
              .others = workspace_.get(),
              .stride = work.bytes(piece_length(work)),
              .rank = rank_,
              .ranks = size_,
              .count = own.count,
              .type = work.type,
              .op = work.op,
              .stream = stream_});
}

NcclEngine::Result NcclEngine::gather_sums(Work& work) {
  auto const each = even_share(work, size_), rest = work.count - each * size_;
  if (each > 0) {
    call_ = "ncclAllGather";
    auto r = api_->all_gather(work.at(each * rank_), work.data, each, work.type, group_, stream_);
    if (r.state == State::failed) return r;
  }
  if (rest == 0) return {};
  call_ = "ncclBroadcast";
  return api_->broadcast(work.at(each * size_), rest, work.type, size_ - 1, group_, stream_);
}

}  // namespace p3d::comm::detail
