// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention as one kernel of a vendor's library (cuDNN), instead of products of blocks and a softmax between them. A
// call goes there if it is one for it: 16 bits in and out, every sample whole, no dropout, no documents; and if the
// library has a kernel for its shape that works in the call's scratch memory. Other calls go on as before.

#include <cstdint>
#include <string>

namespace p3d::kernels {

/// "cuDNN 9.19.0", or "" in a build without such a library.
std::string fused_attention_name();
/// From now on calls go to the library, or no longer. At first they do not. `deterministic`: the backward pass gives
/// the same bits every time, which costs the library time and memory. Not inside a parallel region.
void use_fused_attention(bool use, bool deterministic = true);
/// While it lives, no call goes to the library.
class WithoutFusedAttention {
public:
  WithoutFusedAttention();
  ~WithoutFusedAttention();
  WithoutFusedAttention(WithoutFusedAttention const&) = delete;
  WithoutFusedAttention& operator=(WithoutFusedAttention const&) = delete;
};
/// Calls that the library has carried out in this process, and why it refused the last one that it did not ("" if
/// none).
std::int64_t fused_attention_calls();
std::string fused_attention_refusal();

}  // namespace p3d::kernels
