// SPDX-License-Identifier: Apache-2.0
#pragma once
// The terminal that a person may be sitting at, and text that is safe to show there.

#include <string>
#include <string_view>

namespace p3d::report {

/// Columns of the terminal on which the standard output of this process ends up, or 0 when it is none (a file, a pipe
/// into another program). A launcher puts a pipe, or a terminal of its own making, between its ranks and what it prints
/// to, so its own output is looked at: on Linux, where the launcher runs on this node; elsewhere the answer is 0.
int terminal_columns();

/// The text with everything that would move the cursor or change the terminal, and every byte that is not UTF-8, as
/// "\x1b": a model that has just begun to learn may write anything. Line ends and tabs stay.
std::string printable(std::string_view text);

}  // namespace p3d::report
