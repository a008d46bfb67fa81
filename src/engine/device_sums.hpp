// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernel with which room comm adds on GPUs, where sums have a fixed order.

namespace p3d::engine {

/// Communicators that are prepared from here on add by it.
void use_device_sums();

}  // namespace p3d::engine
