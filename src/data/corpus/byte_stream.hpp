// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bytes of a file that may be compressed.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace p3d::data {

class ByteStream {
public:
  virtual ~ByteStream() = default;
  /// Reads up to `count` bytes; less only at the end. Throws base::Error (bad_input) for what cannot be read, and for a
  /// compressed file that is damaged or ends too early.
  virtual std::size_t read(char* to, std::size_t count) = 0;
  /// Bytes of the file itself that were read.
  virtual std::int64_t consumed() const = 0;
};

enum class Compression { none, gzip, zstd };
/// By the ending of the name: .gz, .zst.
Compression compression_of(std::string_view path);
/// `begin`: where to start, of a file that is not compressed.
std::unique_ptr<ByteStream> open_bytes(std::string const& path, std::int64_t begin = 0);
/// Opens a file at its start and decompresses it as `compression` says, whatever its name ends with.
std::unique_ptr<ByteStream> open_bytes(std::string const& path, Compression compression);

}  // namespace p3d::data
