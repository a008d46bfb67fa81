// SPDX-License-Identifier: Apache-2.0
#pragma once
// Errors of files that describe tokenizers.

#include <cstdint>
#include <string>

namespace p3d::text {

/// Throws the error of a file that is not what it should be. `where`: the file and the place in it.
[[noreturn]] void bad_tokenizer(std::string expected, std::string found, std::string where);
/// Throws the error of a file that is right and asks for something that p3d does not do: "tokenizer.json asks for X,
/// which p3d lacks".
[[noreturn]] void lacks(std::string const& file, std::string const& place, std::string const& what);

/// Bytes of the largest tokenizer file that is read (those of large vocabularies are 35 MB).
inline constexpr std::int64_t largest_tokenizer_file = std::int64_t{1} << 28;
/// Most ids beyond the number of tokens: a table of ids is then never much larger than the file.
inline constexpr std::int64_t largest_id_gap = 1 << 16;

}  // namespace p3d::text
