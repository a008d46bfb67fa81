// SPDX-License-Identifier: Apache-2.0
// Files, compressed or not, as streams of bytes. Each kind tells an end that is an error (a file that was cut off) from
// the end of the file. consumed() counts bytes of the file itself, for progress: their number in all is known, the
// number of decompressed ones is not. Example: of half a .gz file, the read that reaches the cut throws "a file
// that ends too early".
#include "text/corpus/byte_stream.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

namespace p3d::text {

namespace {

[[noreturn]] void cannot_read(std::string const& path, std::string found, std::string expected) {
  base::refuse({.expected = std::move(expected),
                .found = std::move(found),
                .where = path,
                .fix = "get the file again, or leave it out"});
}

/// A file that is not compressed.
class Plain final : public ByteStream {
public:
  Plain(std::string path, std::int64_t begin)
      : path_(std::move(path)), stream_(std::fopen(path_.c_str(), "rb"), &std::fclose) {
    if (!stream_ || ::fseeko(stream_.get(), begin, SEEK_SET) != 0) failed();
  }
  std::size_t read(char* to, std::size_t count) override {
    auto const got = std::fread(to, 1, count, stream_.get());
    if (got < count && std::ferror(stream_.get()) != 0) failed();
    consumed_ += static_cast<std::int64_t>(got);
    return got;
  }
  std::int64_t consumed() const override { return consumed_; }

private:
  [[noreturn]] void failed() const {
    cannot_read(path_, std::generic_category().message(errno), "a file that this process may read");
  }
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream_;
  std::int64_t consumed_ = 0;
};

/// A file of gzip, by zlib, which also reads several streams in one file.
class Gzip final : public ByteStream {
public:
  explicit Gzip(std::string path) : path_(std::move(path)), file_(gzopen(path_.c_str(), "rb"), &gzclose) {
    if (!file_) cannot_read(path_, std::generic_category().message(errno), "a file that this process may read");
    gzbuffer(file_.get(), 1 << 18);
  }
  std::size_t read(char* to, std::size_t count) override {
    std::size_t got = 0;
    while (got < count) {
      // One call of zlib takes a count of 32 bits.
      auto const want = static_cast<unsigned>(std::min<std::size_t>(count - got, 1 << 30));
      int const n = gzread(file_.get(), to + got, want);
      // zlib passes a file without a header of gzip through unchanged; here its ending promises one.
      if (n > 0 && gzdirect(file_.get()) != 0) cannot_read(path_, "a file without the header of gzip", "a .gz file");
      if (n < 0) failed();
      if (n == 0) break;
      got += static_cast<std::size_t>(n);
    }
    if (got < count) {
      int error = Z_OK;
      gzerror(file_.get(), &error);
      if (error != Z_OK && error != Z_STREAM_END) failed();
    }
    return got;
  }
  std::int64_t consumed() const override { return gzoffset(file_.get()); }

private:
  [[noreturn]] void failed() const {
    int error = Z_OK;
    std::string const text = gzerror(file_.get(), &error);
    cannot_read(path_, error == Z_BUF_ERROR ? "a file that ends too early" : text, "a whole .gz file");
  }
  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

/// A file of zstd.
class Zstd final : public ByteStream {
public:
  explicit Zstd(std::string const& path)
      : path_(path), file_(path, 0), context_(ZSTD_createDStream(), &ZSTD_freeDStream), in_(ZSTD_DStreamInSize()) {
    if (!context_) throw std::bad_alloc();
  }
  std::size_t read(char* to, std::size_t count) override {
    // zstd has buffers of its own: a call may give output without reading, or read without giving output. So the file
    // is read only when the context has used all input and has no output left.
    ZSTD_outBuffer out{to, count, 0};
    while (out.pos < count) {
      if (input_.pos == input_.size && !full_) {
        input_ = {in_.data(), file_.read(in_.data(), in_.size()), 0};
        if (input_.size == 0) {
          if (open_) cannot_read(path_, "a file that ends too early", "a whole .zst file");
          break;
        }
      }
      auto const before = out.pos, taken = input_.pos;
      // `rest` is 0 at the end of a frame; other values are a hint of how many bytes come next.
      auto const rest = ZSTD_decompressStream(context_.get(), &out, &input_);
      if (ZSTD_isError(rest) != 0) cannot_read(path_, ZSTD_getErrorName(rest), "a .zst file");
      bool const worked = out.pos > before || input_.pos > taken;
      if (worked) open_ = rest != 0;
      full_ = worked && out.pos == count;  // the context may hold more output
    }
    return out.pos;
  }
  std::int64_t consumed() const override { return file_.consumed(); }

private:
  std::string path_;
  Plain file_;
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> context_;
  std::vector<char> in_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  bool open_ = false;  ///< true while reading is inside of a frame
  bool full_ = false;  ///< the last call filled its output, so the context may hold more
};

}  // namespace

Compression compression_of(std::string_view path) {
  return path.ends_with(".gz") ? Compression::gzip : path.ends_with(".zst") ? Compression::zstd : Compression::none;
}

std::unique_ptr<ByteStream> open_bytes(std::string const& path, std::int64_t begin) {
  if (compression_of(path) == Compression::none) return std::make_unique<Plain>(path, begin);
  return open_bytes(path, compression_of(path));
}

std::unique_ptr<ByteStream> open_bytes(std::string const& path, Compression compression) {
  switch (compression) {
    case Compression::none: return std::make_unique<Plain>(path, 0);
    case Compression::gzip: return std::make_unique<Gzip>(path);
    case Compression::zstd: return std::make_unique<Zstd>(path);
  }
  return {};
}

}  // namespace p3d::text
