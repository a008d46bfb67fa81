// SPDX-License-Identifier: Apache-2.0
#pragma once
// The division of a corpus into parts. It depends on the files alone, never on ranks or threads.

#include <p3d/text/text_files.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::text {

/// A file of a corpus.
struct CorpusFile {
  std::string path;
  std::int64_t bytes = 0;
  std::int64_t changed = 0;  ///< time of the last change, in the file system's units
  bool lines = false;        ///< lines of JSON, each a document; otherwise the file is one document
};

/// Some bytes of a file: the lines that begin in [begin, end), or the piece of a document that lies there.
struct Segment {
  std::size_t file = 0;
  std::int64_t begin = 0, end = 0;
};
/// A part: the segments that are tokenized as one.
using CorpusPart = std::vector<Segment>;

/// The first words of the plan in a folder of parts.
constexpr char const* parts_title = "p3d data tokenize, parts";

/// Lists the files of a corpus. Token files and parts that p3d data tokenize made are no text. `left_out` gets a line
/// for each file of a folder that is not text ("logo.png: a NUL at byte 9"). Throws base::Error (bad_input) as
/// find_text_files does, for a file that is named itself and is not text, and when nothing else is left.
std::vector<CorpusFile> find_corpus(std::vector<std::string> const& paths, std::vector<std::string>& left_out);
/// Divides the files into parts of about the same size. `cuts`: a document may be divided (Tokenizer::cuts_at_lines).
/// Compressed files are never divided.
std::vector<CorpusPart> divide_corpus(std::vector<CorpusFile> const& files, bool cuts);

}  // namespace p3d::text
