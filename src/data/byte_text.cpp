// SPDX-License-Identifier: Apache-2.0
#include <p3d/data/token_source.hpp>

#include <p3d/base/error.hpp>

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

/// Appends the bytes of a file, however many there are now.
void append(TextFile const& file, std::vector<std::uint8_t>& tokens) {
  errno = 0;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const stream(std::fopen(file.path.c_str(), "rb"), &std::fclose);
  auto const begin = tokens.size();
  std::size_t got = 0;
  if (stream) {
    tokens.resize(begin + static_cast<std::size_t>(file.bytes));
    got = std::fread(tokens.data() + begin, 1, static_cast<std::size_t>(file.bytes), stream.get());
  }
  if (!stream || got != static_cast<std::size_t>(file.bytes)) {
    throw base::Error({.expected = fmt::format("{} bytes from {}", file.bytes, file.path),
                       .found = errno != 0 ? std::generic_category().message(errno) : fmt::format("{} bytes", got),
                       .where = "data.path",
                       .fix = "make the file readable on every node, and do not change it while a run starts"},
                      base::ExitCode::bad_input);
  }
}

class ByteText final : public TokenSource {
public:
  ByteText(std::vector<TextFile> files, std::int64_t vocab_size) : files_(std::move(files)) {
    auto const total = total_bytes(files_);
    if (total == 0) {
      throw base::Error({.expected = "text to train on",
                         .found = fmt::format("{} empty file(s), the first is {}", files_.size(), files_.front().path),
                         .where = "data.path",
                         .fix = "name a text file or a folder with text files"},
                        base::ExitCode::bad_input);
    }
    tokens_.reserve(static_cast<std::size_t>(total));
    for (auto const& f : files_) append(f, tokens_);
    check_vocabulary(vocab_size);
    hash_ = XXH64(tokens_.data(), tokens_.size(), 0);
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(tokens_.size()); }

  void read(std::int64_t first, std::span<int> out) const override {
    P3D_REQUIRE(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= size(), "the tokens exist");
    std::copy_n(tokens_.begin() + first, out.size(), out.begin());
  }

  std::uint64_t hash() const override { return hash_; }

  std::string describe() const override {
    return files_.size() == 1 ? fmt::format("{}, {} bytes", files_.front().path, size())
                              : fmt::format("{} files, {} bytes", files_.size(), size());
  }

private:
  void check_vocabulary(std::int64_t vocab_size) const {
    auto const bad = std::find_if(tokens_.begin(), tokens_.end(), [=](std::uint8_t t) { return t >= vocab_size; });
    if (bad == tokens_.end()) return;
    std::int64_t place = bad - tokens_.begin();
    auto file = files_.begin();
    while (place >= file->bytes) place -= (file++)->bytes;
    auto const highest = *std::max_element(tokens_.begin(), tokens_.end());
    throw base::Error({.expected = fmt::format("tokens below model.vocab_size = {}", vocab_size),
                       .found = fmt::format("byte {}", *bad),
                       .where = fmt::format("{}, byte {} of the file", file->path, place + 1),
                       .fix = fmt::format("set model.vocab_size to {} or more (256 fits every text)", highest + 1)},
                      base::ExitCode::bad_input);
  }

  std::vector<TextFile> files_;
  std::vector<std::uint8_t> tokens_;
  std::uint64_t hash_ = 0;
};

}  // namespace

std::unique_ptr<TokenSource> make_byte_text(std::vector<std::string> const& paths, std::int64_t vocab_size) {
  return std::make_unique<ByteText>(find_text_files(paths), vocab_size);
}

}  // namespace p3d::data
