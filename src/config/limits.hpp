#pragma once
// The largest values of each kind. They are far beyond any run, and small enough that products of sizes (parameters of
// all layers, ranks of the mesh, sequences of a step) stay within 64 bits.

#include <cstdint>

namespace p3d::config::limits {

inline constexpr std::int64_t axis = std::int64_t{1} << 20;   ///< ranks along an axis, microbatches, micro
inline constexpr std::int64_t batch = std::int64_t{1} << 60;  ///< axis^3
inline constexpr std::int64_t hidden = std::int64_t{1} << 20;
inline constexpr std::int64_t width = std::int64_t{1} << 24;  ///< vocabulary, ffn, sequence length
inline constexpr std::int64_t layers = std::int64_t{1} << 16;
inline constexpr std::int64_t steps = 1'000'000'000'000;

}  // namespace p3d::config::limits
