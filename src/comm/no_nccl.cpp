// SPDX-License-Identifier: Apache-2.0
// The functions of nccl_library.cpp in a build without NCCL.
#include "nccl_api.hpp"

namespace p3d::comm::detail {

std::shared_ptr<NcclApi> nccl_library() { return {}; }

}  // namespace p3d::comm::detail
