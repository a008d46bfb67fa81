// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file without a name, with room on the disk for all of it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

namespace p3d::device::detail {

class UnnamedFile {
public:
  /// What a file is called where the system has none without a name, for the moment until it is unlinked.
  static constexpr char const* name = "p3d-swap";

  /// Throws base::Error with the folder, what is free there and what to do.
  UnnamedFile(std::string const& folder, std::int64_t bytes);
  ~UnnamedFile();
  UnnamedFile(UnnamedFile const&) = delete;
  UnnamedFile& operator=(UnnamedFile const&) = delete;

  /// Whether the page cache is bypassed: memory, places and lengths must then be multiples of 4096 bytes.
  bool direct() const { return direct_; }
  bool in_memory() const { return in_memory_; }

  /// All of it: 0, or errno (EIO at the end of the file). What goes through the page cache leaves it a few pieces
  /// later.
  int write(std::int64_t offset, std::byte const* from, std::size_t bytes);
  int read(std::int64_t offset, std::byte* to, std::size_t bytes);
  /// Asks the system to begin with a read that comes soon.
  void read_ahead(std::int64_t offset, std::size_t bytes);
  /// What is still in the page cache is on disk and gone when it returns: 0 or errno.
  int leave_cache();

private:
  void reserve(std::string const& folder, std::int64_t bytes);
  int drop_oldest();
  template <class Call>
  int transfer(std::int64_t offset, std::size_t bytes, Call&& call);

  int fd_ = -1;
  std::atomic<bool> direct_ = false;  ///< the thread that reads and writes may end it
  bool in_memory_ = false;
  struct Cached {
    std::int64_t offset;
    std::size_t bytes;
  };
  std::deque<Cached> cached_;  ///< written but not yet known to be on disk
};

}  // namespace p3d::device::detail
