// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/experts.hpp>

#include <p3d/base/error.hpp>

#include <algorithm>
#include <utility>

namespace p3d::layout {

namespace {
std::int64_t at(std::vector<std::int64_t> const& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; }
}  // namespace

Range ExpertGroup::experts_of(int rank) const {
  std::int64_t const first = std::int64_t{ep_of[static_cast<std::size_t>(rank)]} * local_experts();
  return {first, first + local_experts()};
}

ExpertGroup expert_group(RankGrid const& grid, int rank, int experts) {
  ExpertGroup out;
  out.experts = experts;
  out.ep = grid.sizes().ep;
  out.etp = grid.sizes().etp;
  out.ep_of.clear();
  AxisSet const axes{Axis::etp, Axis::ep};
  for (int member : grid.group(axes, rank)) out.ep_of.push_back(grid.coordinates(member).ep);
  return out;
}

bool exchanges_across(RankGrid const& grid, Axis axis) {
  auto const members = grid.group({Axis::etp, Axis::ep}, 0);
  return std::any_of(members.begin(), members.end(), [&](int rank) { return grid.coordinates(rank)[axis] != 0; });
}

ExpertDispatch::ExpertDispatch(ExpertGroup const& group, int rank, std::vector<std::int64_t> counts,
                               std::int64_t most_rows)
    : group_(group), rank_(rank), counts_(std::move(counts)) {
  P3D_REQUIRE(group_.experts % group_.ep == 0 && group_.size() == group_.ep * group_.etp,
              "every rank of the group has equally many experts");
  P3D_REQUIRE(std::ssize(counts_) == std::int64_t{group_.size()} * group_.experts, "each rank counts each expert");
  P3D_REQUIRE(most_rows >= group_.size(), "there is room for a row of every rank");
  // The rows of the fullest rank in a pass.
  auto const most_of = [&](int passes) {
    std::int64_t most = 0;
    for (int to = 0; to < group_.size(); ++to) {
      std::int64_t rows = 0;
      for (int from = 0; from < group_.size(); ++from)
        rows += (count(from, group_.experts_of(to)) + passes - 1) / passes;
      most = std::max(most, rows);
    }
    return most;
  };
  // This is the least possible number of passes; it is a little more where messages do not divide evenly.
  auto const all = most_of(1);
  passes_ = static_cast<int>(std::max<std::int64_t>(1, (all + most_rows - 1) / most_rows));
  while (most_of(passes_) > most_rows) ++passes_;
}

std::int64_t ExpertDispatch::count(int from, Range experts) const {
  std::int64_t sum = 0;
  for (auto e = experts.begin; e < experts.end; ++e) sum += at(counts_, std::int64_t{from} * group_.experts + e);
  return sum;
}

Range ExpertDispatch::share(int pass, int from, int to) const {
  return even_share(count(from, group_.experts_of(to)), passes_, pass);
}

Range ExpertDispatch::part(int pass, int from, int expert) const {
  auto const experts = group_.experts_of(rank_);
  auto const all = share(pass, from, rank_);
  auto const before = count(from, {experts.begin, experts.begin + expert});
  auto const here = at(counts_, std::int64_t{from} * group_.experts + experts.begin + expert);
  return {std::clamp(all.begin - before, std::int64_t{0}, here), std::clamp(all.end - before, std::int64_t{0}, here)};
}

std::int64_t ExpertDispatch::rows(int pass) const {
  std::int64_t sum = 0;
  for (int from = 0; from < group_.size(); ++from) sum += share(pass, from, rank_).size();
  return sum;
}

std::int64_t ExpertDispatch::all_rows() const {
  std::int64_t sum = 0;
  for (int from = 0; from < group_.size(); ++from) sum += count(from, group_.experts_of(rank_));
  return sum;
}

Range ExpertDispatch::sent_to(int pass, int to) const {
  auto const before = count(rank_, {0, group_.experts_of(to).begin});
  auto const part = share(pass, rank_, to);
  return {before + part.begin, before + part.end};
}

Range ExpertDispatch::received_from(int pass, int from) const {
  std::int64_t before = 0;
  for (int r = 0; r < from; ++r) before += share(pass, r, rank_).size();
  return {before, before + share(pass, from, rank_).size()};
}

std::vector<std::int64_t> ExpertDispatch::offsets(int pass) const {
  std::vector<std::int64_t> out{0};
  for (int e = 0; e < group_.local_experts(); ++e) {
    out.push_back(out.back());
    for (int from = 0; from < group_.size(); ++from) out.back() += part(pass, from, e).size();
  }
  return out;
}

std::vector<int> ExpertDispatch::received_order(int pass) const {
  auto const local = group_.local_experts();
  std::vector<std::int64_t> next;  // by sender: the first received row of the current expert
  next.reserve(static_cast<std::size_t>(group_.size()));
  for (int from = 0; from < group_.size(); ++from) next.push_back(received_from(pass, from).begin);
  std::vector<int> out;
  out.reserve(static_cast<std::size_t>(rows(pass)));
  for (int e = 0; e < local; ++e)
    for (int from = 0; from < group_.size(); ++from) {
      auto& row = next[static_cast<std::size_t>(from)];
      for (auto const n = part(pass, from, e).size(), end = row + n; row < end; ++row)
        out.push_back(static_cast<int>(row));
    }
  return out;
}

}  // namespace p3d::layout
