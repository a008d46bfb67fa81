// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host memory that waits on a disk of this node: one file for each rank, written and read by a thread of its own while
// the rank computes.
//
// The file has no name (or loses it at once), so nothing is left of it however the process ends. All of its room is
// taken at the start, so a disk that is full says so then. It bypasses the page cache where the file system lets it
// (O_DIRECT); elsewhere pages are written out and dropped behind each piece: else the cache would hold what was swapped
// out to save memory. Every piece of up to 4 MiB that is written leaves a checksum (XXH3, 64 bits) in memory; what is
// read back must have it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace p3d::device {

/// Where, how large, and how long a wait may last.
struct SwapSettings {
  std::string folder;      ///< an existing one, best on a disk of this node
  std::int64_t bytes = 0;  ///< of the file
  double budget_s = 600;   ///< a wait for one request that lasts longer is an error
  /// Called again and again while wait() waits, at most every millisecond: for what must go on meanwhile.
  std::function<void()> meanwhile;
};

/// Used by one thread.
class SwapFile {
  struct Job;
  struct Range;
  struct State;

public:
  /// Where ranges begin, in bytes; a range takes up a multiple of this.
  static constexpr std::int64_t alignment = 4096;
  static constexpr std::int64_t padded(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

  /// Takes all of the room. Throws base::Error with the free bytes and the folder where that fails.
  explicit SwapFile(SwapSettings settings);
  /// Drops what has not begun. Waits for what the thread has in hand, at most the budget.
  ~SwapFile();
  SwapFile(SwapFile const&) = delete;
  SwapFile& operator=(SwapFile const&) = delete;

  /// One read or write under way. Move-only. Its memory must stay valid, and untouched, until it is done or destroyed.
  class Request {
  public:
    Request() noexcept;
    Request(Request&&) noexcept;
    Request& operator=(Request&&) noexcept;
    /// Gives up a request that is not done: nothing touches its memory afterwards. What it was to write cannot be read.
    ~Request();
    bool active() const;
    /// True when done. Throws like wait().
    bool test();
    /// Throws base::Error when the disk failed, what was read is not what was written, or the budget is over.
    void wait();

  private:
    friend class SwapFile;
    explicit Request(std::shared_ptr<Job> job) noexcept;
    std::shared_ptr<Job> job_;
  };

  /// Writes a range: `bytes` bytes that begin at `offset`, a multiple of `alignment`. Ranges that reach into it are
  /// forgotten. Requests are carried out in the order of their start.
  [[nodiscard]] Request write(std::int64_t offset, void const* data, std::int64_t bytes);
  /// Reads a range back, as it was written: its beginning and all of its length. Its write need not be done. Throws
  /// base::Error at once when there is no such range.
  [[nodiscard]] Request read(std::int64_t offset, void* data, std::int64_t bytes);

  std::int64_t bytes() const;
  /// Whether the page cache is bypassed.
  bool direct() const;
  /// Whether the folder is memory itself (tmpfs): nothing is saved then.
  bool in_memory() const;

  /// Bytes of finished requests, and the seconds that the thread worked on them; seconds spent in wait().
  struct Accounting {
    std::int64_t bytes_written = 0, bytes_read = 0;
    double write_seconds = 0.0, read_seconds = 0.0;
    double wait_seconds = 0.0;
  };
  Accounting accounting() const;

private:
  Request start(bool writes, std::int64_t offset, std::byte* data, std::int64_t bytes);
  std::shared_ptr<State> state_;  ///< the thread's too: a disk that does not answer keeps it past the destructor
  std::thread thread_;
};

}  // namespace p3d::device
