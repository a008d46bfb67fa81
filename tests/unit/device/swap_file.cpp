// SPDX-License-Identifier: Apache-2.0
// A swap file gives back what was written and nothing else, leaves nothing behind, and says what a disk does wrong.

#include <p3d/device/swap_file.hpp>

#include <p3d/base/error.hpp>

#include <support/errors.hpp>

#include <device/swap_hooks.hpp>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using p3d::device::SwapFile;
using p3d::device::SwapSettings;
using p3d::device::detail::swap_hooks;
using p3d::test::expect_error;

namespace {

using Bytes = std::vector<unsigned char>;
constexpr std::int64_t mib = std::int64_t{1} << 20;

Bytes random_bytes(std::int64_t n, unsigned seed) {
  std::mt19937 engine(seed);
  Bytes out(static_cast<std::size_t>(n));
  for (auto& byte : out) byte = static_cast<unsigned char>(engine());
  return out;
}

/// Without a name or with one at first, past the cache or through it.
struct Way {
  bool unnamed, direct;
};

class SwapFiles : public ::testing::TestWithParam<Way> {
protected:
  SwapFiles() {
    auto path = (std::filesystem::temp_directory_path() / "p3d-swap-test-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("no folder for the test");
    folder = path;
    swap_hooks() = {};
    swap_hooks().unnamed = GetParam().unnamed;
    swap_hooks().direct = GetParam().direct;
  }
  ~SwapFiles() override {
    swap_hooks() = {};
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    std::filesystem::remove_all(folder);
  }
  SwapSettings settings(std::int64_t bytes, double budget_s = 60) { return {folder, bytes, budget_s, {}}; }
  /// A descriptor of its own on the swap file; the file has no name, but this process has it open.
  int open_file() {
    for (auto const& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      auto const to = std::filesystem::read_symlink(entry, error).string();
      if (!error && to.starts_with(folder + "/")) return ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    }
    return -1;
  }
  std::string folder;
};
INSTANTIATE_TEST_SUITE_P(Ways, SwapFiles,
                         ::testing::Values(Way{true, true}, Way{true, false}, Way{false, true}, Way{false, false}),
                         [](auto const& info) {
                           return std::string(info.param.unnamed ? "unnamed" : "named") +
                                  (info.param.direct ? "_direct" : "_cached");
                         });

TEST_P(SwapFiles, GiveBackWhatWasWritten) {
  constexpr std::int64_t places = 12, room = 3 * mib;
  SwapFile file(settings(places * room));
  EXPECT_GE(file.bytes(), places * room);
  std::mt19937 engine(1);
  std::map<std::int64_t, Bytes> written;
  std::vector<std::pair<Bytes, Bytes>> read;  // what comes, what should
  read.reserve(200);
  std::vector<Bytes> sources;
  sources.reserve(200);
  std::vector<SwapFile::Request> requests;
  std::int64_t bytes_written = 0, bytes_read = 0;
  for (unsigned i = 0; i < 120; ++i) {
    auto const offset = static_cast<std::int64_t>(engine() % places) * room;
    if (engine() % 2 == 0 || !written.contains(offset)) {
      std::int64_t const lengths[] = {1, 4095, 4096, 4097, 100000, room};
      auto const& bytes = sources.emplace_back(random_bytes(lengths[engine() % 6], i));
      requests.push_back(file.write(offset, bytes.data(), static_cast<std::int64_t>(bytes.size())));
      written[offset] = bytes;
      bytes_written += static_cast<std::int64_t>(bytes.size());
    } else {
      auto& [comes, wanted] = read.emplace_back(Bytes(written[offset].size(), 0xee), written[offset]);
      requests.push_back(file.read(offset, comes.data(), static_cast<std::int64_t>(comes.size())));
      bytes_read += static_cast<std::int64_t>(comes.size());
    }
    if (requests.size() == 9) {
      std::shuffle(requests.begin(), requests.end(), engine);
      for (auto& request : requests) request.wait();
      for (auto const& request : requests) EXPECT_FALSE(request.active());
      requests.clear();
    }
  }
  for (auto& request : requests) {
    while (!request.test()) std::this_thread::yield();
  }
  for (auto const& [comes, wanted] : read) EXPECT_TRUE(comes == wanted);
  auto const seen = file.accounting();
  EXPECT_EQ(seen.bytes_written, bytes_written);
  EXPECT_EQ(seen.bytes_read, bytes_read);
  EXPECT_GT(seen.write_seconds, 0.0);
  EXPECT_GT(seen.read_seconds, 0.0);
}

TEST_P(SwapFiles, TakeRangesOfManyPieces) {
  auto const bytes = random_bytes(13 * mib + 77, 3);
  auto const n = static_cast<std::int64_t>(bytes.size());
  SwapFile file(settings(n + SwapFile::alignment));
  auto writes = file.write(SwapFile::alignment, bytes.data(), n);
  Bytes back(bytes.size());
  file.read(SwapFile::alignment, back.data(), n).wait();
  writes.wait();
  EXPECT_TRUE(back == bytes);
}

TEST_P(SwapFiles, RefuseWhatWasNotWrittenLikeThat) {
  SwapFile file(settings(mib));
  Bytes bytes(20000, 7);
  char const* const words = "a range of a swap file as it was written";
  expect_error([&] { file.read(0, bytes.data(), 100).wait(); }, words);
  file.write(8192, bytes.data(), 20000).wait();
  expect_error([&] { file.read(8192, bytes.data(), 19999).wait(); }, "one of 20000 bytes that begins there");
  expect_error([&] { file.read(12288, bytes.data(), 100).wait(); }, "none that begins there");
  file.read(8192, bytes.data(), 20000).wait();
  file.write(24576, bytes.data(), 4096).wait();  // into the end of the first
  expect_error([&] { file.read(8192, bytes.data(), 20000).wait(); }, words);
  file.write(0, bytes.data(), 8192).wait();  // up to its beginning, and before the second
  file.read(24576, bytes.data(), 4096).wait();
  file.write(20480, bytes.data(), 10000).wait();  // over all of the second
  expect_error([&] { file.read(24576, bytes.data(), 4096).wait(); }, words);
  expect_error([&] { file.write(100, bytes.data(), 1).wait(); }, "begins at a multiple of 4096");
  expect_error([&] { file.write(mib - 4096, bytes.data(), 4097).wait(); }, "lies inside it");
  EXPECT_FALSE(file.write(0, bytes.data(), 0).active());
}

TEST_P(SwapFiles, FindDamage) {
  SwapFile file(settings(8 * mib));
  auto const bytes = random_bytes(6 * mib + 5, 9);
  auto const n = static_cast<std::int64_t>(bytes.size());
  file.write(4096, bytes.data(), n).wait();
  int const fd = open_file();
  ASSERT_GE(fd, 0);
  off_t const place = 4096 + 5 * mib;  // in the second piece
  unsigned char byte = 0;
  ASSERT_EQ(::pread(fd, &byte, 1, place), 1);
  EXPECT_EQ(byte, bytes[5 * mib]);
  byte ^= 0x10;
  ASSERT_EQ(::pwrite(fd, &byte, 1, place), 1);
  ASSERT_EQ(::fsync(fd), 0);
  ::close(fd);
  Bytes back(bytes.size());
  try {
    file.read(4096, back.data(), n).wait();
    ADD_FAILURE() << "a damaged range was read";
  } catch (p3d::base::Error const& e) {
    EXPECT_NE(e.text().found.find("damaged"), std::string::npos) << e.what();
    EXPECT_NE(e.text().where.find("bytes " + std::to_string(4096 + 4 * mib) + " to " + std::to_string(4096 + n)),
              std::string::npos)
        << e.what();
    EXPECT_NE(e.text().where.find(folder), std::string::npos) << e.what();
  }
  file.write(4096, bytes.data(), n).wait();
  file.read(4096, back.data(), n).wait();
  EXPECT_TRUE(back == bytes);
}

TEST_P(SwapFiles, NeedRoom) {
  auto const refused = [&](SwapSettings const& wanted, char const* free) {
    try {
      SwapFile file(wanted);
      ADD_FAILURE() << "there is no room";
    } catch (p3d::base::Error const& e) {
      EXPECT_NE(e.text().expected.find("8.00 MiB"), std::string::npos) << e.what();
      EXPECT_NE(e.text().found.find(free), std::string::npos) << e.what();
      EXPECT_EQ(e.text().where, folder);
      EXPECT_NE(e.text().fix.find("memory.offload_dir"), std::string::npos) << e.what();
    }
  };
  swap_hooks().free_bytes = 3 * mib;
  refused(settings(8 * mib), "3.00 MiB free (No space left on device)");
  swap_hooks().free_bytes = INT64_MAX;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit const little{static_cast<rlim_t>(mib), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  refused(settings(8 * mib), "(File too large)");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  auto none = settings(mib);
  none.folder = folder + "/none";
  expect_error([&] { SwapFile file(none); }, "No such file or directory");
}

// All of the room is there from the start.
TEST_P(SwapFiles, TakeTheirRoomAtOnce) {
  SwapFile file(settings(8 * mib));
  int const fd = open_file();
  struct stat info {};
  ASSERT_EQ(::fstat(fd, &info), 0);
  ::close(fd);
  EXPECT_EQ(info.st_size, 8 * mib);
  EXPECT_GE(info.st_blocks * 512, 8 * mib);
  EXPECT_EQ(info.st_nlink, 0u);
  EXPECT_EQ(info.st_mode & 0077, 0u) << "others may read it";
}

TEST_P(SwapFiles, LeaveThePageCacheAlone) {
  constexpr std::int64_t n = 12 * mib;
  SwapFile file(settings(n));
  if (file.in_memory()) GTEST_SKIP() << folder << " is in memory";
  Bytes bytes(n, 5);
  file.write(0, bytes.data(), n).wait();
  int const fd = open_file();
  auto* const map = ::mmap(nullptr, n, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  auto const resident = [&] {
    std::vector<unsigned char> pages(static_cast<std::size_t>(n / 4096));
    EXPECT_EQ(::mincore(map, n, pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
  };
  EXPECT_LT(resident(), n / 4096 / 10) << "pages after the write";
  file.read(0, bytes.data(), n).wait();
  EXPECT_LT(resident(), n / 4096 / 10) << "pages after the read";
  ::munmap(map, n);
  ::close(fd);
}

/// A disk that does nothing until it is told to.
struct Gate {
  std::atomic<bool> open = false;
  std::atomic<int> waiting = 0;
  void install() {
    swap_hooks().before_piece = [this] {
      ++waiting;
      while (!open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
  }
  void wait_for_thread() const {
    while (waiting == 0) std::this_thread::yield();
  }
};

TEST_P(SwapFiles, DoNotWaitForEver) {
  Gate gate;
  gate.install();
  auto wanted = settings(mib, 0.05);
  int calls = 0;
  wanted.meanwhile = [&] { ++calls; };
  SwapFile file(wanted);
  Bytes bytes(10000, 1);
  auto first = file.write(0, bytes.data(), 10000);
  auto second = file.read(0, bytes.data(), 10000);
  EXPECT_FALSE(second.test());
  try {
    second.wait();
    ADD_FAILURE() << "the disk does nothing";
  } catch (p3d::base::Error const& e) {
    EXPECT_EQ(e.code(), p3d::base::ExitCode::timeout);
    EXPECT_NE(e.text().expected.find("a read of 9.77 KiB that ends within 0.05 s"), std::string::npos) << e.what();
    EXPECT_NE(e.text().found.find("1 request before it"), std::string::npos) << e.what();
    EXPECT_NE(e.text().where.find(folder), std::string::npos) << e.what();
  }
  EXPECT_GT(calls, 2);
  EXPECT_GE(file.accounting().wait_seconds, 0.05);
  gate.open = true;
  while (!second.test()) std::this_thread::yield();
  EXPECT_TRUE(first.test());
}

// Memory that is gone is not touched; the address sanitizer would say so.
TEST_P(SwapFiles, LetGoOfRequestsThatAreGivenUp) {
  Gate gate;
  gate.install();
  SwapFile file(settings(20 * mib));
  {
    Bytes const gone(6 * mib, 1);
    auto const request = file.write(0, gone.data(), 6 * mib);
    gate.wait_for_thread();
  }
  Bytes bytes(6 * mib, 2);
  auto other = file.write(8 * mib, bytes.data(), 6 * mib);
  {
    Bytes gone(6 * mib);
    auto const request = file.read(8 * mib, gone.data(), 6 * mib);
  }
  auto half = file.read(0, bytes.data(), 6 * mib);
  gate.open = true;
  expect_error([&] { half.wait(); }, "one whose write failed or was given up");
  other.wait();
  file.read(8 * mib, bytes.data(), 6 * mib).wait();
  EXPECT_TRUE(bytes == Bytes(6 * mib, 2));
}

TEST_P(SwapFiles, EndWithRequestsUnderWay) {
  Gate gate;
  gate.install();
  Bytes bytes(9 * mib, 3);
  std::vector<SwapFile::Request> requests;
  std::thread opener;
  {
    SwapFile file(settings(20 * mib));
    requests.push_back(file.write(0, bytes.data(), 9 * mib));
    requests.push_back(file.write(12 * mib, bytes.data(), mib));
    requests.push_back(file.read(12 * mib, bytes.data(), mib));
    gate.wait_for_thread();
    opener = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      gate.open = true;
    });
  }
  opener.join();
  for (auto& request : requests) {
    try {  // done before the end, or told of it
      request.wait();
    } catch (p3d::base::Error const& e) {
      EXPECT_NE(e.text().found.find("closed"), std::string::npos) << e.what();
    }
    EXPECT_FALSE(request.active());
  }
  // A disk that never answers: the file ends after its budget all the same.
  Gate shut;
  shut.install();
  auto const start = std::chrono::steady_clock::now();
  {
    SwapFile file(settings(9 * mib, 0.1));
    requests.front() = file.write(0, bytes.data(), 9 * mib);
    shut.wait_for_thread();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  shut.open = true;
  auto const ends = [&] {
    while (!requests.front().test()) std::this_thread::yield();
  };
  expect_error(ends, "closed");
}

// What SIGKILL leaves: run as a program of its own.
TEST(SwapFileChild, DISABLED_HoldsAFile) {
  char const* const folder = std::getenv("P3D_TEST_SWAP_FOLDER");
  ASSERT_NE(folder, nullptr);
  swap_hooks().unnamed = std::getenv("P3D_TEST_SWAP_NAMED") == nullptr;
  SwapFile file({folder, 4 * mib, 60, {}});
  Bytes const bytes(mib, 1);
  file.write(0, bytes.data(), mib).wait();
  ASSERT_EQ(::write(STDOUT_FILENO, "held\n", 5), 5);
  ::pause();
}

TEST_P(SwapFiles, LeaveNothingWhenKilled) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  ::setenv("P3D_TEST_SWAP_FOLDER", folder.c_str(), 1);
  GetParam().unnamed ? ::unsetenv("P3D_TEST_SWAP_NAMED") : ::setenv("P3D_TEST_SWAP_NAMED", "1", 1);
  pid_t const child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDOUT_FILENO);
    ::execl("/proc/self/exe", "device", "--gtest_filter=SwapFileChild.*", "--gtest_also_run_disabled_tests", nullptr);
    ::_exit(9);
  }
  ::close(pipe[1]);
  std::string said;
  std::array<char, 256> buffer{};
  while (said.find("held") == std::string::npos) {
    auto const n = ::read(pipe[0], buffer.data(), buffer.size());
    if (n <= 0) break;
    said.append(buffer.data(), static_cast<std::size_t>(n));
  }
  EXPECT_NE(said.find("held"), std::string::npos) << said;
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "a name while the file is used";
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  ::close(pipe[0]);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
