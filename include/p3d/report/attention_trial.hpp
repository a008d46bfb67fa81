// SPDX-License-Identifier: Apache-2.0
#pragma once
// At the start of a run on GPUs: whether attention is one kernel of a vendor's library (linalg.attention).

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>

#include <string>

namespace p3d::report {

/// Numbers and times of attention of one sample of the model's shape, forward and backward, both ways.
struct AttentionTrial {
  bool taken = false;    ///< the library took both calls
  std::string refusal;   ///< why not
  double apart = 0.0;    ///< relative distance of the two results (of out, dq, dk and dv together)
  double fused_s = 0.0;  ///< seconds of the better of two calls, forward and backward
  double gemms_s = 0.0;
};
/// Results of 16 bits that are further apart than this are not the same attention: rounding alone leaves about 0.005.
inline constexpr double attention_tolerance = 0.02;

/// With the library that attention goes to, and without it. In scratch memory of some ten copies of a sample's queries.
template <class P>
AttentionTrial try_attention(config::Config const& config);

/// Sets kernels::use_fused_attention by linalg.attention; for "auto" and "fused" by a trial, which counts on every rank
/// if it went well on all. For "auto" without run.deterministic the library must be quicker too, by rank 0's clock.
/// Returns a line for the log, "" where nothing was to be chosen (hosts, builds without a library). Collective.
template <class P>
std::string choose_attention(config::Config const& config, comm::Communicator& world);

}  // namespace p3d::report
