// SPDX-License-Identifier: Apache-2.0
#pragma once
// Damaged and hostile checkpoints, made from a good one. Each is a function of (seed, number) alone.

#include <p3d/io/checkpoint.hpp>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace p3d::fuzz {

/// Numbers of one file.
class Draw {
public:
  Draw(std::uint64_t seed, std::uint64_t number) : engine_(seed * 0x9e3779b97f4a7c15ULL + number) {}
  std::uint64_t bits() { return engine_(); }
  /// 0 <= result < n.
  std::uint64_t below(std::uint64_t n) { return engine_() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class T>
  T const& of(std::vector<T> const& choices) {
    return choices[below(choices.size())];
  }
  /// Numbers that break sums, products, casts and allocations, and small ones.
  std::int64_t extreme();

private:
  std::mt19937_64 engine_;
};

/// What was done to the file.
struct Mutation {
  std::string kind;
  std::string detail;
  /// What the refusal must name; "" when any refusal will do.
  std::string named;
  /// A refusal, a checksum that differs, or either of acceptance and refusal.
  enum class Expect { refusal, damage, anything } expect = Expect::refusal;
};

/// A good checkpoint of small arrays.
void make_good(std::string const& path, io::Element element, bool moments);

/// Copies `good` to `path` and changes it.
Mutation mutate(io::Checkpoint const& good, std::string const& path, Draw& draw);

}  // namespace p3d::fuzz
