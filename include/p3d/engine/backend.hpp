// SPDX-License-Identifier: Apache-2.0
#pragma once
// comm.backend: whether NCCL carries the collectives of training.

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>

namespace p3d::engine {

/// True when NCCL carries them, the same on all ranks. Throws base::Error on all where "nccl" is asked for and cannot
/// be: kernels run on the host, this build has none, or two ranks share a GPU. Collective over all ranks that train.
bool choose_nccl(config::Config const& config, comm::Communicator& world);

}  // namespace p3d::engine
