// SPDX-License-Identifier: Apache-2.0
// The lock of a folder. The owner holds a lock of the system (fcntl) where there is one, and stamps the file at every
// beat of its heart. A second run decides in try_take() from the file's text whether the owner still lives: on the same
// host by its process, on another host by whether the stamp moves. Stamps are compared with the clock that makes them,
// the file server's, not with this host's. Example: the owner was killed on another host; its stamp no longer moves, so
// the second run takes the lock.
#include <p3d/io/folder_lock.hpp>

#include "failure.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/process.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/io/file_watch.hpp>
#include <p3d/io/text_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace p3d::io {

namespace {

/// Periods without a beat after which the lock of another host is stale.
constexpr double beats_until_stale = 8.0;
constexpr double owner_patience_s = 2.0;  ///< seconds to wait for an owner that may be about to end
constexpr char const* first_line = "p3d run";

std::string environment(char const* name) {
  char const* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// The count of restarts that Slurm keeps for this job; "0" for its first start.
std::string job_restarts() {
  auto const count = environment("SLURM_RESTART_COUNT");
  return count.empty() ? "0" : count;
}

/// Start time of a process, in ticks since the start of the system; empty when there is no process of this number.
std::string start_of(std::string const& process) {
  std::ifstream in("/proc/" + process + "/stat");
  std::string const text((std::istreambuf_iterator<char>(in)), {});
  auto const name_ends = text.rfind(')');
  if (name_ends == std::string::npos) return {};
  std::istringstream rest(text.substr(name_ends + 1));
  std::string word;
  // Field 22 of the file; the fields 1 and 2 (number and name) have been cut off, as a name may hold spaces.
  for (int field = 3; field <= 22; ++field) rest >> word;
  return word;
}

/// A name for this start of the system: after a reboot the numbers of processes begin anew.
std::string boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string out;
  in >> out;
  return out;
}

/// The text that this process writes into its lock file.
std::string own_text(double heartbeat_s) {
  char since[64] = "";
  std::time_t const now = std::time(nullptr);
  std::tm local{};
  if (::localtime_r(&now, &local) != nullptr) std::strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S", &local);
  auto const process = std::to_string(::getpid());
  auto const job = environment("SLURM_JOB_ID");
  return fmt::format("{}\nhost {}\nprocess {}\nstart {}\nboot {}\njob {}\nrestarts {}\nheartbeat_s {}\nsince {}\n",
                     first_line, base::host_name(), process, start_of(process), boot_id(), job,
                     job.empty() ? "" : job_restarts(), heartbeat_s, since);
}

/// The text's lines "key value" as a map.
std::map<std::string, std::string> fields(std::string const& text) {
  std::map<std::string, std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    auto const space = line.find(' ');
    if (space != std::string::npos) out[line.substr(0, space)] = line.substr(space + 1);
  }
  return out;
}

/// The owner in words, for messages.
std::string describe(std::map<std::string, std::string>& owner) {
  return fmt::format("process {} on host {}{}, since {}", owner["process"], owner["host"],
                     owner["job"].empty() ? "" : ", Slurm job " + owner["job"], owner["since"]);
}

base::Error refuse(std::string found, std::string const& path) {
  return base::Error(
      {.expected = "a folder that no other run writes to",
       .found = std::move(found),
       .where = path,
       .fix = "wait for that run or end it, or give this one its own run.output_dir (and run.name); if no "
              "such run exists any more, delete this file"},
      base::ExitCode::bad_input);
}

std::int64_t nanoseconds(struct stat const& info) {
  return std::int64_t{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec;
}

/// The current time (ns) by the clock that stamps the files of this folder, which may be a server's.
std::int64_t now_there(std::string const& lock_path) {
  auto const path = fmt::format("{}.{}", lock_path, ::getpid());
  FileOperation const here("open", path);
  int const fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  struct stat info;
  bool const good = fd >= 0 && ::futimens(fd, nullptr) == 0 && ::fstat(fd, &info) == 0;
  auto const why = last_error();
  if (fd >= 0) ::close(fd);
  ::unlink(path.c_str());
  if (!good) throw failure("a folder that can be locked", path, why);
  return nanoseconds(info);
}

std::string read_all(int fd, std::string const& path) {
  FileOperation const here("read", path);
  std::string out(4096, '\0');
  auto const got = ::pread(fd, out.data(), out.size(), 0);
  if (got < 0) throw failure("a lock file that can be read", path, last_error());
  out.resize(static_cast<std::size_t>(got));
  return out;
}

/// Owns a descriptor until it is released.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  int release() { return std::exchange(fd, -1); }
};

/// Result of asking the system for a lock; `none`: the file system has no locks.
enum class SystemLock { taken, held, none };

SystemLock lock_by_system(int fd, std::string const& path) {
#ifdef F_OFD_SETLK
  FileOperation const here("fcntl lock", path);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(fd, F_OFD_SETLK, &whole) == 0) return SystemLock::taken;
  if (errno == EAGAIN || errno == EACCES) return SystemLock::held;
#endif
  return SystemLock::none;
}

}  // namespace

FolderLock::FolderLock(std::string path, double heartbeat_s) : path_(std::move(path)), heartbeat_s_(heartbeat_s) {}

