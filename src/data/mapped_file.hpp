// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files as memory. Pages come when they are read, from the page cache that all ranks of a node share, and go when
// memory is short.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

namespace p3d::data {

/// A file that is mapped for reading. Its size is that at opening.
class MappedFile {
public:
  MappedFile() = default;
  /// Throws base::Error (bad_input) when the file cannot be opened or mapped; `key` is the key of the input that names
  /// it.
  MappedFile(std::string path, std::string const& key);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }

  std::string const& path() const { return path_; }
  std::int64_t size() const { return size_; }
  std::span<std::byte const> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }
  /// The number that begins at byte `offset`, aligned or not; it must lie within the file.
  template <class T>
  T load(std::int64_t offset) const {
    T out;
    std::memcpy(&out, data_ + offset, sizeof(T));
    return out;
  }
  /// Throws base::Error (bad_input) when the file is shorter than at opening: reading beyond its end would end the
  /// process (SIGBUS). A file that shrinks between this call and the reading is not caught.
  void require_whole() const;
  /// The way in which the file is about to be read: windows at random places, as after opening; most of it in any
  /// order; or front to back. For a large file on a disk the wrong one costs minutes.
  enum class Access { windows, most, in_order };
  /// Tells the system the way of reading. It is advice only.
  void expect(Access access) const;

private:
  void swap(MappedFile& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(file_, other.file_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  std::string path_;
  int file_ = -1;
  std::byte const* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// Memory for large tables that the system may write out: a file in $TMPDIR (or /tmp) without a name.
class ScratchMemory {
public:
  ScratchMemory() = default;
  /// Throws base::Error when the disk has no room. The memory is zeroed.
  explicit ScratchMemory(std::int64_t bytes);
  ~ScratchMemory();
  ScratchMemory(ScratchMemory&& other) noexcept { swap(other); }
  ScratchMemory& operator=(ScratchMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  /// The memory as an array of T.
  template <class T>
  std::span<T> as() const {
    return {static_cast<T*>(data_), static_cast<std::size_t>(size_) / sizeof(T)};
  }

private:
  void swap(ScratchMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  void* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace p3d::data
