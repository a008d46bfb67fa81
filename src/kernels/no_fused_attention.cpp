// SPDX-License-Identifier: Apache-2.0
// For builds without a vendor's attention.
#include "attention_fused.hpp"

namespace p3d::kernels {

std::unique_ptr<FusedAttention> vendor_attention(FusedOptions const&) { return nullptr; }

}  // namespace p3d::kernels
