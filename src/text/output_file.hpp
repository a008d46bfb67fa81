// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file that is written from its start to its end, and appears only when it is whole.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace p3d::text {

/// Writes PATH.partial; finish() renames it to PATH. Throws base::Error (run_failed) for a full disk. The destructor
/// removes an unfinished file.
class OutputFile {
public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(OutputFile const&) = delete;
  OutputFile& operator=(OutputFile const&) = delete;

  void write(void const* bytes, std::size_t count);
  /// Writes a number in the machine's byte order, which is little endian.
  template <class T>
  void put(T value) {
    write(&value, sizeof value);
  }
  /// The number of bytes written so far.
  std::int64_t bytes() const { return bytes_; }
  /// Flushes all bytes to disk and closes the file, which keeps the name with ".partial".
  void close();
  /// Closes the file, and gives it its own name.
  void finish();

private:
  [[noreturn]] void failed(int error) const;
  std::string path_, partial_;
  std::vector<char> buffer_;  // must live as long as the stream that uses it
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream_;
  std::int64_t bytes_ = 0;
  bool finished_ = false;
};

}  // namespace p3d::text
