// SPDX-License-Identifier: Apache-2.0
#include "comm/internal.hpp"

#include <gtest/gtest.h>

using p3d::comm::detail::finalize_may_hang;

// The rest is seen between hosts only: tests/nodes.
TEST(Finalize, HangsInMpichBefore42OverUcx) {
  EXPECT_TRUE(finalize_may_hang("MPICH Version:\t4.0.2\nMPICH Device:\tch4:ucx\n"));
  EXPECT_TRUE(finalize_may_hang("MPICH Version:      3.4.3\nMPICH Release date: x\nMPICH Device:       ch4:ucx"));
  EXPECT_TRUE(finalize_may_hang("MPICH Version:\t4.1\nMPICH Device:\tch4:ucx"));
  EXPECT_FALSE(finalize_may_hang("MPICH Version:\t4.2.0\nMPICH Device:\tch4:ucx"));
  EXPECT_FALSE(finalize_may_hang("MPICH Version:\t10.0\nMPICH Device:\tch4:ucx"));
  EXPECT_FALSE(finalize_may_hang("MPICH Version:\t4.0.2\nMPICH Device:\tch4:ofi\n"));
  EXPECT_FALSE(finalize_may_hang("MPICH Version:\t4.1a1 \nMPICH Device:\tch3:nemesis\n"));
  EXPECT_FALSE(finalize_may_hang("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"));
  EXPECT_FALSE(finalize_may_hang("MPICH Version: unknown ch4:ucx"));
  EXPECT_FALSE(finalize_may_hang(""));
}
