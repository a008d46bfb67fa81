// The first bytes that HDF5 would read.

#include "hdf5_read.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string_view>

namespace p3d::io {

namespace {

constexpr std::string_view signature("\x89HDF\r\n\x1a\n", 8);
constexpr auto nowhere = ~std::uint64_t{0};

bool is_signature(PosixFile const& file, std::int64_t at) {
  char found[8];
  if (at + 8 > file.size()) return false;
  file.read(at, found, sizeof found);
  return std::string_view(found, sizeof found) == signature;
}

}  // namespace

void check_superblock(PosixFile const& file, std::int64_t user_block) {
  auto const wrong = [&](std::string const& found) {
    return damaged(file.path(), fmt::format("an HDF5 file behind the {} bytes of the seal", user_block), found);
  };
  // HDF5 takes the first signature that it finds at 0, 512, 1024, ...
  if (is_signature(file, 0)) throw wrong("HDF5's signature at byte 0");
  for (std::int64_t at = 512; at < user_block; at *= 2) {
    if (is_signature(file, at)) throw wrong(fmt::format("HDF5's signature at byte {}", at));
  }
  if (!is_signature(file, user_block)) throw wrong(fmt::format("no HDF5 signature at byte {}", user_block));
  std::array<char, 56> block{};
  if (user_block + static_cast<std::int64_t>(block.size()) > file.size()) throw wrong("a file that ends there");
  file.read(user_block, block.data(), block.size());
  auto const byte = [&](std::size_t at) { return static_cast<unsigned char>(block[at]); };
  auto const word = [&](std::size_t at) {
    std::uint64_t v = 0;
    for (std::size_t i = 0; i < 8; ++i) v |= static_cast<std::uint64_t>(byte(at + i)) << (8 * i);
    return v;
  };
  // Version 0 (HDF5 1.x by default): the base address at 24, other drivers at 48. Versions 2 and 3: base at 12, an
  // extension (other drivers, cache images, shared messages) at 20.
  int const version = byte(8);
  if (version != 0 && version != 2 && version != 3) throw wrong(fmt::format("a superblock of version {}", version));
  bool const old = version == 0;
  if (byte(old ? 13 : 9) != 8 || byte(old ? 14 : 10) != 8) throw wrong("a superblock with addresses of another size");
  if (word(old ? 24 : 12) != static_cast<std::uint64_t>(user_block)) throw wrong("a superblock with another base");
  if (word(old ? 48 : 20) != nowhere) throw wrong("a superblock with an extension");
}

}  // namespace p3d::io
