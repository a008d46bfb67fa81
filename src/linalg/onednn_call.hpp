// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <p3d/base/process.hpp>
#include <p3d/base/symbol.hpp>

namespace p3d::linalg::detail {

/// An object of this class lives around each call that makes oneDNN compute. Meanwhile
/// - oneDNN makes no threads in this thread: OpenMP's number of threads is kept for each thread separately;
/// - this thread takes no signals: they wait for the end of the call. For K > 84 the fp32 kernels use the stack pointer
/// for a buffer on the heap, and the frame of a signal overwrites what lies below it (oneDNN's issue 4845, which
/// versions up to 3.11.1 have). It costs two system calls, half a microsecond.
class OnednnCall {
public:
  OnednnCall() : before_(functions().get != nullptr ? functions().get() : 1) {
    if (before_ > 1) functions().set(1);
  }
  ~OnednnCall() {
    if (before_ > 1) functions().set(before_);
  }
  OnednnCall(OnednnCall const&) = delete;
  OnednnCall& operator=(OnednnCall const&) = delete;

private:
  /// OpenMP's functions, if the program has OpenMP.
  struct Functions {
    int (*get)() = base::find_symbol<int()>("omp_get_max_threads");
    void (*set)(int) = base::find_symbol<void(int)>("omp_set_num_threads");
  };
  static Functions const& functions() {
    static Functions const found;
    return found;
  }
  base::SignalsBlocked signals_;
  int before_;  ///< OpenMP's number of threads before the call
};

}  // namespace p3d::linalg::detail
