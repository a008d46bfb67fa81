// SPDX-License-Identifier: Apache-2.0
#pragma once
// Facts about a model of SentencePiece that its library does not tell: a few fields of its protocol buffer.

#include <string>
#include <string_view>

namespace p3d::text {

/// The fields of a model; the defaults are those of the format.
struct SentencePieceOptions {
  bool bpe = false;
  bool add_dummy_prefix = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  std::string normalization;  ///< name of the normalization rule
};
/// Reads the fields of a model that the library has accepted. A field that cannot be read keeps its default.
SentencePieceOptions sentencepiece_options(std::string_view model);

}  // namespace p3d::text
