// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers of a model file to numbers of a checkpoint, and back.

#include <p3d/io/safetensors.hpp>

namespace p3d::io {

/// Every dtype of the format that has whole bytes: its size, and what it is among weights.
struct DtypeRow {
  char const* name;
  std::int64_t bytes;
  std::optional<TensorType> type;
};
/// Null when there is none.
DtypeRow const* find_dtype(std::string_view name);

/// `count` numbers at `from`, of any alignment.
void widen(TensorType type, char const* from, std::int64_t count, Element as, void* out);
void narrow(Element from, void const* numbers, std::int64_t count, TensorType type, char* out);

}  // namespace p3d::io
