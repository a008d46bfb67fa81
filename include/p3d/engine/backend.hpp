// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trainer sets its libraries: NCCL carries its collectives or not, and its fp32 GEMMs round operands to a type.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>

namespace p3d::engine {

/// True when NCCL carries them, the same on all ranks. Throws base::Error on all where "nccl" is asked for and cannot
/// be: kernels run on the host, this build has none, or two ranks share a GPU. Where it does, sums in a fixed order
/// have their kernel from here on, and fences of the host wait for NCCL within comm.timeout_s. Collective over all
/// ranks that train.
bool choose_nccl(config::Config const& config, comm::Communicator& world);

/// Sets what fp32 GEMMs of this process round their operands to (linalg/operands.hpp), by precision.autocast and
/// linalg.tf32. Returns false where linalg.tf32 has no effect here. Throws base::Error (bad_input) where
/// precision.autocast has none. Every trainer sets it anew, so trainers that live side by side have the last one's.
bool set_operands(config::Config const& config);

}  // namespace p3d::engine
