// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes tokens into a file.

#include "text/output_file.hpp"

#include <p3d/text/indexed_dataset_writer.hpp>

#include <cstdint>
#include <span>

namespace p3d::text {

/// Appends tokens in the given type. Throws base::Error (bad_input) for a token that does not fit it.
void write_tokens(OutputFile& file, TokenType type, std::span<std::int32_t const> tokens);

}  // namespace p3d::text
