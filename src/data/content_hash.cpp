// SPDX-License-Identifier: Apache-2.0
// A hash that stands for training data. Small data are hashed whole. Of large ones, whose reading would take minutes,
// it takes the sizes and beginnings of all parts, both ends, and 1000 blocks spread over all bytes: an accident
// (another file, a file cut off or made again) changes one of these, even though a single changed token may not.
#include "data/content_hash.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace p3d::data {

namespace {

using Part = std::span<std::byte const>;

/// A hash of pieces, one after the other.
class Hash {
public:
  Hash() { XXH64_reset(state_.get(), 0); }
  void add(void const* data, std::size_t bytes) {
    if (bytes > 0) XXH64_update(state_.get(), data, bytes);
  }
  void add(std::string_view text) { add(text.data(), text.size()); }
  void add(std::uint64_t number) { add(&number, sizeof(number)); }
  std::uint64_t value() const { return XXH64_digest(state_.get()); }

private:
  std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> state_{XXH64_createState(), &XXH64_freeState};
};

/// Adds bytes [first, first + count) of all parts as one array.
void add_range(Hash& hash, std::vector<Part> const& parts, std::uint64_t first, std::uint64_t count) {
  for (auto const& part : parts) {
    if (first < part.size()) {
      auto const here = std::min<std::uint64_t>(count, part.size() - first);
      hash.add(part.data() + first, here);
      count -= here;
      first = 0;
      if (count == 0) return;
    } else {
      first -= part.size();
    }
  }
}

}  // namespace

std::uint64_t content_hash(std::string_view kind, std::vector<Part> const& parts) {
  Hash hash;
  hash.add(kind);
  std::uint64_t total = 0;
  for (auto const& part : parts) total += part.size();
  if (total <= static_cast<std::uint64_t>(hashed_whole)) {
    for (auto const& part : parts) hash.add(part.data(), part.size());
    return hash.value();
  }
  constexpr std::uint64_t block = 4096, end = 65536, blocks = 1000;
  hash.add("p3d fingerprint 1");
  hash.add(static_cast<std::uint64_t>(parts.size()));
  for (auto const& part : parts) hash.add(static_cast<std::uint64_t>(part.size()));
  for (auto const& part : parts) hash.add(part.data(), std::min<std::size_t>(part.size(), block));
  add_range(hash, parts, 0, end);
  add_range(hash, parts, total - end, end);
  // i * (total - block) / (blocks - 1) without overflow.
  auto const whole = (total - block) / (blocks - 1), rest = (total - block) % (blocks - 1);
  for (std::uint64_t i = 0; i < blocks; ++i) add_range(hash, parts, i * whole + i * rest / (blocks - 1), block);
  return hash.value();
}

}  // namespace p3d::data
