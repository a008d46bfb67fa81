// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/engine/precision.hpp>

#include <fmt/format.h>

#include <type_traits>

namespace p3d::engine {

inline char const* name_of(device::Fp32) { return "device::Fp32"; }
inline char const* name_of(device::Fp64) { return "device::Fp64"; }
inline char const* name_of(device::Bf16) { return "device::Bf16"; }
inline char const* name_of(device::Fp16) { return "device::Fp16"; }
inline char const* name_of(device::Bf16Gradients) { return "device::Bf16Gradients"; }

/// Throws base::Error (bad_input) unless P is the policy of the input: the trainer's type and the input both say which
/// types of numbers there are.
template <class P>
void require_policy(config::Config const& config) {
  with_policy(config, [&](auto policy) {
    if constexpr (!std::is_same_v<decltype(policy), P>)
      base::refuse({.expected = fmt::format("an input for which with_policy chooses {}, as the trainer's type is "
                                            "Trainer<{}>",
                                            name_of(P{}), name_of(P{})),
                    .found = fmt::format("run.precision = \"{}\" with precision.gradients = \"{}\", for which it "
                                         "chooses {}",
                                         to_string(config.run.precision), to_string(config.precision.gradients),
                                         name_of(policy)),
                    .where = "constructor of p3d::engine::Trainer",
                    .fix = "make the trainer inside p3d::engine::with_policy(config, ...), or set run.precision"});
  });
}

}  // namespace p3d::engine
