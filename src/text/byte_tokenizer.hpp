// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tokenizer "bytes": a token for each byte.

#include <p3d/text/tokenizer.hpp>

namespace p3d::text {

std::unique_ptr<Tokenizer> make_byte_tokenizer();

}  // namespace p3d::text
