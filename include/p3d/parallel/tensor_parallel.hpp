// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tensor-parallel group of a rank, and how its messages and GEMMs overlap.

#include <p3d/comm/communicator.hpp>
#include <p3d/device/view.hpp>

#include <cstdint>

namespace p3d::parallel {

using device::ExecSpace;
using device::View1;
using device::View2;

/// How messages over tp and GEMMs overlap (comm.overlap_tp).
struct TpOverlap {
  bool bulk = true;  ///< messages travel while GEMMs run that do not need them; false: each is waited for at once
  int chunks = 2;    ///< the most chunks of rows of a message: one travels while a GEMM computes, or reads, another
  std::int64_t chunked_bytes = 1 << 20;  ///< messages below so many bytes are not cut: each chunk would pay the latency
  /// The fewest rows that a chunk has of each rank: GEMMs of few rows are slow (by OpenBLAS in fp32 some 5 % for 256).
  std::int64_t chunk_rows = 256;
  bool microbatch = false;  ///< a strand that waits for rows lets another one compute (base/strand.hpp)
};

/// The tensor-parallel group of this rank. The communicator must outlive this object.
struct TensorParallel {
  ExecSpace exec{};
  comm::Communicator* comm = nullptr;
  bool sequence =
      false;  ///< sequence parallelism: between GEMMs each rank has some of the rows (rows.hpp); never with one rank
  TpOverlap overlap{};
  int rank() const { return comm->rank(); }
  int size() const { return comm->size(); }
};

}  // namespace p3d::parallel
