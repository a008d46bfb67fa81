// SPDX-License-Identifier: Apache-2.0
// Reads the documents of a segment. A segment of lines (JSON) holds the lines that begin in it; a segment of one
// document ends at the first cut that is not before its end, where the next segment begins. So the segments of a file
// give each document, or piece of one, just once, and the division depends on the file alone. Example: a text of 5 MiB
// in segments of 2 MiB gives three pieces, which end at lines just behind 2 MiB and 4 MiB, and at the end.
#include "text/corpus/documents.hpp"

#include "text/corpus/byte_stream.hpp"
#include "text/corpus/json_text.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace p3d::text {

namespace {

/// Bytes of the largest read.
constexpr std::size_t chunk = std::size_t{4} << 20;
/// Most bytes of a document that cannot be divided.
constexpr std::size_t largest_piece = std::size_t{1} << 31;

/// True when a text may be divided at p; see last_cut().
bool is_cut(std::string_view text, std::size_t p) {
  auto const letter = static_cast<unsigned char>(text[p] | 0x20);
  return text[p - 1] == '\n' && text[p - 2] > 0x20 && text[p - 2] < 0x7F && letter >= 'a' && letter <= 'z';
}

/// A window on a file: the bytes from some place on of which the needed ones are in memory.
class Window {
public:
  Window(std::string const& path, std::int64_t begin, std::function<void(std::int64_t)> const& progress)
      : stream_(open_bytes(path, begin)), path_(path), progress_(progress), offset_(begin) {}

  std::string_view text() const { return std::string_view(bytes_).substr(begin_); }
  std::int64_t offset() const { return offset_; }  ///< place of text() in the file, or in the decompressed bytes
  bool at_end() const { return at_end_; }

