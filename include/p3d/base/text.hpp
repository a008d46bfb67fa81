// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small pieces of text: nearest known word, counts and sizes that people can read.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::base {

/// The entry of `known` with the smallest edit distance to `word` (Damerau-Levenshtein, restricted), within max(2, a
/// third of the word's length). Where none is that near: the one entry that begins with `word`, of four letters or
/// more; or "".
std::string nearest(std::string_view word, std::vector<std::string> const& known);

/// The value; of NaN the one without a sign, which messages and files would show as "-nan".
double without_sign_of_nan(double value);

/// A count with a decimal unit: 124439808 -> "124.4M"; 950 -> "950".
std::string human_count(double value);
/// Bytes with a binary unit: 1536 -> "1.50 KiB".
std::string human_bytes(double bytes);
/// A duration with one or two units: "850 ms", "12.3 s", "4 min 10 s", "2 h 05 min".
std::string human_seconds(double seconds);
/// A count with its word: 1 -> "1 step", 8 -> "8 steps"; words in -ch take -es.
std::string counted(std::int64_t count, std::string_view word);
/// The parts in one text, with the separator between them: {"1", "2", "3"} -> "1, 2, 3".
std::string join(std::vector<std::string> const& parts, std::string_view separator = ", ");
/// The parts in one text, with `last` as the separator before the last part: {"1", "2", "3"} and " or " -> "1, 2 or 3".
std::string join_last(std::vector<std::string> const& parts, std::string_view separator, std::string_view last);
/// Ascending numbers as ranges: "0-3,8,10-11", with `to` in place of "-" and `separator` in place of ",".
std::string number_ranges(std::vector<int> const& numbers, std::string_view to = "-", std::string_view separator = ",");

}  // namespace p3d::base
