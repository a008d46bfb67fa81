// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads the documents of a part of a corpus, in order, in pieces that fit into memory.

#include "text/corpus/plan.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace p3d::text {

/// A piece of a document's text. A document has one piece or more, the first of which may be empty.
struct DocumentPiece {
  std::string_view text;
  bool first = true;
  bool last = true;
};

/// Options of reading.
struct DocumentOptions {
  std::string json_key = "text";  ///< key of the text in lines of JSON
  bool cuts = false;              ///< documents may be divided (Tokenizer::cuts_at_lines)
};

/// Calls `take` with the pieces of a segment. `progress` gets the numbers of bytes of the file as they are read. Throws
/// base::Error (bad_input) that names the file and the line.
void read_documents(CorpusFile const& file, Segment const& segment, DocumentOptions const& options,
                    std::function<void(DocumentPiece const&)> const& take,
                    std::function<void(std::int64_t)> const& progress);

/// The last place p in text[from, size) where a text may be divided, or npos: text[p - 2] is a printable ASCII
/// character, text[p - 1] a line end and text[p] an ASCII letter.
std::size_t last_cut(std::string_view text, std::size_t from);
/// The first such place at or after `from`, or npos.
std::size_t first_cut(std::string_view text, std::size_t from);

}  // namespace p3d::text
