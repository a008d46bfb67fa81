// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <p3d/base/symbol.hpp>

namespace p3d::linalg::detail {

/// While it lives oneDNN makes no threads in this one: OpenMP's number is one that each thread has for itself.
class OneThread {
public:
  OneThread() : before_(functions().get != nullptr ? functions().get() : 1) {
    if (before_ > 1) functions().set(1);
  }
  ~OneThread() {
    if (before_ > 1) functions().set(before_);
  }
  OneThread(OneThread const&) = delete;
  OneThread& operator=(OneThread const&) = delete;

private:
  struct Functions {
    int (*get)() = base::find_symbol<int()>("omp_get_max_threads");
    void (*set)(int) = base::find_symbol<void(int)>("omp_set_num_threads");
  };
  static Functions const& functions() {
    static Functions const found;
    return found;
  }
  int before_;
};

}  // namespace p3d::linalg::detail
