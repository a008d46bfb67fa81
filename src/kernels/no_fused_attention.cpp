// SPDX-License-Identifier: Apache-2.0
// The vendor's attention in builds that have none.
#include "attention_fused.hpp"

namespace p3d::kernels {

std::unique_ptr<FusedAttention> vendor_attention(FusedOptions const&) { return nullptr; }

}  // namespace p3d::kernels
