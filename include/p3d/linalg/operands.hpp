// SPDX-License-Identifier: Apache-2.0
#pragma once
// The type to which fp32 GEMMs round what they multiply. Weights, results and sums stay in fp32: the autocast of
// PyTorch, but that results are not rounded. No Kokkos.

namespace p3d::linalg {

/// The types of operands: fp32 as they are, TF32 with 10 bits of mantissa, or a 16-bit type.
enum class Operands { fp32, tf32, bf16, fp16 };

/// Decides to what fp32 GEMMs of this process round their operands from now on (also those of batched_gemm,
/// grouped_gemm and host_gemm). Hosts round to bf16 and fp16, and then multiply in fp32, which costs time; NVIDIA's
/// GPUs have units for all types. Returns whether it can be done here; if not, operands stay in fp32. Called by one
/// thread, outside parallel regions.
bool round_operands(Operands to);

}  // namespace p3d::linalg