  /// Reads more bytes into the window. False: the file has no more.
  bool grow() {
    if (at_end_) return false;
    if (text().size() + chunk > largest_piece) {
      base::refuse({.expected = "documents that fit into memory, of at most 2 GiB",
                    .found = fmt::format("one that is longer, from byte {} on", offset_),
                    .where = path_,
                    .fix = "divide it; text files may be longer with byte-level tokenizers"});
    }
    bytes_.erase(0, std::exchange(begin_, 0));
    auto const old = bytes_.size();
    bytes_.resize(old + step_);
    auto const got = stream_->read(bytes_.data() + old, step_);
    bytes_.resize(old + got);
    at_end_ = got < step_;
    step_ = std::min(4 * step_, chunk);
    progress_(stream_->consumed() - std::exchange(consumed_, stream_->consumed()));
    return true;
  }
  /// Drops bytes from the window's beginning.
  void drop(std::size_t n) {
    begin_ += n;
    offset_ += static_cast<std::int64_t>(n);
  }

private:
  std::unique_ptr<ByteStream> stream_;
  std::string path_;
  std::function<void(std::int64_t)> const& progress_;
  std::string bytes_;
  std::size_t begin_ = 0;
  std::size_t step_ = std::size_t{1} << 14;  ///< bytes of the next read, which grow: most files are small
  std::int64_t offset_ = 0, consumed_ = 0;
  bool at_end_ = false;
};

/// The number of the line that begins at a byte of a file. It reads the file again, for a message.
std::int64_t line_number(std::string const& path, std::int64_t offset) {
  auto const stream = open_bytes(path);
  std::string bytes(chunk, '\0');
  std::int64_t line = 1;
  for (std::int64_t done = 0; done < offset;) {
    auto const got = stream->read(bytes.data(), std::min<std::size_t>(chunk, static_cast<std::size_t>(offset - done)));
    if (got == 0) break;
    line += std::count(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(got), '\n');
    done += static_cast<std::int64_t>(got);
  }
  return line;
}

[[noreturn]] void bad_line(std::string const& path, std::int64_t offset, std::string const& key, std::string found) {
  base::refuse({.expected = fmt::format("an object in JSON with the text of a document under \"{}\"", key),
                .found = std::move(found),
                .where = fmt::format("{}:{}", path, line_number(path, offset)),
                .fix = "correct the line or remove it; --json-key names another key"});
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

/// Reads the documents of a segment of lines.
template <class Take, class Progress>
void read_lines(CorpusFile const& file, Segment const& segment, std::string const& key, Take const& take,
                Progress const& progress) {
  bool const plain = compression_of(file.path) == Compression::none;
  // The line that begins before the segment belongs to the segment before it.
  Window window(file.path, segment.begin > 0 ? segment.begin - 1 : 0, progress);
  bool skip = segment.begin > 0;
  std::string text;
  std::size_t searched = 0;
  while (!plain || window.offset() < segment.end || skip) {
    auto const end = window.text().find('\n', searched);
    if (end == std::string_view::npos && !window.at_end()) {
      searched = window.text().size();
      window.grow();
      continue;
    }
    auto line = window.text().substr(0, end);
    auto const whole = end == std::string_view::npos ? line.size() : end + 1;
    if (whole == 0) break;
    if (!skip) {
      auto const offset = window.offset();
      if (offset == 0 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
      if (!is_blank(line)) {
        if (auto wrong = read_json_text(line, key, text); !wrong.empty())
          bad_line(file.path, offset, key, std::move(wrong));
        take({text, true, true});
      }
    }
    skip = false;
    window.drop(whole);
    searched = 0;
  }
}

/// Reads the pieces of a segment of one document. The segment ends at the first cut that is not before its end, where
/// the next one begins; so it may be empty.
template <class Take, class Progress>
void read_text(CorpusFile const& file, Segment const& segment, bool cuts, Take const& take, Progress const& progress) {
  bool const to_end = compression_of(file.path) != Compression::none || segment.end == file.bytes;
  auto const before = std::min<std::int64_t>(segment.begin, 2);  // the bytes before p that a cut looks at
  Window window(file.path, segment.begin - before, progress);
  bool first = segment.begin == 0;
  if (!first) {
    auto const within = [&] { return segment.end - window.offset(); };
    std::size_t cut = 0;
    while ((cut = first_cut(window.text(), static_cast<std::size_t>(before))) == std::string_view::npos) {
      if (std::ssize(window.text()) >= within()) return;
      if (window.text().size() > 2) window.drop(window.text().size() - 2);
      if (!window.grow()) return;
    }
    if (static_cast<std::int64_t>(cut) >= within()) return;
    window.drop(cut);
  }
  auto const piece = [&](std::size_t bytes, bool last) {
    take({window.text().substr(0, bytes), std::exchange(first, false), last});
    window.drop(bytes);
  };
  for (;;) {
    auto const left = segment.end - window.offset();
    if (!to_end && std::ssize(window.text()) > left) {
      auto const cut = first_cut(window.text(), static_cast<std::size_t>(left));
      if (cut != std::string_view::npos) return piece(cut, false);
    }
    if (cuts && window.text().size() >= chunk) {
      auto const cut = last_cut(window.text(), 2);
      if (cut != std::string_view::npos) piece(cut, false);
    }
    if (!window.grow()) return piece(window.text().size(), true);
  }
}

}  // namespace

std::size_t last_cut(std::string_view text, std::size_t from) {
  for (auto p = text.size(); p-- > std::max<std::size_t>(from, 2);) {
    if (is_cut(text, p)) return p;
  }
  return text.npos;
}

std::size_t first_cut(std::string_view text, std::size_t from) {
  for (auto p = std::max<std::size_t>(from, 2); p < text.size(); ++p) {
    if (is_cut(text, p)) return p;
  }
  return text.npos;
}

void read_documents(CorpusFile const& file, Segment const& segment, DocumentOptions const& options,
                    std::function<void(DocumentPiece const&)> const& take,
                    std::function<void(std::int64_t)> const& progress) {
  if (file.lines)
    read_lines(file, segment, options.json_key, take, progress);
  else
    read_text(file, segment, options.cuts, take, progress);
}

}  // namespace p3d::text
