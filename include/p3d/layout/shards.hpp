// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which elements of a stage's flat buffers a rank owns, when replicas divide the state of training among them (ZeRO,
// Rajbhandari et al., arXiv 1910.02054). The unit is the bucket, whose gradients are reduced together: of each bucket
// every replica owns one run, so of each parameter a run or nothing. No file depends on it: checkpoints hold global
// arrays.
//
// Hybrid sharding (Zhao et al., arXiv 2304.11277, section 3.2.2): of d replicas, `over` neighbours own all of the state
// together, and so do the next `over` ones; weights travel within such a group only. Gradients are still summed over
// all d replicas at once, each of which gets one of d parts, so their bits do not depend on `over`: part p is owned by
// the replicas p mod over of the groups, which exchange these parts between groups after the sum.

#include <p3d/layout/params.hpp>

#include <cstdint>
#include <functional>
#include <vector>

namespace p3d::layout {

/// A run of neighbouring parameters of one layer with the same gradient axes. A tied parameter is alone, so that both
/// its stages cut it alike.
struct Bucket {
  std::int64_t begin = 0;  ///< elements of the flat buffer
  std::int64_t end = 0;
  std::size_t first = 0;  ///< parameters (indices into StageParams::items)
  std::size_t last = 0;
  AxisSet axes;
  std::int64_t size() const { return end - begin; }
};

/// In the order of the flat buffer. Made from the back, as a backward pass finishes parameters: a bucket is closed when
/// it has `elements`. How many stages share the layers does not matter.
std::vector<Bucket> make_buckets(StageParams const& params, std::int64_t elements);

/// Elements that a rank owns, of one bucket.
struct OwnedRun {
  std::int64_t begin = 0;  ///< in the flat buffer
  std::int64_t count = 0;
  std::int64_t packed = 0;  ///< where it begins when the owned runs lie one behind the other
  bool copy = false;        ///< a replica of another group owns it too, and is the first that does
};

/// The division of a stage's buckets among the ranks along each bucket's gradient axes.
struct StateShard {
  std::vector<Bucket> buckets;
  /// By bucket: part r is [bounds[r], bounds[r + 1]), elements counted from the bucket's begin; every bound but the
  /// last is a multiple of StageParams::alignment.
  std::vector<std::vector<std::int64_t>> bounds;
  std::vector<OwnedRun> parts;  ///< by bucket: the part whose gradients this rank sums
  /// By bucket: the same, or the whole bucket where nothing is divided; of a hybrid bucket one run for each group.
  std::vector<OwnedRun> owned;
  std::vector<std::size_t> first_owned;  ///< bucket b has owned [first_owned[b], first_owned[b + 1])
  std::vector<bool> hybrid;              ///< by bucket: whether groups of `over` replicas own it
  std::int64_t over = 0;                 ///< see above; 0 where no bucket is hybrid
  bool divided = false;
  std::int64_t owned_size = 0;  ///< elements of all that is owned, packed; the flat size where nothing is divided
  /// Whether all ranks get the whole sums of gradients. Else only their parts, which other groups lack.
  bool sums_whole = true;
};

/// How the state is divided among replicas.
struct Division {
  bool divided = false;
  /// Hybrid sharding, where it divides the number of replicas (dp) and is less: of buckets whose gradients are summed
  /// over dp alone; others are divided over all. 0: all.
  std::int64_t over = 0;
  bool whole_gradients = true;  ///< there is room for them all the time
};

/// `here`: the rank's coordinates. Of each bucket the rank sums the part whose number is its place in the group along
/// the bucket's axes (RankGrid::place): its rank in their communicator, in any order of the axes.
StateShard make_shard(StageParams const& params, std::int64_t bucket_elements, RankGrid const& grid,
                      PerAxis const& here, Division const& division);

/// Requires that rank `rank` of a communicator of `size` ranks, over which bucket `bucket` is reduced or gathered, is
/// given the part that this rank sums. Otherwise ranks would own what another of them was given.
void require_part(StateShard const& shard, std::size_t bucket, int rank, int size);
/// The same for the communicators of hybrid sharding: rank `own` of the `over` neighbours that own all of the state
/// together, and rank `between` of the replicas that own the same.
void require_hybrid_part(StateShard const& shard, std::size_t bucket, int own, int between);

/// Calls visit(item, first, count) for the parts of parameters in elements [begin, begin + count) of the flat buffer:
/// elements [first, first + count) of the parameter's local block, row by row. Padding is left out.
void for_parameters(StageParams const& params, std::int64_t begin, std::int64_t count,
                    std::function<void(LocalParam const& item, std::int64_t first, std::int64_t count)> const& visit);

/// A rectangle of a parameter's local block.
struct Rectangle {
  std::int64_t row = 0, col = 0, rows = 0, cols = 0;
  std::int64_t first = 0;  ///< its first element, row by row, in the block
};
/// Elements [first, first + count) of a local block as at most three rectangles whose elements follow each other; of
/// rows that exist in the model.
std::vector<Rectangle> rectangles(LocalParam const& item, std::int64_t first, std::int64_t count);

}  // namespace p3d::layout
