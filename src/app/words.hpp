// SPDX-License-Identifier: Apache-2.0
#pragma once
// The words after a command: one way to parse them, and to refuse them; and the lines that a command prints.

#include <p3d/base/error.hpp>

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::app {

/// Lines about files of folders that are no text: the first 20, and how many more.
std::vector<std::string> left_out_lines(std::vector<std::string> const& files);

/// Prints a line on stdout. What would change the terminal is escaped (base::printable): lines quote files and names.
void say(std::string_view line);

/// What a command hands out as it is, such as the text of tokens: the same bytes into a file or a pipe, base::printable
/// where a terminal shows them.
std::string text_for_output(std::string text);

/// The error of a command line (bad_input).
base::Error wrong_words(std::string expected, std::string found, std::string fix);

/// argv[1] and what follows, without the options of Kokkos, in the order in which CLI11 takes a vector: the last first.
std::vector<std::string> reversed_words(int argc, char const* const* argv);

/// Parses argv[1] and what follows, without the options of Kokkos, which stay for Kokkos. An exit code when there is
/// nothing more to do: help was printed, on the launcher's first rank; or the words are wrong, which that rank says
/// with the four parts.
std::optional<int> parse_words(CLI::App& app, int argc, char** argv);

/// A number as it is written, from `least` to `most`; no number is what is written as nan, inf or with letters after
/// it.
std::optional<double> read_number(std::string_view word, double least, double most);
/// A whole number of decimal digits.
std::optional<std::uint64_t> read_count(std::string_view word, std::uint64_t least, std::uint64_t most);

/// The same as checks of an option, before CLI11 converts its word.
CLI::Validator number_from(double least, double most);
CLI::Validator count_from(std::uint64_t least, std::uint64_t most);

}  // namespace p3d::app
