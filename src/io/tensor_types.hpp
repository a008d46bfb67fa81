// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts numbers of a model file (F16, BF16, F32, F64) to numbers of a checkpoint (float32, float64), and back.

#include <p3d/io/safetensors.hpp>

namespace p3d::io {

/// A dtype of the format that has whole bytes: its size, and which type of weights it is, if any.
struct DtypeRow {
  char const* name;
  std::int64_t bytes;
  std::optional<TensorType> type;
};
/// The dtype of this name, or null.
DtypeRow const* find_dtype(std::string_view name);

/// Converts `count` numbers at `from`, of any alignment, to float or double.
void widen(TensorType type, char const* from, std::int64_t count, Element as, void* out);
/// Converts `count` floats or doubles to a type of weights, rounding to nearest, ties to even.
void narrow(Element from, void const* numbers, std::int64_t count, TensorType type, char* out);

}  // namespace p3d::io
