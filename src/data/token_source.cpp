// SPDX-License-Identifier: Apache-2.0
// The data of a run: files of one kind, a blend of several, or synthetic tokens. And the split: the last part of the
// tokens, or of the documents where they are known, is for validation.
#include <p3d/data/token_files.hpp>

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace p3d::data {

layout::Range TokenSource::document(std::int64_t) const {
  P3D_REQUIRE(false, "the source has documents");
  return {};
}

layout::Range TokenSource::document_with(std::int64_t token) const {
  P3D_REQUIRE(knows_documents() && token >= 0 && token < size(), "the token is in a document");
  // Search the last document that begins at or before the token: it is not empty.
  std::int64_t low = 0, high = documents();
  while (low + 1 < high) {
    auto const middle = low + (high - low) / 2;
    document(middle).begin <= token ? low = middle : high = middle;
  }
  return document(low);
}

std::unique_ptr<TokenSource> make_token_source(config::Config const& config) {
  auto const& d = config.data;
  auto const vocabulary = config.model.vocab_size;
  if (d.format == config::DataFormat::synthetic) return make_synthetic(config.run.seed, vocabulary);
  if (d.source.empty()) return std::make_unique<TokenFiles>(d.format, d.path, vocabulary);
  std::vector<std::unique_ptr<TokenSource>> parts;
  std::vector<double> weights;
  for (auto const& source : d.source) {
    parts.push_back(
        std::make_unique<TokenFiles>(d.format, std::vector<std::string>{source.path}, vocabulary, "data.source"));
    weights.push_back(source.weight);
  }
  if (parts.size() == 1) return std::move(parts.front());
  return make_joined(std::move(parts), weights);
}

Split split_tokens(std::int64_t tokens, double fraction) {
  // Tokens are split at any place: validation gets the last ones.
  P3D_REQUIRE(fraction >= 0.0 && fraction < 1.0, "data.split is at least 0 and less than 1");
  auto const held_out = static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(tokens)));
  return {{0, tokens - held_out}, {tokens - held_out, tokens}};
}

Split split_source(TokenSource const& source, double fraction) {
  auto const documents = source.documents();
  if (documents == 0 || fraction == 0.0) return split_tokens(source.size(), fraction);
  auto const share = std::max<std::int64_t>(1, split_tokens(documents, fraction).held_out.size());
  if (share >= documents) {
    base::refuse({.expected = "at least 2 documents: data.split takes whole ones for validation",
                  .found = fmt::format("{} (data.split = {:g})", documents, fraction),
                  .where = source.describe(),
                  .fix = "add documents, or set data.split to 0"});
  }
  auto const border = source.document(documents - share).begin;
  return {{0, border}, {border, source.size()}};
}

}  // namespace p3d::data
