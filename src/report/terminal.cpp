// SPDX-License-Identifier: Apache-2.0
#include <p3d/report/terminal.hpp>

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace p3d::report {

namespace {

int columns_of(int file) {
  if (isatty(file) == 0) return 0;
  winsize size{};
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

struct Process {
  std::string name;
  int parent = 0;
};

Process look_at(int pid) {
  Process process;
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Name:\t")) process.name = line.substr(6);
    if (line.starts_with("PPid:\t")) process.parent = std::atoi(line.c_str() + 6);
  }
  return process;
}

bool is_launcher(std::string_view name) {
  for (std::string_view start : {"mpiexec", "mpirun", "hydra_", "orterun", "prterun", "prte", "orted", "srun"}) {
    if (name.starts_with(start)) return true;
  }
  return false;
}

/// Bytes of the UTF-8 character at the start of `text`, or 0 when there is none. Control characters do not count.
std::size_t utf8_length(std::string_view text) {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  std::size_t const length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  bool const control = byte(0) == 0xc2 && byte(1) < 0xa0;
  bool const overlong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
  bool const no_character = (byte(0) == 0xed && byte(1) >= 0xa0) || (byte(0) == 0xf4 && byte(1) >= 0x90);
  return control || overlong || no_character ? 0 : length;
}

}  // namespace

int terminal_columns() {
  int pid = getppid();
  // Open MPI gives each of its ranks a terminal of its own, whatever it prints to itself: its output counts then.
  if (!is_launcher(look_at(pid).name)) return columns_of(STDOUT_FILENO);
  struct stat own {};
  if (fstat(STDOUT_FILENO, &own) != 0 || S_ISREG(own.st_mode)) return 0;
  constexpr int most_ancestors = 6;
  for (int i = 0; i < most_ancestors && pid > 1; ++i) {
    auto const ancestor = look_at(pid);
    if (!is_launcher(ancestor.name)) return 0;
    std::error_code none;
    auto const target = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", pid), none).string();
    if (target.starts_with("/dev/")) {
      int const file = open(target.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
      int const columns = file >= 0 ? columns_of(file) : 0;
      if (file >= 0) close(file);
      return columns;
    }
    pid = ancestor.parent;
  }
  return 0;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    auto const byte = static_cast<unsigned char>(text[0]);
    bool const plain = (byte >= 0x20 && byte < 0x7f) || byte == '\n' || byte == '\t';
    std::size_t const length = plain ? 1 : utf8_length(text);
    out += length > 0 ? std::string(text.substr(0, length)) : fmt::format("\\x{:02x}", byte);
    text.remove_prefix(length > 0 ? length : 1);
  }
  return out;
}

}  // namespace p3d::report
