// SPDX-License-Identifier: Apache-2.0
#include <p3d/linalg/operands.hpp>

#include "rounded_gemm.hpp"

namespace p3d::linalg {

namespace {
Operands chosen = Operands::fp32;

/// Whether GEMMs of this build can round to a type. (The form of devices that tests build for the host cannot.)
bool can_round(Operands to) {
#if defined(P3D_OPERANDS_ALL)
  static_cast<void>(to);
  return true;
#elif defined(P3D_OPERANDS_NONE) || defined(P3D_PORTABLE_FORM)
  return to == Operands::fp32;
#else
  return to != Operands::tf32;
#endif
}
}  // namespace

Operands detail::operands() { return chosen; }

bool round_operands(Operands to) {
  bool const can = can_round(to);
  chosen = can ? to : Operands::fp32;
  return can;
}

}  // namespace p3d::linalg
