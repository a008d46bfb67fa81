// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a corpus is divided into parts. It depends on the files alone, never on ranks or threads.

#include <p3d/data/token_source.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::data {

struct CorpusFile {
  std::string path;
  std::int64_t bytes = 0;
  std::int64_t changed = 0;  ///< time of the last change, in the file system's units
  bool lines = false;        ///< JSON, a document a line; else one document
};

/// Some bytes of a file: the lines, or the rest of the document, that begin in [begin, end).
struct Segment {
  std::size_t file = 0;
  std::int64_t begin = 0, end = 0;
};
using CorpusPart = std::vector<Segment>;

/// The files of a corpus. `left_out` gets a line for each file of a folder that is no text ("logo.png: a NUL at byte
/// 9"). Throws base::Error (bad_input) as find_text_files does, for a file that is named itself and is no text, and
/// where nothing else is left.
std::vector<CorpusFile> find_corpus(std::vector<std::string> const& paths, std::vector<std::string>& left_out);
/// Parts of about the same size. `cuts`: one document may be divided (Tokenizer::cuts_at_lines). Compressed files stay
/// whole.
std::vector<CorpusPart> divide_corpus(std::vector<CorpusFile> const& files, bool cuts);

}  // namespace p3d::data
