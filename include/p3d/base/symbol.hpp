// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions that a library of the running program may or may not have.

#include <dlfcn.h>

namespace p3d::base {

/// The function of a name in the program or in a library that is loaded; null where there is none. The caller must know
/// its type.
template <class Function>
Function* find_symbol(char const* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace p3d::base
