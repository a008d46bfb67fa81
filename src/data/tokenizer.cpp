// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/tokenizer.hpp>

#include "data/byte_tokenizer.hpp"

#include <p3d/base/error.hpp>

namespace p3d::data {

std::unique_ptr<Tokenizer> make_tokenizer(std::string const& name, std::string const&) {
  P3D_REQUIRE(name == "bytes", "the tokenizer is known");
  return make_byte_tokenizer();
}

}  // namespace p3d::data
