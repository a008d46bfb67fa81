// SPDX-License-Identifier: Apache-2.0
#pragma once
// The only way in which p3d reads HDF5 (lint rule `doors`): objects of a checkpoint by name. Each object is checked for
// links, rank, size, type and storage before anything of it is used.

#include "hdf5_objects.hpp"
#include "posix_file.hpp"
#include "seal.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace p3d::io {

/// A checkpoint file that is open for reading. Objects are named by their path in the file ("/", "parameters/NAME").
/// Every member throws base::Error (damaged()) that names the attribute or dataset when it is not what the caller asks
/// for; nothing larger than the file is allocated.
class Hdf5File {
public:
  /// `user_block`: bytes before HDF5's signature, as the seal says. `file` must outlive this object.
  Hdf5File(PosixFile const& file, std::int64_t user_block);

  /// Reads a scalar attribute of 8 bytes, signed.
  std::int64_t signed_number(std::string const& object, char const* attribute);
  /// Reads a scalar attribute of 8 bytes, unsigned.
  std::uint64_t unsigned_number(std::string const& object, char const* attribute);
  /// Reads a scalar attribute that is text of fixed length, without control characters.
  std::string text(std::string const& object, char const* attribute);

  bool has_attribute(std::string const& object, char const* name) { return open(object).find(name) != nullptr; }
  bool has(std::string const& name_in_root) const { return groups_.at("").contains(name_in_root); }
  bool has_in(std::string const& group, std::string const& name) { return links_of(group).contains(name); }
  /// Reads a dataset that is one string of fixed length, up to its first zero.
  std::string text_of(std::string const& dataset);
  /// Reads a dataset that is one string of fixed length, with all of its bytes.
  std::string bytes_of(std::string const& dataset);
  /// Reads the records of /table (table.hpp) as bytes: `record_bytes` for each.
  std::vector<char> table_records(std::string const& dataset, std::size_t record_bytes);
  /// The bytes of the file in which the elements of a dataset lie. `dims` is the shape that it must have.
  Extent place(std::string const& dataset, Hdf5Type::Kind kind, std::vector<std::int64_t> const& dims);

private:
  /// A dataset, its name in messages, and its bytes in the file.
  struct Found {
    Hdf5Object object;
    std::string what;
    Extent extent;
  };
  Hdf5Object const& open(std::string const& object);
  std::map<std::string, Hdf5Link> const& links_of(std::string const& group);
  Hdf5Attribute attribute(std::string const& object, char const* name, std::string const& wanted);
  std::uint64_t number(std::string const& object, char const* name, Hdf5Type::Kind kind);
  Found dataset(std::string const& name);
  [[noreturn]] void refuse(std::string const& expected, std::string const& found) const;

  PosixFile const& file_;
  Hdf5Objects objects_;
  Hdf5Object root_;
  std::map<std::string, std::map<std::string, Hdf5Link>> groups_;  ///< the groups that were looked into; "" is the root
  std::string last_name_;                                          ///< path of last_
  Hdf5Object last_;
};

}  // namespace p3d::io
