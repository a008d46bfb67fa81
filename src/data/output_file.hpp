// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file that is written from its start to its end, and is there only when it is whole.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace p3d::data {

/// Writes PATH.partial; finish() makes it PATH. Throws base::Error (run_failed) for a disk that is full. An unfinished
/// file is removed.
class OutputFile {
public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(OutputFile const&) = delete;
  OutputFile& operator=(OutputFile const&) = delete;

  void write(void const* bytes, std::size_t count);
  /// A number of the machine's order of bytes, which is little endian.
  template <class T>
  void put(T value) {
    write(&value, sizeof value);
  }
  std::int64_t bytes() const { return bytes_; }
  /// All bytes are on the disk, under the name with ".partial".
  void close();
  /// The same, under its own name.
  void finish();

private:
  [[noreturn]] void failed(int error) const;
  std::string path_, partial_;
  std::vector<char> buffer_;  // lives as long as the stream that uses it
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream_;
  std::int64_t bytes_ = 0;
  bool finished_ = false;
};

}  // namespace p3d::data
