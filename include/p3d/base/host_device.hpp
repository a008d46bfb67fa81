// SPDX-License-Identifier: Apache-2.0
#pragma once
// Marks for functions of this room that device code calls too: there is no Kokkos here to mark them.

#if defined(__CUDACC__) || defined(__HIPCC__)
#define P3D_HOST_DEVICE __host__ __device__
#else
#define P3D_HOST_DEVICE
#endif

// P3D_ALWAYS_INLINE is for short functions that loops call: a call would keep compilers from vectorising the loop.
#if defined(__GNUC__) && !defined(__CUDACC__) && !defined(__HIPCC__)
#define P3D_ALWAYS_INLINE [[gnu::always_inline]] inline
#else
#define P3D_ALWAYS_INLINE P3D_HOST_DEVICE inline
#endif

// P3D_ON_NVIDIA or P3D_ON_AMD is defined where code is compiled to the instructions of such a GPU, neither on the host.
#if defined(__CUDA_ARCH__)
#define P3D_ON_NVIDIA __CUDA_ARCH__
#elif defined(__HIP_DEVICE_COMPILE__) && __HIP_DEVICE_COMPILE__
#define P3D_ON_AMD
#endif
