// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL over CUDA or RCCL over HIP: the libraries have the same functions, and the runtimes have the same names behind
// another prefix. P3D_GPU(EventRecord) is cudaEventRecord or hipEventRecord.

#if defined(P3D_RCCL)
#include <hip/hip_runtime_api.h>
#include <rccl/rccl.h>
#define P3D_GPU(name) hip##name
#define P3D_NCCL_NAME "RCCL"
#else
#include <cuda_runtime_api.h>
#include <nccl.h>
#define P3D_GPU(name) cuda##name
#define P3D_NCCL_NAME "NCCL"
#endif

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 14, 0), "p3d wants NCCL 2.14 or newer: calls that do not block");
