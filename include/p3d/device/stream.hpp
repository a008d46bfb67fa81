// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels on a stream that is not Kokkos' own, so that kernels can follow the work of a library on its stream.

#include <p3d/device/view.hpp>

namespace p3d::device {

/// The execution instance on the vendor's own `stream`, made at the first call for each stream; on host backends the
/// default instance. `stream` must live until release_instance().
ExecSpace instance_on(void* stream);
/// Waits for the kernels on the instance of a stream and destroys the instance. Does nothing where there is no
/// instance.
void release_instance(void* stream);

}  // namespace p3d::device
