// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading the bytes of a file that may be compressed.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace p3d::text {

/// Bytes that are read once, from a place to the end.
class ByteStream {
public:
  virtual ~ByteStream() = default;
  /// Reads up to `count` bytes; it reads fewer only at the end. Throws base::Error (bad_input) for a file that cannot
  /// be read, and for a compressed file that is damaged or ends too early.
  virtual std::size_t read(char* to, std::size_t count) = 0;
  /// The number of bytes of the file itself that were read: compressed bytes, for a compressed file.
  virtual std::int64_t consumed() const = 0;
};

enum class Compression { none, gzip, zstd };
/// The compression by the ending of the name: .gz, .zst.
Compression compression_of(std::string_view path);
/// Opens a file, decompressed by the ending of its name. `begin`: the first byte to read, for a file that is not
/// compressed.
std::unique_ptr<ByteStream> open_bytes(std::string const& path, std::int64_t begin = 0);
/// Opens a file at its start and decompresses it as `compression` says, whatever its name ends with.
std::unique_ptr<ByteStream> open_bytes(std::string const& path, Compression compression);

}  // namespace p3d::text
