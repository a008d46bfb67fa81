// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host memory that is kept on a disk of this node: one file for each rank, written and read by a thread of its own
// while the rank computes.
//
// The file has no name (or loses it at once), so nothing is left of it however the process ends. All of its space is
// taken at the start, so a disk that is full says so then. It bypasses the page cache where the file system lets it
// (O_DIRECT). Elsewhere pages are written out and dropped behind each piece: else the cache would hold the very data
// that was swapped out to save memory. Every piece of up to 4 MiB that is written leaves a checksum (XXH3, 64 bits) in
// memory, and data that is read back must match it.
//
// Example:  file.write(0, from, n).wait();  auto request = file.read(0, to, n);  ... compute ...  request.wait();

#include <p3d/base/memory_sizes.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace p3d::device {

/// The folder and size of a swap file, and the time budget of a wait.
struct SwapSettings {
  std::string folder;      ///< an existing folder, best on a disk of this node
  std::int64_t bytes = 0;  ///< size of the file
  double budget_s = 600;   ///< seconds that a wait for one request may take; a longer one is an error
  /// Called at most every millisecond while wait() waits, for other work that must go on (messages, a watchdog).
  std::function<void()> meanwhile;
};

/// A swap file with its thread. One thread of the program uses it.
class SwapFile {
  struct Job;
  struct Range;
  struct State;

public:
  /// Ranges begin at multiples of this many bytes, and take a multiple of it.
  static constexpr std::int64_t alignment = base::swap_alignment;
  static constexpr std::int64_t padded(std::int64_t bytes) { return base::padded(bytes, alignment); }

  /// Opens the file and takes all of its space. Throws base::Error with the free bytes and the folder where that fails.
  explicit SwapFile(SwapSettings settings);
  /// Drops the requests that have not begun. Waits for the request that the thread works on, at most the budget.
  ~SwapFile();
  SwapFile(SwapFile const&) = delete;
  SwapFile& operator=(SwapFile const&) = delete;

  /// One read or write under way; move-only. Its memory must stay valid and untouched until the request is done or
  /// destroyed.
  class Request {
  public:
    Request() noexcept;
    Request(Request&&) noexcept;
    Request& operator=(Request&&) noexcept;
    /// Abandons a request that is not done: nothing touches its memory afterwards. A range whose write was abandoned
    /// cannot be read.
    ~Request();
    /// False for an empty request, and after test() or wait() has seen the end.
    bool active() const;
    /// True when the request is done. Throws like wait().
    bool test();
    /// Waits until the request is done. Throws base::Error when the disk failed, when the data that was read is not the
    /// data that was written, or when the budget is over.
    void wait();

  private:
    friend class SwapFile;
    explicit Request(std::shared_ptr<Job> job) noexcept;
    std::shared_ptr<Job> job_;
  };

  /// Starts to write a range: `bytes` bytes that begin at `offset`, a multiple of `alignment`. Earlier ranges that
  /// overlap it can no longer be read. Requests are carried out in the order of their start.
  [[nodiscard]] Request write(std::int64_t offset, void const* data, std::int64_t bytes);
  /// Starts to read a range with the offset and length with which it was written. Its write need not be done. Throws
  /// base::Error at once when there is no such range.
  [[nodiscard]] Request read(std::int64_t offset, void* data, std::int64_t bytes);

  /// The size of the file.
  std::int64_t bytes() const;
  /// True when the page cache is bypassed.
  bool direct() const;
  /// True when the folder is memory itself (tmpfs): then swapping saves no memory.
  bool in_memory() const;

  /// Totals of finished requests: their bytes, the seconds that the thread worked on them, and the seconds spent in
  /// wait().
  struct Accounting {
    std::int64_t bytes_written = 0, bytes_read = 0;
    double write_seconds = 0.0, read_seconds = 0.0;
    double wait_seconds = 0.0;
  };
  Accounting accounting() const;

private:
  Request start(bool writes, std::int64_t offset, std::byte* data, std::int64_t bytes);
  std::shared_ptr<State> state_;  ///< shared with the thread: a disk that does not answer keeps it past the destructor
  std::thread thread_;
};

}  // namespace p3d::device