bool FolderLock::try_take() {
  P3D_REQUIRE(fd_ < 0, "a lock is taken once");
  if (!tried_) first_try_ = std::chrono::steady_clock::now();
  tried_ = true;
  double const waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - first_try_).count();

  FileOperation here("open", path_);
  // The process that made the file has it, also on a file system without locks (ENOSYS, ENOLCK): another run that looks
  // meanwhile finds no text yet, and waits.
  Descriptor file{::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
  bool const made = file.fd >= 0;
  if (!made) file.fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file.fd < 0) throw failure("a folder that can be locked", path_, last_error());
  here.next("stat");
  auto const system = lock_by_system(file.fd, path_);
  struct stat mine, named;
  if (::fstat(file.fd, &mine) != 0) throw failure("a folder that can be locked", path_, last_error());
  // The file's owner has just deleted it: the next try makes a new one.
  if (::stat(path_.c_str(), &named) != 0 || named.st_ino != mine.st_ino) return false;

  auto const text = read_all(file.fd, path_);
  auto owner = fields(text);
  auto const accept = [&](std::string_view why) {
    if (!text.empty()) taken_over_ = fmt::format("{} was left by {}: {}", path_, describe(owner), why);
    fd_ = file.release();
    take();
    return true;
  };
  if (system == SystemLock::held) {
    if (waited < owner_patience_s) return false;  // a run that was killed may be about to end
    throw refuse(text.empty() ? "a run that has just started" : describe(owner), path_);
  }
  if (text.empty() && (made || system == SystemLock::taken || waited >= owner_patience_s)) return accept("");
  if (text.empty()) return false;
  if (!text.starts_with(first_line) || owner["host"].empty())
    throw refuse("a lock that tells nothing of its owner", path_);
  if (owner["host"] == base::host_name()) {
    if (system == SystemLock::taken) return accept("that process has ended");
    if (owner["boot"] == boot_id() && start_of(owner["process"]) == owner["start"])
      throw refuse(describe(owner), path_);
    return accept("that process has ended");
  }
  auto const job = environment("SLURM_JOB_ID");
  if (!job.empty() && owner["job"] == job && owner["restarts"] != job_restarts())
    return accept("an earlier start of this Slurm job");
  // Nobody can tell whether the system's lock reaches from one host to the other. The heart's stamps do.
  auto const beat = nanoseconds(named);
  if (other_beat_ns_ == 0) other_beat_ns_ = beat;
  if (other_beat_ns_ != beat) throw refuse(describe(owner) + "; it is alive", path_);
  double const period = std::clamp(std::atof(owner["heartbeat_s"].c_str()), 0.05, 60.0);
  auto const age = 1e-9 * static_cast<double>(now_there(path_) - beat);
  if (age > beats_until_stale * period) return accept(fmt::format("no sign of life for {:.0f} s", age));
  if (waited > beats_until_stale * period + owner_patience_s) throw refuse(describe(owner), path_);
  return false;
}

void FolderLock::take() {
  text_ = own_text(heartbeat_s_);
  FileOperation here("write", path_);
  bool const written =
      ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, text_.data(), text_.size(), 0) == static_cast<ssize_t>(text_.size());
  if (!written) throw failure("room for a lock file", path_, last_error());
  here.next("fsync");
  if (::fsync(fd_) != 0) throw failure("a lock file that reaches the disk", path_, last_error());
  base::SignalsBlocked const blocked;
  try {
    heart_ = std::thread([this] { beat(); });
  } catch (std::system_error const&) {
    // No more threads for this user: the system's lock has to be enough.
  }
}

void FolderLock::beat() {
  std::unique_lock lock(mutex_);
  while (!end_.wait_for(lock, std::chrono::duration<double>(heartbeat_s_), [this] { return ends_; })) {
    FileOperation here("open", path_);
    Descriptor const now{::open(path_.c_str(), O_RDONLY | O_CLOEXEC)};
    if (now.fd < 0) continue;  // a deleted folder: the next write there reports it
    here.next("read");
    std::string text(text_.size() + 1, '\0');
    auto const got = ::pread(now.fd, text.data(), text.size(), 0);
    if (got > 0 && text.substr(0, static_cast<std::size_t>(got)) != text_) {
      base::error_here(
          fmt::format("p3d stops: another run has taken {}, because this one gave no sign of life for a "
                      "while\n{}",
                      path_, text.substr(0, static_cast<std::size_t>(got))));
      base::let_last_message_out();
      comm::leave_without_mpi(static_cast<int>(base::ExitCode::run_failed));
    }
    here.next("futimens");
    (void)::futimens(fd_, nullptr);  // a beat that fails counts as missing
  }
}

FolderLock::~FolderLock() {
  {
    std::lock_guard const lock(mutex_);
    ends_ = true;
  }
  end_.notify_all();
  if (heart_.joinable()) heart_.join();
  if (fd_ < 0) return;
  FileOperation here("unlink", path_);
  struct stat mine, named;
  if (::fstat(fd_, &mine) == 0 && ::stat(path_.c_str(), &named) == 0 && mine.st_ino == named.st_ino)
    (void)::unlink(path_.c_str());  // a file that cannot be deleted is stale for the next run
  ::close(fd_);
}

}  // namespace p3d::io
