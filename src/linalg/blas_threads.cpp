// SPDX-License-Identifier: Apache-2.0
// The BLAS is known only when the program is loaded (distributions switch it behind one name). So its own functions,
// for the number of threads and for its version, are looked up by name in the running program.

#include <p3d/linalg/blas_threads.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/symbol.hpp>

#include <cstdint>
#include <string_view>

namespace p3d::linalg {

namespace {

using base::find_symbol;

/// One library's functions to set and get the number of threads. BLIS counts in its own dim_t, 64 bits wide in every
/// packaged build.
template <class Int>
struct Pair {
  void (*set)(Int);
  Int (*get)();
  Pair(char const* set_name, char const* get_name)
      : set(find_symbol<void(Int)>(set_name)), get(find_symbol<Int()>(get_name)) {}
  bool here() const { return set != nullptr && get != nullptr; }
};

/// The functions of the libraries that p3d knows; those of libraries that are not loaded are null.
struct Functions {
  Pair<int> openblas{"openblas_set_num_threads", "openblas_get_num_threads"};
  Pair<int> mkl{"MKL_Set_Num_Threads", "MKL_Get_Max_Threads"};
  Pair<std::int64_t> blis{"bli_thread_set_num_threads", "bli_thread_get_num_threads"};

  /// The number of threads in force; 0 when no library can be asked.
  int get() const {
    if (openblas.here()) return openblas.get();
    if (mkl.here()) return mkl.get();
    return blis.here() ? static_cast<int>(blis.get()) : 0;
  }
  void set(int threads) const {
    if (openblas.here()) return openblas.set(threads);
    if (mkl.here()) return mkl.set(threads);
    if (blis.here()) blis.set(threads);
  }
};

Functions const& blas() {
  static Functions const functions;
  return functions;
}

}  // namespace

int set_blas_threads(int threads) {
  P3D_REQUIRE(threads > 0, "the BLAS needs at least one thread");
  blas().set(threads);
  return blas().get();
}

std::string blas_version() {
  if (auto* const openblas = find_symbol<char*()>("openblas_get_config")) return openblas();
  if (auto* const mkl = find_symbol<void(char*, int)>("MKL_Get_Version_String")) {
    std::string text(256, ' ');
    mkl(text.data(), static_cast<int>(text.size()));
    text.resize(text.find_last_not_of(std::string_view(" \0", 2)) + 1);
    return text;
  }
  if (auto* const blis = find_symbol<char const*()>("bli_info_get_version_str")) return std::string("BLIS ") + blis();
  return "";
}

SingleThreadedBlas::SingleThreadedBlas() : before_(blas().get()) {
  if (before_ > 1) blas().set(1);
}
SingleThreadedBlas::~SingleThreadedBlas() {
  if (before_ > 1) blas().set(before_);
}

}  // namespace p3d::linalg
