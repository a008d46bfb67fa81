// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is in files of tokens.

#include <p3d/data/token_files.hpp>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace p3d::data {

struct TokenStatistics {
  std::int64_t tokens = 0;
  std::map<std::int64_t, std::int64_t> lengths;  ///< documents by their number of tokens
  std::int64_t distinct = 0;                     ///< ids that occur
  int highest = 0;                               ///< of them
  /// The most frequent ids with their counts, most frequent first, the smaller one of equal ones.
  std::vector<std::pair<int, std::int64_t>> most_frequent;
  std::int64_t ends = 0;  ///< tokens that are `eod`

  std::int64_t documents() const;
  double mean() const;
  /// The smallest length that at least half of the documents do not exceed.
  std::int64_t median() const;
};

/// Reads everything. Documents are those that the files know, or else what ends with token `eod` (-1: none), the rest
/// at the end of the files included. `top`: so many of the most frequent ids.
TokenStatistics measure(TokenFiles const& files, int eod, std::size_t top);

}  // namespace p3d::data
