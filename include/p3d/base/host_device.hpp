// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions of this room that device code calls too: there is no Kokkos here to mark them.

#if defined(__CUDACC__) || defined(__HIPCC__)
#define P3D_HOST_DEVICE __host__ __device__
#else
#define P3D_HOST_DEVICE
#endif

// For short functions that loops call: a call would keep compilers from vectorising the loop.
#if defined(__GNUC__) && !defined(__CUDACC__) && !defined(__HIPCC__)
#define P3D_ALWAYS_INLINE [[gnu::always_inline]] inline
#else
#define P3D_ALWAYS_INLINE P3D_HOST_DEVICE inline
#endif

// Whose instructions the code is being compiled to: neither, on the host.
#if defined(__CUDA_ARCH__)
#define P3D_ON_NVIDIA __CUDA_ARCH__
#elif defined(__HIP_DEVICE_COMPILE__) && __HIP_DEVICE_COMPILE__
#define P3D_ON_AMD
#endif
