// SPDX-License-Identifier: Apache-2.0
#pragma once
// The documents of a part of a corpus, in order, in pieces that fit into memory.

#include "data/corpus/plan.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace p3d::data {

/// Some text of a document. A document has one piece or more, the first of which may be empty.
struct DocumentPiece {
  std::string_view text;
  bool first = true;
  bool last = true;
};

struct DocumentOptions {
  std::string json_key = "text";
  bool cuts = false;  ///< a document may be divided (Tokenizer::cuts_at_lines)
};

/// Calls `take` with the pieces of a segment. `progress` gets bytes of the file as they are read. Throws base::Error
/// (bad_input) that names the file and the line.
void read_documents(CorpusFile const& file, Segment const& segment, DocumentOptions const& options,
                    std::function<void(DocumentPiece const&)> const& take,
                    std::function<void(std::int64_t)> const& progress);

/// The last place p in text[from, size) where a text may be divided: text[p - 2] is a printable ASCII character,
/// text[p - 1] a line end and text[p] an ASCII letter. npos: nowhere.
std::size_t last_cut(std::string_view text, std::size_t from);
std::size_t first_cut(std::string_view text, std::size_t from);

}  // namespace p3d::data
