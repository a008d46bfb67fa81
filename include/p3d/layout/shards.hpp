// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sharding of the training state (ZeRO, Rajbhandari et al., arXiv 1910.02054): which elements of a stage's flat buffers
// a rank owns, when replicas divide the state among them. The unit is the bucket, whose gradients are reduced at once:
// every replica owns one run of each bucket, so of each parameter a run or nothing. No file depends on it: checkpoints
// hold global arrays.
//
// Hybrid sharding (Zhao et al., arXiv 2304.11277, section 3.2.2): of d replicas, each group of `over` neighbours owns
// all of the state; weights travel within such a group only. Gradients are still summed over all d replicas at once,
// each of which gets one of d parts, so their bits do not depend on `over`: part p is owned by the replicas p mod over
// of the groups, which exchange these parts between groups after the sum.
//
// Example: 4 replicas without groups own a quarter of each bucket; with over = 2 each owns two quarters, and replicas 0
// and 2 own the same ones.

#include <p3d/layout/params.hpp>

#include <cstdint>
#include <functional>
#include <vector>

namespace p3d::layout {

/// A run of neighbouring parameters with the same gradient axes, of one layer or of a group of layers. A tied parameter
/// is alone, so that both of its stages cut it alike.
struct Bucket {
  std::int64_t begin = 0;  ///< elements of the flat buffer
  std::int64_t end = 0;
  std::size_t first = 0;  ///< parameters [first, last) (indices into StageParams::items)
  std::size_t last = 0;
  AxisSet axes;  ///< the gradient axes
  std::int64_t size() const { return end - begin; }
};

/// When a bucket is closed.
struct BucketRule {
  std::int64_t elements = 0;  ///< a bucket within one layer is closed when it has so many
  /// Above 0: layers [k layers, (k + 1) layers) of the model are a group, and a bucket holds all of a group that a
  /// stage has next to each other, whatever `elements` says.
  int layers = 0;
  BucketRule(std::int64_t e, int l = 0) : elements(e), layers(l) {}
};

/// Makes the buckets, in the order of the flat buffer. They are filled from the back, as a backward pass finishes
/// parameters. Without groups of layers the result does not depend on how many stages share the layers.
std::vector<Bucket> make_buckets(StageParams const& params, BucketRule const& rule);

/// A run of elements of one bucket that a rank owns.
struct OwnedRun {
  std::int64_t begin = 0;  ///< first element in the flat buffer
  std::int64_t count = 0;
  std::int64_t packed = 0;  ///< first element in the packed buffer of all owned runs
  bool copy = false;        ///< a replica of an earlier group owns it too
};

/// The division of a stage's buckets among the ranks along each bucket's gradient axes.
struct StateShard {
  std::vector<Bucket> buckets;
  /// The bounds of the parts, by bucket: part r is [bounds[r], bounds[r + 1]), in elements from the bucket's begin;
  /// every bound but the last is a multiple of StageParams::alignment.
  std::vector<std::vector<std::int64_t>> bounds;
  std::vector<OwnedRun> parts;  ///< one for each bucket: the part whose gradients this rank sums
  /// The owned runs: for each bucket its part, or the whole bucket where nothing is divided; for a hybrid bucket one
  /// run for each group.
  std::vector<OwnedRun> owned;
  std::vector<std::size_t> first_owned;  ///< bucket b has owned [first_owned[b], first_owned[b + 1])
  std::vector<bool> hybrid;              ///< one for each bucket; true: groups of `over` replicas own it
  std::int64_t over = 0;                 ///< replicas of a group; 0 where no bucket is hybrid
  bool divided = false;
  std::int64_t owned_size = 0;  ///< elements of the packed buffer; the flat size where nothing is divided
  /// True when all ranks get the whole sums of gradients. Otherwise they get only their parts, which other groups lack.
  bool sums_whole = true;
};

/// Options of the division of the state among replicas.
struct Division {
  bool divided = false;
  /// Replicas of a group of hybrid sharding; 0: all are one group. It counts only where it divides the number of
  /// replicas (dp) and is less, and for buckets whose gradients are summed over dp alone; other buckets are divided
  /// over all.
  std::int64_t over = 0;
  bool whole_gradients = true;  ///< hybrid: there is room for whole gradients all the time
};

/// Divides the buckets of a stage. `here` are the rank's coordinates. The rank sums, of each bucket, the part whose
/// number is its place in the group along the bucket's axes (RankGrid::place): its rank in their communicator, in any
/// order of the axes.
StateShard make_shard(StageParams const& params, BucketRule const& rule, RankGrid const& grid, PerAxis const& here,
                      Division const& division);

/// Requires that rank `rank` of a communicator of `size` ranks, over which bucket `bucket` is reduced or gathered, is
/// given the part that this rank sums. Otherwise a rank would own a part that another one was given.
void require_part(StateShard const& shard, std::size_t bucket, int rank, int size);
/// Requires the same for the communicators of hybrid sharding: rank `own` among the `over` neighbours of a group, which
/// own all of the state, and rank `between` among the replicas that own the same part.
void require_hybrid_part(StateShard const& shard, std::size_t bucket, int own, int between);

/// Calls visit(item, first, count) for the pieces of parameters that lie in elements [begin, begin + count) of the flat
/// buffer: elements [first, first + count) of the parameter's local block, row by row. Padding is left out.
void for_parameters(StageParams const& params, std::int64_t begin, std::int64_t count,
                    std::function<void(LocalParam const& item, std::int64_t first, std::int64_t count)> const& visit);

/// A rectangle of a parameter's local block.
struct Rectangle {
  std::int64_t row = 0, col = 0, rows = 0, cols = 0;
  std::int64_t first = 0;  ///< index of its first element in the block, row by row
};
/// Elements [first, first + count) of a local block as at most three rectangles whose elements follow each other,
/// without padding rows.
std::vector<Rectangle> rectangles(LocalParam const& item, std::int64_t first, std::int64_t count);

}  // namespace p3d::layout
