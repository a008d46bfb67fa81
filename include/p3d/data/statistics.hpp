// SPDX-License-Identifier: Apache-2.0
#pragma once
// Statistics of files of tokens.

#include <p3d/data/token_files.hpp>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace p3d::data {

/// Counts of tokens and documents.
struct TokenStatistics {
  std::int64_t tokens = 0;
  std::map<std::int64_t, std::int64_t> lengths;  ///< the number of documents of each length in tokens
  std::int64_t distinct = 0;                     ///< number of different ids that occur
  int highest = 0;                               ///< the highest id that occurs
  /// The most frequent ids with their counts, most frequent first; among equal ones the smaller id first.
  std::vector<std::pair<int, std::int64_t>> most_frequent;
  std::int64_t ends = 0;  ///< number of tokens that are `eod`

  std::int64_t documents() const;
  /// The mean number of tokens of a document.
  double mean() const;
  /// The smallest length that at least half of the documents do not exceed.
  std::int64_t median() const;
};

/// Reads all tokens. Documents are those that the files know, or else end with token `eod` (-1: none), and then the
/// tokens behind the last one count as a document too. `top`: how many of the most frequent ids are wanted.
TokenStatistics measure(TokenFiles const& files, int eod, std::size_t top);

}  // namespace p3d::data
