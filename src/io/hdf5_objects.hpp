// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads the parts of an HDF5 file that p3d's checkpoints are made of, without the HDF5 library: superblock 0, groups
// with symbol tables, object headers of version 1, and in these dataspaces, types, contiguous layouts and attributes
// (the HDF5 file format specification, version 3.0, calls them so).
//
// The library is not to be used on files of strangers: a changed length in such a description makes it read and write
// behind its buffers, and allocate what the file declares. Here nothing is believed, any other form is refused, and all
// memory in all is bounded by the file's size.

#include "posix_file.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::io {

/// The shape of a value. `known` is false for a form that p3d does not write.
struct Hdf5Shape {
  bool known = false;
  std::vector<std::int64_t> dims;  ///< empty: one value; -1: a size that is too large

  bool scalar() const { return known && dims.empty(); }
  /// The shape in words, for messages.
  std::string text() const;
};

/// A type, as the bytes that describe it in the file.
struct Hdf5Type {
  std::string bytes;

  enum class Kind { int64, uint64, float32, float64 };
  /// True for the one description that p3d writes for this kind: little-endian, IEEE 754, without padding.
  bool is(Kind kind) const;
  /// True for text of a fixed length.
  bool is_text() const;
  /// True for the record of table.hpp.
  bool is_table_record() const;
  /// Bytes of one value.
  std::uint64_t size() const;
  /// The type in words, for messages.
  std::string name() const;
};
char const* name(Hdf5Type::Kind kind);

/// An attribute of an object.
struct Hdf5Attribute {
  std::string name;
  bool known = false;  ///< it has the form that p3d writes
  Hdf5Type type;
  Hdf5Shape shape;
  std::string data;  ///< bytes of the value, and what may follow them
};

/// A group or a dataset, as its object header describes it.
struct Hdf5Object {
  std::vector<Hdf5Attribute> attributes;
  std::string other;  ///< in words, a part of the header that p3d does not write; "" when there is none
  bool group = false;
  std::uint64_t tree = 0, heap = 0;  ///< addresses of a group's members and of their names
  bool dataset = false, contiguous = false;
  std::string layout;  ///< in words, where the dataset is not contiguous
  Hdf5Type type;
  Hdf5Shape shape;
  std::uint64_t address = 0, bytes = 0;  ///< extent of the data of a contiguous dataset; the address as it is stored

  /// The attribute of this name, or null.
  Hdf5Attribute const* find(std::string_view attribute) const;
};

/// The target of a name in a group.
struct Hdf5Link {            ///< address of the object's header
  std::uint64_t header = 0;  ///< false: a soft link, which p3d does not follow
  bool hard = true;
};

/// Reads objects by the addresses of their headers. All addresses count from the end of the user block.
class Hdf5Objects {
public:
  /// Reads the superblock. `file` must outlive this object. All members throw base::Error (damaged()).
  Hdf5Objects(PosixFile const& file, std::int64_t user_block);
  std::uint64_t root() const { return root_; }
  /// Reads the object whose header is at an address. `what` names the object in errors.
  Hdf5Object object(std::uint64_t header, std::string const& what);
  /// Reads the names in a group and their targets.
  std::map<std::string, Hdf5Link> links(Hdf5Object const& group, std::string const& what);
  /// The first byte in the file of what is stored at address 0.
  std::int64_t user_block() const { return user_block_; }

private:
  /// Reads `count` bytes at an address, and takes them from the budget.
  std::string bytes(std::uint64_t address, std::uint64_t count, std::string const& what);
  /// Reads a node of a group's B-tree. Nodes of level 0 hold names; level -1 stands for a root of unknown level.
  void read_tree(std::uint64_t address, int level, std::string const& names, std::string const& what,
                 std::map<std::string, Hdf5Link>& out);
  [[noreturn]] void refuse(std::string const& expected, std::string const& found) const;

  PosixFile const& file_;
  std::int64_t user_block_;
  std::int64_t size_;  ///< bytes of the file
  /// Bytes of descriptions that may still be read; it ends loops, as no description needs to be read often.
  std::int64_t budget_;
  std::uint64_t root_ = 0;
};

}  // namespace p3d::io
