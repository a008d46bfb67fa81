// SPDX-License-Identifier: Apache-2.0
#pragma once
// The names of the all-reduce algorithms in an input, which rooms config and comm share. comm/all_reduce.hpp says what
// each algorithm does.

#include <p3d/base/enum_names.hpp>

namespace p3d::base {

enum class AllReduce { automatic, mpi, ring, tree, hierarchical, shared };
constexpr auto enum_names(AllReduce) { return std::array{"auto", "mpi", "ring", "tree", "hierarchical", "shared"}; }

}  // namespace p3d::base
