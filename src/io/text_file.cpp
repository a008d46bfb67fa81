// SPDX-License-Identifier: Apache-2.0
#include <p3d/io/text_file.hpp>

#include "open_regular.hpp"

#include <p3d/io/file_watch.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <unistd.h>

namespace p3d::io {

namespace {
using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
}

void make_folder(std::string const& path) {
  FileOperation const here("mkdir", path);
  std::error_code why;
  std::filesystem::create_directories(path, why);
  // An existing folder is no error. A file in the folder's place is an error that some libraries do not report.
  if (!why && !std::filesystem::is_directory(path)) why = std::make_error_code(std::errc::not_a_directory);
  if (why) throw failure("a folder that can be made and written", path, why);
}

void write_text_atomically(std::string const& path, std::string_view text) {
  auto const temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  auto give_up = [&] {
    auto const why = last_error();
    std::remove(temporary.c_str());
    throw failure("a file that can be written", path, why);
  };
  errno = 0;
  FileOperation here("open", path);
  File file(std::fopen(temporary.c_str(), "wb"), &std::fclose);
  if (!file) give_up();
  here.next("write and fsync");
  bool const written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size() &&
                       std::fflush(file.get()) == 0 && ::fsync(::fileno(file.get())) == 0;
  if (!written) give_up();
  if (std::fclose(file.release()) != 0) give_up();
  here.next("rename");
  if (std::rename(temporary.c_str(), path.c_str()) != 0) give_up();
}

std::string read_text(std::string const& path) {
  errno = 0;
  FileOperation const here("read", path);
  File const file(::fdopen(open_regular(path, O_RDONLY, "a file that can be read"), "rb"), &std::fclose);
  std::string out;
  char buffer[4096];
  std::size_t got = 0;
  while (file && (got = std::fread(buffer, 1, sizeof buffer, file.get())) > 0) out.append(buffer, got);
  if (!file || std::ferror(file.get()) != 0) throw failure("a file that can be read", path, last_error());
  return out;
}

}  // namespace p3d::io
