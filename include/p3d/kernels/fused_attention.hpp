// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention as one kernel of a vendor's library (cuDNN), instead of GEMMs of blocks and a softmax between them. A call
// goes to the library if it has 16 bits in and out, whole samples and no dropout, and if the library has a kernel for
// its shape that works in the call's scratch memory. Other calls take the GEMMs.

#include <cstdint>
#include <string>

namespace p3d::kernels {

/// The library's name and version, such as "cuDNN 9.19.0", or "" in a build without such a library.
std::string fused_attention_name();
/// Sends the calls of this process to the library from now on, or no longer. At the start of a process they do not go
/// there. With `deterministic` the backward pass gives the same bits every time, which costs the library time and
/// memory. Must not be called inside a parallel region.
void use_fused_attention(bool use, bool deterministic = true);
/// True where calls of this process go to the library.
bool uses_fused_attention();
/// The library plans each length of samples by itself, in tens of milliseconds to a second, and keeps the plan. Lengths
/// that vary are multiples of so many tokens there.
inline constexpr std::int64_t fused_length_step = 128;
/// Takes so many bytes for the library to work in, for calls whose scratch memory is smaller; 0 gives them back. Kokkos
/// must be running.
void reserve_fused_workspace(std::int64_t bytes);
/// Keeps all calls from the library as long as an object of this class lives.
class WithoutFusedAttention {
public:
  WithoutFusedAttention();
  ~WithoutFusedAttention();
  WithoutFusedAttention(WithoutFusedAttention const&) = delete;
  WithoutFusedAttention& operator=(WithoutFusedAttention const&) = delete;
};
/// The number of calls that the library has carried out in this process.
std::int64_t fused_attention_calls();
/// The reason why the library refused the last call that it refused; "" if there is none.
std::string fused_attention_refusal();

}  // namespace p3d::kernels
