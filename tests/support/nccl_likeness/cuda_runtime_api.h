// SPDX-License-Identifier: Apache-2.0
#pragma once
// What src/comm/nccl_library.cpp uses of the CUDA runtime, for machines without one.

typedef struct cudaStream* cudaStream_t;
typedef struct cudaEvent* cudaEvent_t;
typedef enum { cudaSuccess = 0, cudaErrorNotReady = 600 } cudaError_t;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
typedef struct {
  char gcnArchName[256];
} cudaDeviceProp_t;
extern "C" {
cudaError_t cudaGetDeviceProperties(cudaDeviceProp_t*, int);
char const* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetDevice(int*);
cudaError_t cudaDeviceGetPCIBusId(char*, int, int);
cudaError_t cudaDeviceGetStreamPriorityRange(int*, int*);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned, int);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventQuery(cudaEvent_t);
}
