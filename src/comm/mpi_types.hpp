// SPDX-License-Identifier: Apache-2.0
#pragma once
// p3d's element types and reductions as MPI's. MPI_Op goes with mpi_type() only, which 16-bit types do not have.

#include <p3d/comm/communicator.hpp>

namespace p3d::comm::detail {

inline MPI_Datatype mpi_type(Type type) {
  switch (type) {
    case Type::int32: return MPI_INT32_T;
    case Type::int64: return MPI_INT64_T;
    case Type::uint64: return MPI_UINT64_T;
    case Type::float32: return MPI_FLOAT;
    case Type::float64: return MPI_DOUBLE;
    case Type::byte: return MPI_BYTE;
  }
  return MPI_DATATYPE_NULL;
}

/// The MPI type that moves elements. 16-bit numbers are unsigned integers for MPI.
inline MPI_Datatype carrier(ElementType type) { return type.mpi() ? mpi_type(*type.mpi()) : MPI_UINT16_T; }

inline MPI_Op mpi_op(Reduction op) {
  switch (op) {
    case Reduction::sum: return MPI_SUM;
    case Reduction::max: return MPI_MAX;
    case Reduction::min: return MPI_MIN;
  }
  return MPI_OP_NULL;
}

}  // namespace p3d::comm::detail
