// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/token_source.hpp>

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>

#include <cmath>

namespace p3d::data {

std::unique_ptr<TokenSource> make_token_source(config::Config const& config) {
  switch (config.data.format) {
    case config::DataFormat::text: return make_byte_text(config.data.path, config.model.vocab_size);
    case config::DataFormat::megatron:
    case config::DataFormat::llmc:
    case config::DataFormat::npy: break;
    case config::DataFormat::synthetic: return make_synthetic(config.run.seed, config.model.vocab_size);
  }
  P3D_REQUIRE(false, "the data format is known");
  return nullptr;
}

Split split_tokens(std::int64_t tokens, double fraction) {
  P3D_REQUIRE(fraction >= 0.0 && fraction < 1.0, "data.split is at least 0 and less than 1");
  auto const held_out = static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(tokens)));
  return {{0, tokens - held_out}, {tokens - held_out, tokens}};
}

}  // namespace p3d::data
