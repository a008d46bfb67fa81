// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file without a name, with space on the disk for all of it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

namespace p3d::device::detail {

/// An open file that disappears with its descriptor.
class UnnamedFile {
public:
  /// The name that a file has for the moment until it is unlinked, where the system has no files without a name.
  static constexpr char const* name = "p3d-swap";

  /// Makes a file of so many bytes. Throws base::Error with the folder, the bytes that are free there and what to do.
  UnnamedFile(std::string const& folder, std::int64_t bytes);
  ~UnnamedFile();
  UnnamedFile(UnnamedFile const&) = delete;
  UnnamedFile& operator=(UnnamedFile const&) = delete;

  /// True when the page cache is bypassed: addresses, offsets and lengths must then be multiples of 4096 bytes.
  bool direct() const { return direct_; }
  /// True when the file system is in memory (tmpfs).
  bool in_memory() const { return in_memory_; }

  /// Writes all bytes. Returns 0 or errno. Pages that go through the page cache leave it a few pieces later.
  int write(std::int64_t offset, std::byte const* from, std::size_t bytes);
  /// Reads all bytes. Returns 0 or errno (EIO at the end of the file).
  int read(std::int64_t offset, std::byte* to, std::size_t bytes);
  /// Asks the system to begin with a read that comes soon.
  void read_ahead(std::int64_t offset, std::size_t bytes);
  /// Waits until all pieces in the page cache are on disk and drops them from the cache. Returns 0 or errno.
  int leave_cache();

private:
  void reserve(std::string const& folder, std::int64_t bytes);
  int drop_oldest();
  template <class Call>
  int transfer(std::int64_t offset, std::size_t bytes, Call&& call);

  int fd_ = -1;
  std::atomic<bool> direct_ =
      false;  ///< atomic, because the thread that reads and writes may clear it while another asks
  bool in_memory_ = false;
  struct Cached {
    std::int64_t offset;
    std::size_t bytes;
  };
  std::deque<Cached> cached_;  ///< pieces written but not yet known to be on disk
};

}  // namespace p3d::device::detail
