// SPDX-License-Identifier: Apache-2.0
// Files of tokens are mapped into memory: the system reads the pages that samples touch, keeps them while there is
// room, and shares them among the ranks of a node.
#include "data/mapped_file.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace p3d::data {

namespace {

std::string reason(int code) { return std::generic_category().message(code); }

[[noreturn]] void unreadable(std::string const& path, int code, std::string const& key) {
  bool const too_many = code == EMFILE || code == ENFILE;
  base::refuse({.expected = "a file that this process may read",
                .found = fmt::format("{}: {}", path, reason(code)),
                .where = key,
                .fix = too_many ? "raise the number of open files (ulimit -n), or join files"
                                : fmt::format("correct {}, or make the file readable on every node", key)});
}

}  // namespace

MappedFile::MappedFile(std::string path, std::string const& key) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) unreadable(path_, errno, key);
  struct stat status {};
  int const why = ::fstat(file_, &status) != 0 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  void* data = nullptr;
  if (why == 0 && status.st_size > 0) {
    data = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, file_, 0);
  }
  if (why != 0 || data == MAP_FAILED) {
    int const code = why != 0 ? why : errno;
    ::close(file_);
    unreadable(path_, code, key);
  }
  data_ = static_cast<std::byte const*>(data);
  size_ = status.st_size;
  expect(Access::windows);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(size_));
  if (file_ >= 0) ::close(file_);
}

// A file that was cut after it was mapped would end the process with SIGBUS at the next read beyond its end.
void MappedFile::require_whole() const {
  struct stat status {};
  if (file_ < 0 || (::fstat(file_, &status) == 0 && status.st_size >= size_)) return;
  base::refuse({.expected = fmt::format("{} bytes, as when the file was opened", size_),
                .found = fmt::format("{} bytes", status.st_size),
                .where = path_,
                .fix = "do not change training data while a run reads them"});
}

void MappedFile::expect(Access access) const {
  if (data_ == nullptr) return;
  int const advice = access == Access::windows ? MADV_RANDOM : access == Access::most ? MADV_NORMAL : MADV_SEQUENTIAL;
  // This is advice: whatever the system makes of it, the bytes are the same.
  ::madvise(const_cast<std::byte*>(data_), static_cast<std::size_t>(size_), advice);
}

ScratchMemory::ScratchMemory(std::int64_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  auto const* const given = std::getenv("TMPDIR");
  std::string const folder = given != nullptr && *given != '\0' ? given : "/tmp";
  auto name = folder + "/p3d-order-XXXXXX";
  int const file = ::mkostemp(name.data(), O_CLOEXEC);
  int why = file < 0 ? errno : 0;
  if (file >= 0) {
    ::unlink(name.c_str());
    why = ::posix_fallocate(file, 0, bytes);  // finds a full disk now; later it would be SIGBUS
    void* const data =
        why == 0 ? ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                 : MAP_FAILED;
    if (why == 0 && data == MAP_FAILED) why = errno;
    if (why == 0) data_ = data;
    ::close(file);
  }
  if (why == 0) return;
  throw base::Error({.expected = fmt::format("room for a file of {} bytes, for the order of the samples", bytes),
                     .found = reason(why),
                     .where = folder,
                     .fix = "set TMPDIR to a folder with room"});
}

ScratchMemory::~ScratchMemory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(size_));
}

}  // namespace p3d::data
