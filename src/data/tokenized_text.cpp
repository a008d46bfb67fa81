// SPDX-License-Identifier: Apache-2.0
// Text as tokens in memory, for p3d eval: a text of a few megabytes is not worth files. Each file is a document, and
// ends with the tokenizer's token for that, if it has one.
#include <p3d/data/token_source.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/text/text_files.hpp>
#include <p3d/text/tokenizer.hpp>

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <utility>

namespace p3d::data {

namespace {

/// The bytes of a file.
std::string contents(text::TextFile const& file) {
  errno = 0;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const stream(std::fopen(file.path.c_str(), "rb"), &std::fclose);
  std::string out(static_cast<std::size_t>(file.bytes), '\0');
  auto const got = stream ? std::fread(out.data(), 1, out.size(), stream.get()) : 0;
  if (stream && got == out.size()) return out;
  base::refuse({.expected = fmt::format("{} bytes from {}", file.bytes, file.path),
                .found = errno != 0 ? std::generic_category().message(errno) : fmt::format("{} bytes", got),
                .where = "data.path",
                .fix = "make the file readable on every node, and do not change it while a run starts"});
}

/// Text that is tokenized when the source is made.
class TokenizedText final : public TokenSource {
public:
  TokenizedText(std::vector<text::TextFile> const& files, text::Tokenizer const& tokenizer) {
    auto const end = tokenizer.end_of_document();
    for (auto const& file : files) {
      auto const before = tokens_.size();
      tokenizer.encode(contents(file), tokens_);
      if (end >= 0 && tokens_.size() > before) tokens_.push_back(end);
    }
    auto const bytes = text::total_bytes(files);
    if (tokens_.empty()) {
      base::refuse({.expected = "text to train on",
                    .found = fmt::format("no token in {}, the first is {}", base::counted(std::ssize(files), "file"),
                                         files.front().path),
                    .where = "data.path",
                    .fix = "name a text file or a folder with text files"});
    }
    hash_ = XXH64(tokens_.data(), tokens_.size() * sizeof(std::int32_t), 0);
    text_ = fmt::format("{}, {} bytes, {} tokens; {}",
                        files.size() == 1 ? files.front().path : base::counted(std::ssize(files), "file"), bytes,
                        tokens_.size(), tokenizer.describe());
  }

  std::int64_t size() const override { return std::ssize(tokens_); }
  void read(std::int64_t first, std::span<int> out) const override {
    P3D_REQUIRE(first >= 0 && first + std::ssize(out) <= size(), "the tokens exist");
    std::copy_n(tokens_.begin() + first, out.size(), out.begin());
  }
  std::uint64_t hash() const override { return hash_; }
  std::string describe() const override { return text_; }

private:
  std::vector<std::int32_t> tokens_;
  std::uint64_t hash_ = 0;
  std::string text_;
};

}  // namespace

std::unique_ptr<TokenSource> make_tokenized_text(std::vector<std::string> const& paths,
                                                 text::Tokenizer const& tokenizer) {
  return std::make_unique<TokenizedText>(text::find_text_files(paths), tokenizer);
}

}  // namespace p3d::data
