// SPDX-License-Identifier: Apache-2.0
// The swap file's two sides. The caller checks a request, puts it into a queue and later waits for it. The thread takes
// one request after the other and moves it in pieces of 4 MiB through a buffer of its own, so that the caller's memory
// is touched only for the time of a copy: destroying a request waits for one piece at most, never for the disk.
// Example: a request of 10 MiB is moved as pieces of 4, 4 and 2 MiB.
#include <p3d/device/swap_file.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/process.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/timer.hpp>

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "swap_hooks.hpp"
#include "unnamed_file.hpp"

namespace p3d::device {

namespace {

/// Bytes that are read or written at a time: long enough for the disk's speed, short enough that a request which is
/// abandoned soon lets go of its memory.
constexpr std::int64_t piece_bytes = std::int64_t{4} << 20;

std::string human(std::int64_t bytes) { return base::human_bytes(static_cast<double>(bytes)); }

}  // namespace

/// The record that a write leaves in memory. The thread fills it, and looks at it again when the range is read, which
/// is later.
struct SwapFile::Range {
  std::int64_t bytes = 0;
  std::vector<std::uint64_t> checksums;  ///< one for each piece
  bool good = false;                     ///< all of it was written
};

/// A request. The caller and the thread share it.
struct SwapFile::Job {
  std::shared_ptr<State> state;
  bool writes = false;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::shared_ptr<Range> range;

  std::mutex touching;        ///< held while `data` is read or written
  std::byte* data = nullptr;  ///< the caller's memory; null: abandoned

  // The state's mutex guards done_bytes, done and error.
  std::int64_t done_bytes = 0;
  bool done = false;
  std::optional<base::ErrorText> error;

  std::string where(std::int64_t begin, std::int64_t length) const;
};

/// Everything that the thread uses. It is shared, so that it outlives the SwapFile where the disk does not answer.
struct SwapFile::State {
  explicit State(SwapSettings given)
      : settings(std::move(given)),
        hooks(detail::swap_hooks()),
        file(settings.folder, padded(settings.bytes)),
        piece(static_cast<std::byte*>(std::aligned_alloc(alignment, piece_bytes)), std::free) {}

  /// The thread's loop.
  void run();
  std::optional<base::ErrorText> carry_out(Job& job);
  std::optional<base::ErrorText> write_piece(Job& job, std::int64_t begin, std::int64_t length);
  std::optional<base::ErrorText> read_piece(Job& job, std::int64_t begin, std::int64_t length);

  SwapSettings const settings;
  detail::SwapHooks const hooks;
  detail::UnnamedFile file;
  std::unique_ptr<std::byte, void (*)(void*)> piece;  ///< the thread's buffer

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> queue;  ///< the thread works on the first
  bool stops = false;
  bool ended = false;
  bool overdue = false;  ///< a request outlasted its budget: nobody waits for the disk again
  Accounting accounting;

  std::map<std::int64_t, std::shared_ptr<Range>> ranges;  ///< keyed by offset; only the caller uses the map
};

std::string SwapFile::Job::where(std::int64_t begin, std::int64_t length) const {
  return fmt::format("swap file in {}, bytes {} to {}", state->settings.folder, begin, begin + length);
}

// ---- Functions of the thread.

namespace {
/// The errors of a request.
base::ErrorText given_up(std::string where) {
  return {.expected = "a request that is waited for",
          .found = "one that was given up",
          .where = std::move(where),
          .fix = "keep a device::SwapFile::Request until it is done"};
}
base::ErrorText closed(std::string where) {
  return {.expected = "a swap file that is open until its requests are done",
          .found = "one that was closed before",
          .where = std::move(where),
          .fix = "wait for the requests of a device::SwapFile before it ends"};
}
base::ErrorText refused(int error, std::string expected, std::string where) {
  return {.expected = std::move(expected),
          .found = std::generic_category().message(error),
          .where = std::move(where),
          .fix =
              "look at the disk (dmesg, df), or name another folder in memory.offload_dir; then resume from the "
              "last checkpoint"};
}
}  // namespace

void SwapFile::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stops || !queue.empty(); });
    if (stops) break;
    auto const job = queue.front();
    lock.unlock();
    base::Stopwatch watch;
    auto error = carry_out(*job);
    double const seconds = watch.seconds();
    lock.lock();
    if (!error) {
      (job->writes ? accounting.bytes_written : accounting.bytes_read) += job->bytes;
      (job->writes ? accounting.write_seconds : accounting.read_seconds) += seconds;
    }
    job->error = std::move(error);
    job->done = true;
    queue.pop_front();
    changed.notify_all();
  }
  for (auto const& job : queue) {
    job->error = closed(job->where(job->offset, job->bytes));
    job->done = true;
  }
  queue.clear();
  ended = true;
  changed.notify_all();
}

