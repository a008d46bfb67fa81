// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a model of SentencePiece says of itself, which its library tells nobody: a few fields of its protocol buffer.

#include <string>
#include <string_view>

namespace p3d::data {

struct SentencePieceOptions {
  bool bpe = false;
  bool add_dummy_prefix = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  std::string normalization;  ///< the name of its rule
};
/// Of a model that the library has read. What cannot be read keeps its default.
SentencePieceOptions sentencepiece_options(std::string_view model);

}  // namespace p3d::data
