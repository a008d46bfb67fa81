// SPDX-License-Identifier: Apache-2.0
#pragma once
// A subset of the tokens of a sequence, in their order: the tokens that one rank has where they are divided over ranks
// (context parallelism). It is arithmetic on a few numbers, so that any rank knows the tokens of any other, and kernels
// need no tables. Example: of 16 tokens over 2 ranks, rank 0 may have the runs 0-3 and 12-15; its token at place 5 has
// index 13.

#include <p3d/base/host_device.hpp>

#include <cstdint>

namespace p3d::base {

/// Two runs of tokens, the second behind the first; each has `count` tokens from `first` on, `stride` apart. A token is
/// named by its number in the sequence ("index") or by its place in the set, which ascends with the index.
struct TokenSet {
  struct Run {
    std::int64_t first = 0, count = 0;
    bool operator==(Run const&) const = default;
  };
  Run runs[2]{};
  std::int64_t stride = 1;  ///< distance of neighbours in both runs

  /// The set of tokens [begin, end).
  static constexpr TokenSet range(std::int64_t begin, std::int64_t end) { return {{{begin, end - begin}, {}}, 1}; }

  /// The number of tokens in the set.
  P3D_ALWAYS_INLINE constexpr std::int64_t size() const { return runs[0].count + runs[1].count; }
  /// The index of the token at a place in [0, size()).
  P3D_ALWAYS_INLINE constexpr std::int64_t at(std::int64_t place) const {
    bool const second = place >= runs[0].count;
    return runs[second].first + (place - (second ? runs[0].count : 0)) * stride;
  }
  /// The number of tokens whose index is below `index`, which is also the place of the first other token.
  P3D_ALWAYS_INLINE constexpr std::int64_t below(std::int64_t index) const {
    return below(runs[0], index) + below(runs[1], index);
  }
  /// The tokens at places [begin, end).
  P3D_ALWAYS_INLINE constexpr TokenSet slice(std::int64_t begin, std::int64_t end) const {
    TokenSet out;
    out.stride = stride;
    std::int64_t const cut = runs[0].count;
    out.runs[0] = part(runs[0], begin < cut ? begin : cut, end < cut ? end : cut);
    out.runs[1] = part(runs[1], begin > cut ? begin - cut : 0, end > cut ? end - cut : 0);
    return out;
  }
  bool operator==(TokenSet const&) const = default;

private:
  P3D_ALWAYS_INLINE constexpr std::int64_t below(Run const& run, std::int64_t index) const {
    std::int64_t const n = index <= run.first ? 0 : (index - run.first + stride - 1) / stride;
    return n < run.count ? n : run.count;
  }
  P3D_ALWAYS_INLINE constexpr Run part(Run const& run, std::int64_t begin, std::int64_t end) const {
    return {run.first + begin * stride, end - begin};
  }
};

}  // namespace p3d::base
