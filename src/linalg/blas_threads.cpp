// The BLAS is known only when the program is loaded (distributions switch it behind one name), so its thread functions
// are looked up by name in the running program.

#include <p3d/linalg/gemm.hpp>

#include <p3d/base/error.hpp>

#include <dlfcn.h>

#include <cstdint>

namespace p3d::linalg {

namespace {

template <class Function>
Function* find(char const* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

/// Sets, and reads back what is in force; 0 when this library is not there.
template <class Int>
int set_and_get(char const* set_name, char const* get_name, int threads) {
  auto* const set = find<void(Int)>(set_name);
  auto* const get = find<Int()>(get_name);
  if (!set || !get) return 0;
  set(threads);
  return static_cast<int>(get());
}

}  // namespace

int set_blas_threads(int threads) {
  P3D_REQUIRE(threads > 0, "the BLAS needs at least one thread");
  if (int const n = set_and_get<int>("openblas_set_num_threads", "openblas_get_num_threads", threads)) return n;
  if (int const n = set_and_get<int>("MKL_Set_Num_Threads", "MKL_Get_Max_Threads", threads)) return n;
  // BLIS counts in its own dim_t, 64 bits wide in every packaged build.
  return set_and_get<std::int64_t>("bli_thread_set_num_threads", "bli_thread_get_num_threads", threads);
}

}  // namespace p3d::linalg
