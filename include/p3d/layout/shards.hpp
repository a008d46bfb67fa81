// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which elements of a stage's flat buffers a rank owns, when replicas divide the state of training among them (ZeRO,
// Rajbhandari et al., arXiv 1910.02054). The unit is the bucket, whose gradients are reduced together: of each bucket
// every replica owns one run, so of each parameter a run or nothing. No file depends on it: checkpoints hold global
// arrays.

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
};

/// The division of a stage's buckets among the ranks along each bucket's gradient axes.
struct StateShard {
  std::vector<Bucket> buckets;
  /// By bucket: part r is [bounds[r], bounds[r + 1]), elements counted from the bucket's begin; every bound but the
  /// last is a multiple of StageParams::alignment.
  std::vector<std::vector<std::int64_t>> bounds;
  std::vector<OwnedRun> parts;  ///< by bucket: this rank's part
  std::vector<OwnedRun> owned;  ///< by bucket: the same, or the whole bucket where nothing is divided
  bool divided = false;
  std::int64_t owned_size = 0;  ///< elements of all that is owned, packed; the flat size where nothing is divided
};

/// `here`: the rank's coordinates. `divided`: whether ranks own their parts alone.
StateShard make_shard(StageParams const& params, std::int64_t bucket_elements, PerAxis const& sizes,
                      PerAxis const& here, bool divided);

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
