// SPDX-License-Identifier: Apache-2.0
#pragma once
// The largest values of each kind. They are far beyond any run, and small enough that products of sizes (parameters of
// all layers, ranks of the mesh, sequences of a step) fit into 64 bits.

#include <cstddef>
#include <cstdint>

namespace p3d::config::limits {

inline constexpr std::int64_t axis = std::int64_t{1} << 20;   ///< ranks along an axis, microbatches, micro
inline constexpr std::int64_t batch = std::int64_t{1} << 60;  ///< axis^3
inline constexpr std::int64_t hidden = std::int64_t{1} << 20;
inline constexpr std::int64_t width = std::int64_t{1} << 24;  ///< vocabulary, ffn, sequence length
inline constexpr std::int64_t layers = std::int64_t{1} << 16;
inline constexpr std::int64_t experts = std::int64_t{1} << 16;
/// Groups of experts, of which tokens choose some first: the router counts them in registers
/// (kernels::most_expert_groups).
inline constexpr std::int64_t expert_groups = 64;
inline constexpr std::int64_t steps = 1'000'000'000'000;
inline constexpr std::int64_t tokens = std::int64_t{1} << 60;       ///< tokens of a whole run
inline constexpr std::int64_t bytes = std::int64_t{1} << 58;        ///< bytes of one kind of memory (256 PiB)
inline constexpr std::int64_t input_bytes = std::int64_t{1} << 20;  ///< bytes of an input file
inline constexpr std::size_t name = 100;                            ///< bytes of run.name

}  // namespace p3d::config::limits
