// SPDX-License-Identifier: Apache-2.0
#pragma once
// Log lines to stdout (information) and stderr (warnings, errors), from one or all ranks. All text goes out through
// printable().

#include <string_view>

namespace p3d::base {

/// Sets this process' rank for the log. Before this call the process counts as the only rank.
void set_log_rank(int rank, int num_ranks);
int log_rank();
int log_num_ranks();

/// Prints one line on stdout, from rank 0 only, and flushes it.
void log_root(std::string_view line);
/// Prints a last line on a terminal that the next status_root or log_root replaces; warnings and errors of this rank
/// start below it. Printed by rank 0 only; `line` must be shorter than the terminal is wide.
void status_root(std::string_view line);
/// Prints one line on stderr, from rank 0 only, with "p3d: warning: " before it.
void warn_root(std::string_view line);
/// Prints an error that every rank knows alike: the text on stderr after "p3d stops:", from rank 0 only.
void error_once(std::string_view text);
/// Prints a text on stderr from this rank, each line prefixed with "[rank r] " when there is more than one rank. It is
/// written with a single write so that ranks do not mix inside a text.
void error_here(std::string_view text);

}  // namespace p3d::base
