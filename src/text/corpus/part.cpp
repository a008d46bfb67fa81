// SPDX-License-Identifier: Apache-2.0
// A part of a corpus becomes NNNNNN.bin, its tokens, and NNNNNN.len, the lengths of its documents. A document may begin
// in one part and end in a later one; its later pieces are marked by negative lengths, so that the parts can be made in
// any order and be joined afterwards. Example: a part that holds the end of a document of 7 tokens and a whole one of 5
// has the lengths -8 and 5.
#include "text/corpus/part.hpp"

#include "text/corpus/byte_stream.hpp"
#include "text/token_output.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

namespace p3d::text {

namespace {

constexpr std::uint64_t mark = 0x3154524150443350ULL;  // "P3DPART1"
/// Bytes of the head of NNNNNN.len: mark, entries, tokens, text_bytes. An entry follows for each document: its tokens,
/// or -1 - tokens where the document began in an earlier part.
constexpr std::int64_t head_bytes = 32;

/// Reads the head of a .len file; nothing when it is none.
std::optional<PartCounts> read_head(ByteStream& stream) {
  std::array<std::int64_t, 4> head{};
  if (stream.read(reinterpret_cast<char*>(head.data()), sizeof head) != sizeof head) return {};
  if (static_cast<std::uint64_t>(head[0]) != mark) return {};
  return PartCounts{head[1], head[2], head[3]};
}

}  // namespace

std::string part_file(std::string const& folder, std::size_t part, char const* ending) {
  return fmt::format("{}/{:06}.{}", folder, part, ending);
}

std::optional<PartCounts> done_part(std::string const& folder, std::size_t part, TokenType type) {
  auto const lengths = part_file(folder, part, "len"), tokens = part_file(folder, part, "bin");
  std::error_code why;
  auto const length_bytes = std::filesystem::file_size(lengths, why);
  if (why) return {};
  auto const token_bytes = std::filesystem::file_size(tokens, why);
  if (why) return {};
  auto const counts = read_head(*open_bytes(lengths));
  // A part counts as done when both of its files have the sizes that its head promises.
  if (!counts || static_cast<std::int64_t>(length_bytes) != head_bytes + 8 * counts->entries ||
      static_cast<std::int64_t>(token_bytes) != size_of(type) * counts->tokens)
    return {};
  return counts;
}

void read_lengths(std::string const& folder, std::size_t part, std::function<void(std::int64_t, bool)> const& take) {
  auto const stream = open_bytes(part_file(folder, part, "len"));
  auto const counts = read_head(*stream);
  std::array<std::int64_t, 4096> some{};
  for (std::int64_t left = counts ? counts->entries : 0; left > 0;) {
    auto const want = static_cast<std::size_t>(std::min<std::int64_t>(left, std::ssize(some)));
    if (stream->read(reinterpret_cast<char*>(some.data()), 8 * want) != 8 * want) break;
    for (std::size_t i = 0; i < want; ++i) take(some[i] >= 0 ? some[i] : -1 - some[i], some[i] >= 0);
    left -= static_cast<std::int64_t>(want);
  }
}

void tokenize_part(std::vector<CorpusFile> const& files, CorpusPart const& part, Tokenizer const& tokenizer,
                   PartOptions const& options, std::string const& folder, std::size_t number,
                   std::function<void(std::int64_t)> const& progress) {
  OutputFile tokens(part_file(folder, number, "bin"));
  std::vector<std::int64_t> lengths;
  PartCounts counts;
  std::vector<std::int32_t> ids;
  bool open = false;  // true while a document goes on whose first piece is in this part
  for (auto const& segment : part) {
    read_documents(
        files[segment.file], segment, options.documents,
        [&](DocumentPiece const& piece) {
          ids.clear();
          tokenizer.encode(piece.text, ids, options.special);
          bool const empty = ids.empty() && piece.first;
          if (piece.last && !empty && options.end_of_document >= 0) ids.push_back(options.end_of_document);
          write_tokens(tokens, options.type, ids);
          auto const n = std::ssize(ids);
          counts.tokens += n;
          counts.text_bytes += std::ssize(piece.text);
          // The first piece opens an entry; later pieces of the same document are added to it.
          if (piece.first)
            lengths.push_back(n);
          else if (open)
            lengths.back() += lengths.back() >= 0 ? n : -n;
          else
            lengths.push_back(-1 - n);
          open = !piece.last;
        },
        progress);
    open = false;
  }
  tokens.finish();
  OutputFile out(part_file(folder, number, "len"));
  out.put(mark);
  out.put(static_cast<std::int64_t>(lengths.size()));
  out.put(counts.tokens);
  out.put(counts.text_bytes);
  out.write(lengths.data(), 8 * lengths.size());
  out.finish();
}

}  // namespace p3d::text
