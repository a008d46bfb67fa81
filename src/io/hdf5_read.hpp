#pragma once
// The one door through which p3d reads HDF5 (lint rule `doors`). A checkpoint may come from anywhere, and HDF5 believes
// what a file says of itself: it writes an array over the scalar that a caller gave it, follows links into other files,
// and allocates what a file declares. So links, rank, size, type and layout of every object are checked before
// anything of it is read, and datasets are read by their place in the file, without HDF5.

#include "hdf5.hpp"
#include "posix_file.hpp"
#include "seal.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::io {

/// A file that is open for reading. Objects are named by their path in the file ("/", "parameters/NAME"). Every member
/// throws base::Error that names the attribute or dataset when it is not what the caller asks for; nothing larger than
/// the file is allocated.
class Hdf5File {
public:
  /// `user_block`: bytes before HDF5's signature, as the seal says. `file` must outlive this.
  Hdf5File(PosixFile const& file, std::int64_t user_block);

  /// A scalar attribute of 8 bytes, signed or unsigned.
  std::int64_t signed_number(std::string const& object, char const* attribute) const;
  std::uint64_t unsigned_number(std::string const& object, char const* attribute) const;
  /// A scalar attribute of fixed length, without control characters.
  std::string text(std::string const& object, char const* attribute) const;

  bool has(char const* object) const;
  bool has_attribute(std::string const& object, char const* attribute) const;
  /// A scalar string of fixed length. Zeros at its end are left out.
  std::string text_of(std::string const& dataset) const;
  /// A dataset of one dimension whose elements have this type; their bytes.
  std::vector<char> records(std::string const& dataset, hid_t type, std::size_t record_bytes) const;
  /// Where the elements of a dataset lie. `dims`: its shape.
  Extent place(std::string const& dataset, hid_t type, std::vector<std::int64_t> const& dims) const;

private:
  /// An attribute, or a dataset with its bytes in the file.
  struct Found {
    H5 id, space, type;
    std::string what;
    Extent extent;
  };
  H5 open(std::string const& object) const;
  Found attribute_of(std::string const& object, char const* attribute) const;
  Found dataset(std::string const& name) const;
  void read_number(std::string const& object, char const* attribute, hid_t stored_as, hid_t type, void* out) const;
  [[noreturn]] void refuse(std::string const& expected, std::string const& found) const;

  PosixFile const& file_;
  H5 hdf5_;
};

/// Throws base::Error unless HDF5's signature and superblock lie behind the user block and ask for nothing beyond this
/// file (no other driver, no cache image).
void check_superblock(PosixFile const& file, std::int64_t user_block);

}  // namespace p3d::io
