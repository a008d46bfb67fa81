// SPDX-License-Identifier: Apache-2.0
// Counts ids and lengths in one pass over the files. Where the files do not know their documents, an id that ends a
// document gives the lengths.
#include <p3d/data/statistics.hpp>

#include <algorithm>
#include <unordered_map>

namespace p3d::data {

namespace {

/// Ids below this are counted in an array, others in a hash table.
constexpr std::size_t in_array = std::size_t{1} << 20;

/// Counts of ids.
class Counts {
public:
  void add(int id) {
    auto const i = static_cast<std::size_t>(id);
    if (i >= in_array) {
      ++others_[id];
      return;
    }
    if (i >= array_.size()) array_.resize(std::min(in_array, 2 * i + 256), 0);
    ++array_[i];
  }
  std::vector<std::pair<int, std::int64_t>> all() const {
    std::vector<std::pair<int, std::int64_t>> out(others_.begin(), others_.end());
    for (std::size_t i = 0; i < array_.size(); ++i) {
      if (array_[i] > 0) out.emplace_back(static_cast<int>(i), array_[i]);
    }
    return out;
  }

private:
  std::vector<std::int64_t> array_;
  std::unordered_map<int, std::int64_t> others_;
};

}  // namespace

// Lengths are kept as a histogram: a corpus has many documents and few different lengths.
std::int64_t TokenStatistics::documents() const {
  std::int64_t n = 0;
  for (auto const& [length, count] : lengths) n += count;
  return n;
}

double TokenStatistics::mean() const {
  auto const n = documents();
  return n == 0 ? 0.0 : static_cast<double>(tokens) / static_cast<double>(n);
}

std::int64_t TokenStatistics::median() const {
  std::int64_t seen = 0;
  auto const all = documents();
  for (auto const& [length, count] : lengths) {
    seen += count;
    if (2 * seen >= all) return length;
  }
  return 0;
}

TokenStatistics measure(TokenFiles const& files, int eod, std::size_t top) {
  TokenStatistics out;
  out.tokens = files.size();
  files.read_ahead(true);
  for (std::int64_t d = 0; d < files.documents(); ++d) ++out.lengths[files.document(d).size()];
  Counts counts;
  std::vector<int> ids(std::size_t{1} << 16);
  std::int64_t length = 0;
  for (std::int64_t first = 0; first < out.tokens; first += std::ssize(ids)) {
    ids.resize(static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(ids), out.tokens - first)));
    files.read(first, ids);
    for (int const id : ids) {
      counts.add(id);
      ++length;
      if (id != eod) continue;
      ++out.ends;
      if (files.documents() == 0) ++out.lengths[std::exchange(length, 0)];
    }
  }
  files.read_ahead(false);
  if (files.documents() == 0 && eod >= 0 && length > 0) ++out.lengths[length];
  auto all = counts.all();
  out.distinct = std::ssize(all);
  for (auto const& [id, count] : all) out.highest = std::max(out.highest, id);
  auto const kept = all.begin() + std::min(std::ssize(all), static_cast<std::ptrdiff_t>(top));
  std::partial_sort(all.begin(), kept, all.end(), [](auto const& a, auto const& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  out.most_frequent.assign(all.begin(), kept);
  return out;
}

}  // namespace p3d::data
