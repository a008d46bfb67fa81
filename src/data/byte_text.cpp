// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/token_files.hpp>

namespace p3d::data {

std::unique_ptr<TokenSource> make_byte_text(std::vector<std::string> const& paths, std::int64_t vocab_size) {
  return std::make_unique<TokenFiles>(config::DataFormat::text, paths, vocab_size);
}

}  // namespace p3d::data
