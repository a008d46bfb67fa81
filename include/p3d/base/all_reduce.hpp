// SPDX-License-Identifier: Apache-2.0
#pragma once
// The names of the all-reduce algorithms: the input's, which rooms config and comm share. comm/all_reduce.hpp says what
// they do.

#include <array>

namespace p3d::base {

enum class AllReduce { automatic, mpi, ring, tree, hierarchical, shared };
inline constexpr std::array all_reduces{AllReduce::automatic, AllReduce::mpi,          AllReduce::ring,
                                        AllReduce::tree,      AllReduce::hierarchical, AllReduce::shared};
char const* to_string(AllReduce algorithm);  ///< "auto", "mpi", ...

}  // namespace p3d::base
