// SPDX-License-Identifier: Apache-2.0
#pragma once
// The choice, at the start of a run on GPUs, whether attention is one kernel of a vendor's library (linalg.attention).

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>

#include <functional>
#include <string>

namespace p3d::report {

/// The result of a trial: attention of one sample of the model's shape, forward and backward, by the library and by
/// GEMMs.
struct AttentionTrial {
  bool taken = false;    ///< the library took both calls
  std::string refusal;   ///< the library's reason when it refused a call
  double apart = 0.0;    ///< relative distance of the two results (of out, dq, dk and dv in all)
  double fused_s = 0.0;  ///< seconds of the better of two calls of the library, forward and backward
  double gemms_s = 0.0;  ///< seconds of the better of two calls of the GEMMs
};
/// Results of 16 bits that are further apart than this are not the same attention: rounding alone leaves about 0.005.
inline constexpr double attention_tolerance = 0.02;

/// Makes the trial, in scratch memory of some ten times the size of a sample's queries.
template <class P>
AttentionTrial try_attention(config::Config const& config);

/// Attention of one sample of the model's shape, forward and backward, in the way that is in force: each call of the
/// returned function computes both and waits for them. It owns the memory that they need.
template <class P>
std::function<void()> attention_work(config::Config const& config);

/// Sets kernels::use_fused_attention by linalg.attention. For "auto" and "fused" a trial decides, which must go well on
/// all ranks. For "auto" without run.deterministic the library must be quicker too, by rank 0's clock. Returns a line
/// for the log, "" where there was no choice (hosts, builds without a library). Collective.
template <class P>
std::string choose_attention(config::Config const& config, comm::Communicator& world);

}  // namespace p3d::report
