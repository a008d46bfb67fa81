// SPDX-License-Identifier: Apache-2.0
#pragma once
// The terminal that a person may be sitting at.

namespace p3d::report {

/// The columns of the terminal on which the standard output of this process ends up, or 0 when it ends up on none (a
/// file, a pipe into another program). A launcher puts a pipe, or a terminal of its own making, between its ranks and
/// its own output. So the launcher's output is looked at: on Linux, where the launcher runs on this node; elsewhere the
/// answer is 0.
int terminal_columns();

}  // namespace p3d::report
