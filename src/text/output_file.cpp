// SPDX-License-Identifier: Apache-2.0
// A file under construction has the ending .partial, so that a file of the right name is always whole. The data is on
// the disk before the file gets its name: after a power failure the name must not stand for an empty file.
#include "text/output_file.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <bit>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <unistd.h>

namespace p3d::text {

static_assert(std::endian::native == std::endian::little, "files are written as they lie in memory");

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)),
      partial_(path_ + ".partial"),
      buffer_(std::size_t{1} << 20),
      stream_(std::fopen(partial_.c_str(), "wb"), &std::fclose) {
  if (!stream_) failed(errno);
  std::setvbuf(stream_.get(), buffer_.data(), _IOFBF, buffer_.size());
}

OutputFile::~OutputFile() {
  stream_.reset();
  std::error_code ignored;
  if (!finished_) std::filesystem::remove(partial_, ignored);
}

void OutputFile::failed(int error) const {
  throw base::Error(
      {.expected = fmt::format("to write {}", partial_),
       .found = fmt::format("{} after {} bytes", std::generic_category().message(error), bytes_),
       .where = path_,
       .fix = "make room there, or name another place; what is done is kept, run the same command again"});
}

void OutputFile::write(void const* bytes, std::size_t count) {
  errno = 0;
  if (count > 0 && std::fwrite(bytes, 1, count, stream_.get()) != count) failed(errno);
  bytes_ += static_cast<std::int64_t>(count);
}

void OutputFile::close() {
  if (!stream_) return;
  errno = 0;
  if (std::fflush(stream_.get()) != 0 || ::fsync(::fileno(stream_.get())) != 0) failed(errno);
  if (std::fclose(stream_.release()) != 0) failed(errno);
}

void OutputFile::finish() {
  close();
  std::error_code why;
  std::filesystem::rename(partial_, path_, why);
  if (why) failed(why.value());
  finished_ = true;
}

}  // namespace p3d::text
