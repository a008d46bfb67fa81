// SPDX-License-Identifier: Apache-2.0
#pragma once
// A shared library in the place of NCCL and of the CUDA runtime, for processes of one machine: the calls of
// nccl_likeness/, in host memory. Each process has a device: a thread that runs what is on its streams. It is as strict
// as a GPU that has room for one kernel of NCCL: these run one after the other in the order in which they came onto
// their streams, and each stays until all ranks that it needs have launched theirs. Where ranks wait for each other in
// a circle the library names them, and ends the process with exit code 86; also where the ranks of a communicator call
// different collectives.

#include <cuda_runtime_api.h>

extern "C" {
/// Before anything else. `name`: of the memory that the processes share, the same for all and new; rank 0 makes it and
/// returns before another comes here. At most 16 ranks.
void fake_nccl_open(char const* name, int rank, int size);
/// Takes the name away once all ranks have opened it, so that nothing is left behind however the program ends.
void fake_nccl_all_opened();
/// Nothing of the library follows.
void fake_nccl_close();
/// Calls of the n-th communicator that this process makes are on their stream only so many microseconds after they
/// ended (the state says that they are in progress until then). -1: all communicators.
void fake_nccl_delay(int communicator, int microseconds);
/// How many communicators this rank has made: the number of its next one, counted from 0.
int fake_nccl_made();
/// Calls `function` where the stream has come to it.
void fake_nccl_run_on(cudaStream_t stream, void (*function)(void*), void* argument);
}
