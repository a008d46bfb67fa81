// SPDX-License-Identifier: Apache-2.0
#pragma once
// What stands before the tokens in the files of llm.c and of numpy.

#include "data/mapped_file.hpp"
#include "data/token_type.hpp"

namespace p3d::data {

/// Where tokens lie in a file.
struct TokenPlace {
  TokenType type = TokenType::u8;
  std::int64_t offset = 0;  ///< of the first one, in bytes
  std::int64_t count = 0;
};

/// llm.c: 256 int32: magic number, version, number of tokens. 20240520, 1: uint16; 20240801, 7: uint32. Both throw
/// base::Error (bad_input) with file and byte offset for anything else, and for sizes that do not match.
TokenPlace read_llmc_header(MappedFile const& file);
/// numpy, versions 1.0 to 3.0: an array of one or two dimensions in C order.
TokenPlace read_npy_header(MappedFile const& file);

/// Whether a file begins like one of these.
bool looks_like_llmc(MappedFile const& file);
bool looks_like_npy(MappedFile const& file);

}  // namespace p3d::data
