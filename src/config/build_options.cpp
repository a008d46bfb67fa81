// SPDX-License-Identifier: Apache-2.0
// The options with which this build was configured, and sizes of types.

#include <p3d/base/precisions.hpp>
#include <p3d/config/config.hpp>

#include <string>

namespace p3d::config {

bool has_precision(Precision precision) { return P3D_16BIT != 0 || !is_16bit(precision); }

bool has_onednn() { return P3D_ONEDNN != 0; }
bool has_fused_attention() { return P3D_FUSED_ATTENTION != 0; }
bool has_nccl() { return P3D_NCCL != 0; }

std::int64_t bytes_of(Precision type) {
  switch (type) {
    case Precision::fp64: return 8;
    case Precision::fp32: return 4;
    case Precision::bf16:
    case Precision::fp16: break;
  }
  return 2;
}

std::string to_string(Duration v) {
  if (v.seconds > 0 && v.seconds % 3600 == 0) return std::to_string(v.seconds / 3600) + "h";
  if (v.seconds > 0 && v.seconds % 60 == 0) return std::to_string(v.seconds / 60) + "min";
  return std::to_string(v.seconds) + "s";
}

}  // namespace p3d::config
