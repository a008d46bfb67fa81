// SPDX-License-Identifier: Apache-2.0
#include <p3d/layout/shards.hpp>

#include <p3d/base/error.hpp>

#include <algorithm>

namespace p3d::layout {

namespace {

/// The first element of part r, a multiple of the alignment; `size` for r = `parts`.
std::int64_t bound(std::int64_t size, std::int64_t parts, std::int64_t r) {
  if (r == parts) return size;
  auto const even = size / parts * r + size % parts * r / parts;
  return std::min(size, (even + StageParams::alignment - 1) / StageParams::alignment * StageParams::alignment);
}

}  // namespace

std::vector<Bucket> make_buckets(StageParams const& params, BucketRule const& rule) {
  auto const& items = params.items();
  std::vector<Bucket> out;
  // The embedding side (-1) is a group of its own, and the head side counts as a layer.
  auto const group = [&](int layer) { return rule.layers == 0 || layer < 0 ? layer : layer / rule.layers; };
  bool open = false;
  for (std::size_t i = items.size(); i-- > 0;) {
    auto const& spec = *items[i].spec;
    auto const axes = spec.gradient_axes();
    if (open) {
      auto const& next = *items[i + 1].spec;
      // A vocabulary that is divided over the pipeline may lie in another piece of the rank than the norm before it.
      bool const one_piece = spec.over_pipeline() == next.over_pipeline();
      open = axes == out.back().axes && group(spec.layer) == group(next.layer) && one_piece && !spec.tied && !next.tied;
    }
    if (!open) out.push_back({0, items[i].offset + items[i].size(), i, i + 1, axes});
    auto& b = out.back();
    b.begin = items[i].offset;
    b.first = i;
    open = rule.layers > 0 || b.size() < rule.elements;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

StateShard make_shard(StageParams const& params, BucketRule const& rule, RankGrid const& grid, PerAxis const& here,
                      Division const& division) {
  StateShard shard;
  int const rank = grid.rank(here);
  bool const divided = shard.divided = division.divided;
  auto const replicas = std::int64_t{grid.sizes().dp}, place_among = std::int64_t{here.dp};
  bool const groups = divided && division.over > 0 && division.over < replicas;
  if (groups) {
    P3D_REQUIRE(replicas % division.over == 0, "groups of replicas have one size");
    shard.over = division.over;
  }
  shard.sums_whole = !divided || (groups && division.whole_gradients);
  shard.buckets = make_buckets(params, rule);
  for (auto const& b : shard.buckets) {
    std::int64_t const parts = grid.group_size(b.axes), place = grid.place(b.axes, rank);
    auto& bounds = shard.bounds.emplace_back();
    for (std::int64_t r = 0; r <= parts; ++r) bounds.push_back(bound(b.size(), parts, r));
    auto const run_of = [&](std::int64_t part) {
      auto const at = static_cast<std::size_t>(part);
      return OwnedRun{b.begin + bounds[at], bounds[at + 1] - bounds[at], shard.owned_size};
    };
    bool const hybrid = groups && b.axes.has(Axis::dp) && parts == replicas;
    shard.hybrid.push_back(hybrid);
    shard.first_owned.push_back(shard.owned.size());
    auto const own = [&](OwnedRun const& run) {
      shard.owned.push_back(run);
      shard.owned_size += (run.count + StageParams::alignment - 1) / StageParams::alignment * StageParams::alignment;
    };
    if (!divided) {
      shard.parts.push_back(run_of(place));
      shard.owned.push_back({b.begin, b.size(), b.begin});
    } else if (!hybrid) {
      shard.parts.push_back(run_of(place));
      own(run_of(place));
    } else {
      for (std::int64_t part = place_among % shard.over; part < parts; part += shard.over) {
        auto run = run_of(part);
        run.copy = place_among >= shard.over;
        if (part == place_among) shard.parts.push_back(run);
        own(run);
      }
    }
  }
  shard.first_owned.push_back(shard.owned.size());
  if (!divided) shard.owned_size = params.flat_size();
  return shard;
}

void require_part(StateShard const& shard, std::size_t bucket, int rank, int size) {
  auto const& bounds = shard.bounds[bucket];
  P3D_REQUIRE(std::ssize(bounds) == std::ptrdiff_t{size} + 1, "a bucket has a part for each rank of its communicator");
  auto const at = static_cast<std::size_t>(rank);
  auto const& part = shard.parts[bucket];
  P3D_REQUIRE(part.begin == shard.buckets[bucket].begin + bounds[at] && part.count == bounds[at + 1] - bounds[at],
              "a rank owns the part of a bucket that its communicator gives it");
}

void require_hybrid_part(StateShard const& shard, std::size_t bucket, int own, int between) {
  auto const first = shard.first_owned[bucket], end = shard.first_owned[bucket + 1];
  for (auto at = first; at < end; ++at) {
    auto const part = (at - first) * static_cast<std::size_t>(shard.over) + static_cast<std::size_t>(own);
    P3D_REQUIRE(shard.owned[at].begin == shard.buckets[bucket].begin + shard.bounds[bucket][part],
                "a replica owns the parts of a bucket that its group gives it");
  }
  auto const mine = first + static_cast<std::size_t>(between);
  P3D_REQUIRE(mine < end && shard.owned[mine].begin == shard.parts[bucket].begin,
              "a replica sums the part of a bucket that it has between the groups");
}

void for_parameters(StageParams const& params, std::int64_t begin, std::int64_t count,
                    std::function<void(LocalParam const& item, std::int64_t first, std::int64_t count)> const& visit) {
  auto const& items = params.items();
  auto it = std::upper_bound(items.begin(), items.end(), begin,
                             [](std::int64_t at, LocalParam const& item) { return at < item.offset; });
  if (it != items.begin()) --it;
  for (; it != items.end() && it->offset < begin + count; ++it) {
    auto const first = std::max(begin, it->offset), end = std::min(begin + count, it->offset + it->size());
    if (first < end) visit(*it, first - it->offset, end - first);
  }
}

std::vector<Rectangle> rectangles(LocalParam const& item, std::int64_t first, std::int64_t count) {
  P3D_REQUIRE(first >= 0 && first + count <= item.size(), "the elements are the parameter's");
  std::vector<Rectangle> out;
  auto const end = std::min(first + count, item.valid_rows * item.cols);
  while (first < end) {
    auto const row = first / item.cols, col = first % item.cols;
    Rectangle r{row, col, 1, std::min(item.cols - col, end - first), first};
    if (col == 0 && end - first >= item.cols) {
      r.rows = (end - first) / item.cols;
      r.cols = item.cols;
    }
    out.push_back(r);
    first += r.rows * r.cols;
  }
  return out;
}

}  // namespace p3d::layout