std::optional<base::ErrorText> SwapFile::State::carry_out(Job& job) {
  for (std::int64_t begin = 0; begin < job.bytes; begin += piece_bytes) {
    auto const length = std::min(piece_bytes, job.bytes - begin);
    if (hooks.before_piece) hooks.before_piece();
    auto error = job.writes ? write_piece(job, begin, length) : read_piece(job, begin, length);
    if (!error) {
      std::lock_guard const lock(mutex);
      job.done_bytes += length;
      if (stops && job.done_bytes < job.bytes) error = closed(job.where(job.offset, job.bytes));
    }
    if (error) {
      file.leave_cache();  // so that the next request gets errors of its own pieces only
      return error;
    }
  }
  if (!job.writes) return {};
  if (int const error = file.leave_cache(); error != 0) {
    return refused(error, fmt::format("to write {} to the swap file", human(job.bytes)),
                   job.where(job.offset, job.bytes));
  }
  job.range->good = true;
  return {};
}

std::optional<base::ErrorText> SwapFile::State::write_piece(Job& job, std::int64_t begin, std::int64_t length) {
  auto const size = static_cast<std::size_t>(length);
  auto const whole = static_cast<std::size_t>(padded(length));
  auto const where = [&] { return job.where(job.offset + begin, length); };
  {
    std::lock_guard const lock(job.touching);
    if (job.data == nullptr) return given_up(where());
    std::memcpy(piece.get(), job.data + begin, size);
  }
  std::memset(piece.get() + size, 0, whole - size);
  job.range->checksums.push_back(XXH3_64bits(piece.get(), size));
  int const error = file.write(job.offset + begin, piece.get(), whole);
  if (error == 0) return {};
  return refused(error, fmt::format("to write {} to the swap file", human(length)), where());
}

std::optional<base::ErrorText> SwapFile::State::read_piece(Job& job, std::int64_t begin, std::int64_t length) {
  auto const size = static_cast<std::size_t>(length);
  auto const where = [&] { return job.where(job.offset + begin, length); };
  if (!job.range->good) {
    return base::ErrorText{.expected = "a range that was written",
                           .found = "one whose write failed or was given up",
                           .where = where(),
                           .fix = "wait for writes: their error comes first"};
  }
  if (auto const next = begin + piece_bytes; next < job.bytes)
    file.read_ahead(job.offset + next, static_cast<std::size_t>(std::min(piece_bytes, job.bytes - next)));
  int const error = file.read(job.offset + begin, piece.get(), static_cast<std::size_t>(padded(length)));
  if (error != 0) return refused(error, fmt::format("to read {} from the swap file", human(length)), where());
  auto const expected = job.range->checksums[static_cast<std::size_t>(begin / piece_bytes)];
  auto const found = XXH3_64bits(piece.get(), size);
  if (found != expected) {
    return base::ErrorText{
        .expected = fmt::format("the bytes that were written (XXH3 {:016x})", expected),
        .found = fmt::format("damaged ones ({:016x})", found),
        .where = where(),
        .fix =
            "the disk damages data (dmesg, smartctl): name a folder on another one in memory.offload_dir, and "
            "resume from the last checkpoint"};
  }
  std::lock_guard const lock(job.touching);
  if (job.data == nullptr) return given_up(where());
  std::memcpy(job.data + begin, piece.get(), size);
  return {};
}

// ---- Functions of the caller.

SwapFile::SwapFile(SwapSettings settings) {
  P3D_REQUIRE(settings.bytes > 0, "a swap file has room for something");
  P3D_REQUIRE(settings.budget_s > 0.0, "a wait has a positive time budget");
  state_ = std::make_shared<State>(std::move(settings));
  base::SignalsBlocked const blocked;
  thread_ = std::thread([state = state_] { state->run(); });
}

SwapFile::~SwapFile() {
  std::unique_lock lock(state_->mutex);
  state_->stops = true;
  state_->changed.notify_all();
  std::chrono::duration<double> const budget(state_->overdue ? 0.0 : state_->settings.budget_s);
  bool const ended = state_->changed.wait_for(lock, budget, [&] { return state_->ended; });
  lock.unlock();
  ended ? thread_.join() : thread_.detach();
}

SwapFile::Request SwapFile::write(std::int64_t offset, void const* data, std::int64_t bytes) {
  return start(true, offset, static_cast<std::byte*>(const_cast<void*>(data)), bytes);  // a write only reads the memory
}

