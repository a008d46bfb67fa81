// SPDX-License-Identifier: Apache-2.0
#pragma once
// Headers of the token files of llm.c and of numpy.

#include "data/mapped_file.hpp"
#include "data/token_type.hpp"

namespace p3d::data {

/// The place of the tokens in a file.
struct TokenPlace {
  TokenType type = TokenType::u8;
  std::int64_t offset = 0;  ///< byte of the first token
  std::int64_t count = 0;
};

/// Reads a header of llm.c: 256 int32, of which the first are the magic number, the version and the number of tokens.
/// 20240520 and version 1 mean uint16; 20240801 and version 7 mean uint32. Throws base::Error (bad_input) with file and
/// byte offset for anything else, and for sizes that do not match.
TokenPlace read_llmc_header(MappedFile const& file);
/// Reads a header of numpy, versions 1.0 to 3.0, of an array of one or two dimensions in C order. Throws as
/// read_llmc_header does.
TokenPlace read_npy_header(MappedFile const& file);

/// True when a file begins like one of llm.c.
bool looks_like_llmc(MappedFile const& file);
/// True when a file begins like one of numpy.
bool looks_like_npy(MappedFile const& file);

}  // namespace p3d::data
