// SPDX-License-Identifier: Apache-2.0
#include <p3d/base/all_reduce.hpp>

namespace p3d::base {

char const* to_string(AllReduce algorithm) {
  switch (algorithm) {
    case AllReduce::automatic: return "auto";
    case AllReduce::mpi: return "mpi";
    case AllReduce::ring: return "ring";
    case AllReduce::tree: return "tree";
    case AllReduce::hierarchical: return "hierarchical";
    case AllReduce::shared: return "shared";
  }
  return "?";
}

}  // namespace p3d::base
