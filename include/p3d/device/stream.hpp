// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels on a stream that is not Kokkos' own: what a library runs on its stream, kernels can follow.

#include <p3d/device/view.hpp>

namespace p3d::device {

/// The execution instance on the vendor's own `stream`, made once for each; on host backends the default one. `stream`
/// must live until release_instance().
ExecSpace instance_on(void* stream);
/// Waits for the kernels on it. Nothing where there is no instance.
void release_instance(void* stream);

}  // namespace p3d::device
