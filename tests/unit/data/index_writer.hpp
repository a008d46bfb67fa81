// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pairs of files in Megatron-LM's format, for tests.

#include <support/temp_dir.hpp>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace p3d::test {

/// Files that make_megatron_order.py wrote.
inline std::string const reference = P3D_SOURCE_DIR "/tests/unit/data/reference/";

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<char const*>(&value), sizeof(value));
}

/// What an index says; right for `sizes` unless it is changed.
struct IndexFile {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t type = 4;
  std::vector<std::int32_t> sizes;
  std::vector<std::int64_t> pointers, documents;

  explicit IndexFile(std::vector<std::int32_t> tokens, std::int64_t item = 4) : sizes(std::move(tokens)) {
    std::int64_t at = 0;
    for (auto n : sizes) {
      pointers.push_back(at);
      at += n * item;
    }
    documents.resize(sizes.size() + 1);
    std::iota(documents.begin(), documents.end(), std::int64_t{0});
  }

  std::string bytes() const {
    auto out = magic;
    append(out, version);
    append(out, type);
    append(out, static_cast<std::uint64_t>(sizes.size()));
    append(out, static_cast<std::uint64_t>(documents.size()));
    for (auto n : sizes) append(out, n);
    for (auto p : pointers) append(out, p);
    for (auto d : documents) append(out, d);
    return out;
  }
};

/// Tokens first, first + 1, ... in documents of these sizes, as int32. Returns the prefix.
inline std::string write_pair(TempDir const& dir, std::string const& name, std::vector<std::int32_t> const& sizes,
                              int first = 0) {
  std::string tokens;
  auto const count = std::accumulate(sizes.begin(), sizes.end(), 0);
  for (int t = first; t < first + count; ++t) append(tokens, t);
  dir.write(name + ".bin", tokens);
  dir.write(name + ".idx", IndexFile(sizes).bytes());
  return dir / name;
}

}  // namespace p3d::test
