// SPDX-License-Identifier: Apache-2.0
#pragma once
// What room comm adds with on GPUs where sums have a fixed order: a kernel.

namespace p3d::engine {

/// Communicators that are prepared from here on add by it.
void use_device_sums();

}  // namespace p3d::engine
