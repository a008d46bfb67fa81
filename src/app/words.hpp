// SPDX-License-Identifier: Apache-2.0
#pragma once
// The words after a command: one way to parse them and to refuse them; and the lines that a command prints.

#include <p3d/base/error.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::app {

/// The largest value of --ranks and --rank: a rank is an int, and so are sums of a few.
inline constexpr std::uint64_t most_ranks = 1U << 30;

/// Lines about files of folders that are not text: the first 20, and how many more.
std::vector<std::string> left_out_lines(std::vector<std::string> const& files);

/// Prints a line on stdout. Characters that would change the terminal are escaped (base::printable): lines quote files
/// and names.
void say(std::string_view line);

/// Output that a command passes on unchanged, such as the text of tokens: the same bytes into a file or a pipe, but
/// base::printable where a terminal shows them.
std::string text_for_output(std::string text);

/// The error of a wrong command line (bad_input).
base::Error wrong_words(std::string expected, std::string found, std::string fix);

/// The words argv[1] and later, without the options of Kokkos, in the order in which CLI11 takes a vector: the last
/// first.
std::vector<std::string> reversed_words(int argc, char const* const* argv);

/// Parses the words argv[1] and later, without the options of Kokkos, which Kokkos reads itself. Returns an exit code
/// when there is nothing more to do: help was printed, on the launcher's first rank; or the words are wrong, which that
/// rank reports by throwing the error.
std::optional<int> parse_words(CLI::App& app, int argc, char** argv);

/// An input file and overrides of its keys, in any order: the first word without '=' is the file; "" without one.
struct InputWords {
  std::string input;
  std::vector<std::string> overrides;
};
InputWords input_words(std::vector<std::string> const& words);

/// Writes a file that the option `where` names. A file that is there is replaced when the new one is whole; what is no
/// regular file (/dev/stdout, a pipe) is written into. Refuses, with the system's reason, where it cannot be written;
/// the file is then as it was.
void write_file(std::string const& path, std::string const& content, std::string const& where);

/// Refuses a path, which the option `where` names, where write_file() could not write it. Changes no file. For commands
/// that work long before they write.
void require_writable(std::string const& path, std::string const& where);

/// Refuses a path to write, which the option `where` names, that is one of the files which the command reads. An empty
/// path is none.
void require_no_input(std::string const& path, std::string const& where, std::vector<std::string> const& inputs);

/// Reads a finite number from `least` to `most`; nothing for other words, such as nan, inf, or a number with letters
/// behind it.
std::optional<double> read_number(std::string_view word, double least, double most);
/// Reads a whole number of decimal digits from `least` to `most`; nothing for other words.
std::optional<std::uint64_t> read_count(std::string_view word, std::uint64_t least, std::uint64_t most);

/// A check of an option by read_number(), before CLI11 converts its word.
CLI::Validator number_from(double least, double most);
/// A check of an option by read_count(), before CLI11 converts its word.
CLI::Validator count_from(std::uint64_t least, std::uint64_t most);

}  // namespace p3d::app
