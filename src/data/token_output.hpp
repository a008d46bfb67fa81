// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tokens on their way into a file.

#include "data/output_file.hpp"

#include <p3d/data/indexed_dataset_writer.hpp>

#include <cstdint>
#include <span>

namespace p3d::data {

/// Throws base::Error (bad_input) for a token that does not fit the type.
void write_tokens(OutputFile& file, TokenType type, std::span<std::int32_t const> tokens);

}  // namespace p3d::data
