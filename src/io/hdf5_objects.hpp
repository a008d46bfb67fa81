// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of an HDF5 file that p3d's checkpoints are made of, read without the HDF5 library: superblock 0, groups
// with symbol tables, object headers of version 1, and in these dataspaces, types, contiguous layouts and attributes
// (the HDF5 file format specification, version 3.0, calls them so). The library is not to be used on files of
// strangers: a changed length in such a description makes it read and write behind its buffers, and allocate what the
// file declares. Here nothing is believed, any other form is refused, and all memory together is bounded by the file's
// size.

#include "posix_file.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::io {

/// The shape of a value. `known` is false for what p3d does not write.
struct Hdf5Shape {
  bool known = false;
  std::vector<std::int64_t> dims;  ///< none: one value

  bool scalar() const { return known && dims.empty(); }
  std::string text() const;
};

/// A type, as the bytes that describe it.
struct Hdf5Type {
  std::string bytes;

  enum class Kind { int64, uint64, float32, float64 };
  bool is(Kind kind) const;
  /// Text of a fixed length.
  bool is_text() const;
  /// The record of table.hpp.
  bool is_table_record() const;
  std::uint64_t size() const;
  std::string name() const;
};
char const* name(Hdf5Type::Kind kind);

struct Hdf5Attribute {
  std::string name;
  bool known = false;  ///< in the form that p3d writes
  Hdf5Type type;
  Hdf5Shape shape;
  std::string data;
};

/// A group or a dataset.
struct Hdf5Object {
  std::vector<Hdf5Attribute> attributes;
  std::string other;  ///< a part that p3d does not write, in words; or ""
  bool group = false;
  std::uint64_t tree = 0, heap = 0;  ///< of a group
  bool dataset = false, contiguous = false;
  std::string layout;  ///< in words
  Hdf5Type type;
  Hdf5Shape shape;
  std::uint64_t address = 0, bytes = 0;  ///< of a contiguous dataset: the address as it is stored

  Hdf5Attribute const* find(std::string_view attribute) const;
};

/// What a group's name leads to.
struct Hdf5Link {
  std::uint64_t header = 0;
  bool hard = true;
};

class Hdf5Objects {
public:
  /// Reads the superblock. `file` must outlive this. All members throw base::Error (damaged()).
  Hdf5Objects(PosixFile const& file, std::int64_t user_block);
  std::uint64_t root() const { return root_; }
  /// `what` names the object in errors.
  Hdf5Object object(std::uint64_t header, std::string const& what);
  std::map<std::string, Hdf5Link> links(Hdf5Object const& group, std::string const& what);
  /// First byte in the file of what is stored at an address.
  std::int64_t user_block() const { return user_block_; }

private:
  std::string bytes(std::uint64_t address, std::uint64_t count, std::string const& what);
  void read_tree(std::uint64_t address, int level, std::string const& names, std::string const& what,
                 std::map<std::string, Hdf5Link>& out);
  [[noreturn]] void refuse(std::string const& expected, std::string const& found) const;

  PosixFile const& file_;
  std::int64_t user_block_;
  std::int64_t size_;    ///< of the file
  std::int64_t budget_;  ///< bytes of descriptions that may still be read: none needs to be read often
  std::uint64_t root_ = 0;
};

}  // namespace p3d::io