SwapFile::Request SwapFile::read(std::int64_t offset, void* data, std::int64_t bytes) {
  return start(false, offset, static_cast<std::byte*>(data), bytes);
}

SwapFile::Request SwapFile::start(bool writes, std::int64_t offset, std::byte* data, std::int64_t bytes) {
  P3D_REQUIRE(offset >= 0 && offset % alignment == 0, "a range of a swap file begins at a multiple of 4096");
  P3D_REQUIRE(bytes >= 0 && bytes <= this->bytes() - offset, "a range of a swap file lies inside it");
  if (bytes == 0) return {};
  auto job = std::make_shared<Job>();
  job->state = state_;
  job->writes = writes;
  job->offset = offset;
  job->bytes = bytes;
  job->data = data;
  auto& ranges = state_->ranges;
  auto at = ranges.lower_bound(offset);
  if (writes) {
    if (at != ranges.begin() && std::prev(at)->first + std::prev(at)->second->bytes > offset) --at;
    while (at != ranges.end() && at->first < offset + bytes) at = ranges.erase(at);
    job->range = std::make_shared<Range>();
    job->range->bytes = bytes;
    job->range->checksums.reserve(static_cast<std::size_t>((bytes + piece_bytes - 1) / piece_bytes));
    ranges[offset] = job->range;
  } else {
    if (at == ranges.end() || at->first != offset || at->second->bytes != bytes) {
      throw base::Error({.expected = "a range of a swap file as it was written",
                         .found = at != ranges.end() && at->first == offset
                                      ? fmt::format("one of {} bytes that begins there", at->second->bytes)
                                      : "none that begins there, or one that was written over",
                         .where = job->where(offset, bytes),
                         .fix = "read what was written, at its offset and in its length"});
    }
    job->range = at->second;
  }
  {
    std::lock_guard const lock(state_->mutex);
    state_->queue.push_back(job);
  }
  state_->changed.notify_all();
  return Request(std::move(job));
}

std::int64_t SwapFile::bytes() const { return padded(state_->settings.bytes); }
bool SwapFile::direct() const { return state_->file.direct(); }
bool SwapFile::in_memory() const { return state_->file.in_memory(); }

SwapFile::Accounting SwapFile::accounting() const {
  std::lock_guard const lock(state_->mutex);
  return state_->accounting;
}

SwapFile::Request::Request() noexcept = default;
SwapFile::Request::Request(std::shared_ptr<Job> job) noexcept : job_(std::move(job)) {}
SwapFile::Request::Request(Request&&) noexcept = default;
SwapFile::Request& SwapFile::Request::operator=(Request&& other) noexcept {
  std::swap(job_, other.job_);
  Request const given_up(std::move(other));
  return *this;
}
SwapFile::Request::~Request() {
  if (!job_) return;
  std::lock_guard const lock(job_->touching);
  job_->data = nullptr;
}

bool SwapFile::Request::active() const { return job_ != nullptr; }

bool SwapFile::Request::test() {
  if (!job_) return true;
  {
    std::lock_guard const lock(job_->state->mutex);
    if (!job_->done) return false;
  }
  auto const job = std::move(job_);
  if (job->error) throw base::Error(*job->error);
  return true;
}

void SwapFile::Request::wait() {
  if (!job_) return;
  auto& state = *job_->state;
  auto const& settings = state.settings;
  base::Stopwatch watch;
  std::unique_lock lock(state.mutex);
  while (!job_->done) {
    double const left = settings.budget_s - watch.seconds();
    if (left <= 0.0) break;
    std::chrono::duration<double> const pause(settings.meanwhile ? std::min(left, 0.001) : left);
    state.changed.wait_for(lock, pause, [&] { return job_->done; });
    if (!settings.meanwhile || job_->done) continue;
    lock.unlock();
    settings.meanwhile();
    lock.lock();
  }
  double const seconds = watch.seconds();
  state.accounting.wait_seconds += seconds;
  if (!job_->done) {
    state.overdue = true;
    auto const ahead = std::find(state.queue.begin(), state.queue.end(), job_) - state.queue.begin();
    throw base::Error(
        {.expected = fmt::format("a {} of {} that ends within {:g} s", job_->writes ? "write" : "read",
                                 human(job_->bytes), settings.budget_s),
         .found = fmt::format("{} done after {:.1f} s, {} before it", human(job_->done_bytes), seconds,
                              base::counted(ahead, "request")),
         .where = job_->where(job_->offset, job_->bytes),
         .fix = "the disk does not answer, or is too slow for what is offloaded: look at it (dmesg, iostat), or name "
                "another folder in memory.offload_dir"},
        base::ExitCode::timeout);
  }
  lock.unlock();
  test();
}

}  // namespace p3d::device
