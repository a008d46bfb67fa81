// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the processes of fake_nccl_library.cpp share, and the arithmetic of its sums.

#include <nccl.h>
#include <p3d/base/float16.hpp>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace fake_nccl {

inline constexpr int most_ranks = 16, most_comms = 64, buffer_bytes = 4096;
using Counter = std::atomic<std::int64_t>;

struct SharedComm {
  Counter used, joined, left;
  int size, member[most_ranks];    ///< ranks of the job
  Counter arrived[most_ranks];     ///< collectives that the rank has come to
  Counter passed[most_ranks];      ///< steps of collectives that the rank has made
  std::uint64_t call[most_ranks];  ///< what it has come to
  Counter sends[most_ranks][most_ranks], receives[most_ranks][most_ranks];  ///< from, to: come to
  Counter written[most_ranks][most_ranks], read[most_ranks][most_ranks];    ///< pieces
  char buffer[most_ranks][buffer_bytes], mail[most_ranks][most_ranks][buffer_bytes];
};
struct Need {
  Counter* counter;
  std::int64_t value;
  int rank;  ///< of the job, who moves it
};
struct SharedRank {
  int needs;
  Need need[2 * most_ranks];
  char what[80];
};
struct Shared {
  Counter ready;
  pthread_mutex_t mutex;
  SharedRank rank[most_ranks];
  SharedComm comm[most_comms];
};

inline std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    default: return 8;
  }
}

template <class T>
T combined(int op, T a, T b) {
  return op == ncclMax ? std::max(a, b) : op == ncclMin ? std::min(a, b) : static_cast<T>(a + b);
}
template <class T>
void combine(int op, void* inout, void const* in, std::size_t n) {
  auto* const a = static_cast<T*>(inout);
  auto const* const b = static_cast<T const*>(in);
  for (std::size_t i = 0; i < n; ++i) a[i] = combined(op, a[i], b[i]);
}
template <float (*value)(std::uint16_t), std::uint16_t (*bits)(float)>
void combine16(int op, void* inout, void const* in, std::size_t n) {
  auto* const a = static_cast<std::uint16_t*>(inout);
  auto const* const b = static_cast<std::uint16_t const*>(in);
  for (std::size_t i = 0; i < n; ++i) a[i] = bits(combined(op, value(a[i]), value(b[i])));
}
inline void combine(ncclDataType_t type, int op, void* a, void const* b, std::size_t n) {
  using namespace p3d::base;
  switch (type) {
    case ncclFloat32: return combine<float>(op, a, b, n);
    case ncclFloat64: return combine<double>(op, a, b, n);
    case ncclInt32: return combine<std::int32_t>(op, a, b, n);
    case ncclInt64: return combine<std::int64_t>(op, a, b, n);
    case ncclUint64: return combine<std::uint64_t>(op, a, b, n);
    case ncclBfloat16: return combine16<bfloat16_value, bfloat16_bits>(op, a, b, n);
    case ncclFloat16: return combine16<float16_value, float16_bits>(op, a, b, n);
    default: std::abort();  // the calls of p3d have no other
  }
}

}  // namespace fake_nccl
