// SPDX-License-Identifier: Apache-2.0
// Makes the skeleton of a checkpoint. HDF5 builds the whole file in memory (SparseFile) and gives every array a place;
// the real file gets its length, and the numbers are written at these places without HDF5. finish_file() sets the
// checksums, copies all bytes outside the arrays to the real file, and seals it. Equal content gives equal bytes: no
// times are stored, and the form does not depend on the version of HDF5.
#include "skeleton.hpp"

#include "hdf5.hpp"
#include "layout_text.hpp"
#include "posix_file.hpp"
#include "sparse_file.hpp"
#include "table.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace p3d::io {

/// An HDF5 file that is open and lives in memory.
class DescriptionFile {
public:
  DescriptionFile(hid_t create, hid_t access, std::string const& checkpoint) {
    bytes_.use_for(access);
    hdf5_ = H5(H5Fcreate(checkpoint.c_str(), H5F_ACC_TRUNC, create, access), H5Fclose, "descriptions", checkpoint);
  }
  hid_t hdf5() const { return hdf5_; }
  SparseFile const& bytes() const { return bytes_; }
  void flush(std::string const& path) { hdf5_check(H5Fflush(hdf5_, H5F_SCOPE_LOCAL), "descriptions", path); }
  void close(std::string const& path) { hdf5_.close(path); }

private:
  SparseFile bytes_;
  H5 hdf5_;
};

namespace {

/// Writes the parts of one file. It keeps the path for errors.
class Builder {
public:
  Builder(hid_t file, std::string const& path) : file_(file), path_(path) {}

  /// Adds a text attribute to an object.
  void text(hid_t place, char const* name, std::string const& value) {
    H5 const type(H5Tcopy(H5T_C_S1), H5Tclose, "a text type", path_);
    hdf5_check(H5Tset_size(type, value.empty() ? 1 : value.size()), "a text type", path_);
    hdf5_check(H5Tset_strpad(type, H5T_STR_NULLPAD), "a text type", path_);
    attribute(place, name, type, value.c_str());
  }
  /// Adds a number, 8 bytes, as an attribute.
  void number(hid_t place, char const* name, std::int64_t value) {
    attribute(place, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
  }
  void number(hid_t place, char const* name, std::uint64_t value) {
    attribute(place, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, &value);
  }

  /// Adds a dataset that holds one text.
  void text_set(char const* name, std::string const& value) {
    H5 const type(H5Tcopy(H5T_C_S1), H5Tclose, "a text type", path_);
    hdf5_check(H5Tset_size(type, value.empty() ? 1 : value.size()), "a text type", path_);
    hdf5_check(H5Tset_strpad(type, H5T_STR_NULLPAD), "a text type", path_);
    H5 const space(H5Screate(H5S_SCALAR), H5Sclose, "a data space", path_);
    H5 const set(H5Dcreate2(file_, name, type, space, H5P_DEFAULT, plain(), H5P_DEFAULT), H5Dclose,
                 std::string("room for ") + name, path_);
    std::string const padded = value.empty() ? std::string(1, '\0') : value;
    if (H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, padded.data()) < 0)
      hdf5_failed(std::string("room for ") + name, path_);
  }

  /// Adds the dataset /table.
  void table(std::vector<TableRow> const& rows) {
    auto const records = pack(rows);
    hsize_t const n = rows.size();
    H5 const space(H5Screate_simple(1, &n, nullptr), H5Sclose, "a data space", path_);
    H5 const type(record_type(), H5Tclose, "a record type", path_);
    H5 const set(H5Dcreate2(file_, "table", type, space, H5P_DEFAULT, plain(), H5P_DEFAULT), H5Dclose,
                 "room for the table", path_);
    if (H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, records.data()) < 0)
      hdf5_failed("room for the table", path_);
  }

  /// Makes room for one array and adds its attributes; the checksum is 0 for now. Returns the array's first byte in the
  /// file.
  std::int64_t array(std::string const& name, TableRow const& row, Element element, char const* unit) {
    hsize_t const dims[2] = {static_cast<hsize_t>(row.rows), static_cast<hsize_t>(row.cols)};
    H5 const space(row.vector ? H5Screate_simple(1, dims + 1, nullptr) : H5Screate_simple(2, dims, nullptr), H5Sclose,
                   "a data space", path_);
    H5 const set(H5Dcreate2(file_, name.c_str(), element == Element::float32 ? H5T_IEEE_F32LE : H5T_IEEE_F64LE, space,
                            H5P_DEFAULT, plain(), H5P_DEFAULT),
                 H5Dclose, "room for " + name, path_);
    number(set, "checksum", std::uint64_t{0});
    text(set, "unit", unit);
    auto const offset = H5Dget_offset(set);
    if (offset == HADDR_UNDEF) hdf5_failed("a place in the file for " + name, path_);
    return static_cast<std::int64_t>(offset);
  }

  /// Gives an object a second name.
  void link(char const* object, char const* name) {
    hdf5_check(H5Lcreate_hard(file_, object, file_, name, H5P_DEFAULT, H5P_DEFAULT), "a link", path_);
  }

  void group(char const* name) {
    H5 const properties(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "group properties", path_);
    hdf5_check(H5Pset_obj_track_times(properties, false), "HDF5 settings", path_);
    H5 const made(H5Gcreate2(file_, name, H5P_DEFAULT, properties, H5P_DEFAULT), H5Gclose, "a group", path_);
  }

private:
  void attribute(hid_t place, char const* name, hid_t type, void const* value) {
    attribute(place, name, type, type, value);
  }
  void attribute(hid_t place, char const* name, hid_t stored, hid_t given, void const* value) {
    H5 const space(H5Screate(H5S_SCALAR), H5Sclose, "a data space", path_);
    H5 const made(H5Acreate2(place, name, stored, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose, "an attribute", path_);
    if (H5Awrite(made, given, value) < 0) hdf5_failed("an attribute", path_);
  }
  /// Properties of a dataset: contiguous, given its place at once, not filled, without times, so that equal content
  /// gives equal bytes.
  hid_t plain() {
    if (plain_ < 0) {
      plain_ = H5(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "array properties", path_);
      hdf5_check(H5Pset_layout(plain_, H5D_CONTIGUOUS), "HDF5 settings", path_);
      hdf5_check(H5Pset_alloc_time(plain_, H5D_ALLOC_TIME_EARLY), "HDF5 settings", path_);
      hdf5_check(H5Pset_fill_time(plain_, H5D_FILL_TIME_NEVER), "HDF5 settings", path_);
      hdf5_check(H5Pset_obj_track_times(plain_, false), "HDF5 settings", path_);
    }
    return plain_;
  }
  hid_t file_;
  std::string path_;
  H5 plain_;
};

/// Copies all bytes behind the user block that lie in no extent.
void copy_others(SparseFile const& from, PosixFile const& to, std::int64_t user_block, std::vector<Extent> extents) {
  auto const size = from.size();
  to.resize(size);
  std::sort(extents.begin(), extents.end(), [](auto const& a, auto const& b) { return a.offset < b.offset; });
  extents.push_back({size, 0});
  std::vector<char> buffer(1 << 20);
  auto at = user_block;
  for (auto const& e : extents) {
    while (at < e.offset) {
      auto const n = static_cast<std::size_t>(std::min<std::int64_t>(e.offset - at, 1 << 20));
      from.read(at, buffer.data(), n);
      to.write(at, buffer.data(), n);
      at += static_cast<std::int64_t>(n);
    }
    at = e.offset + e.bytes;
  }
}

}  // namespace

Skeleton make_skeleton(std::string const& path, CheckpointHeader const& header, std::vector<TableRow> const& table,
                       config::StateArrays state, ModelFiles const& model_files) {
  start_hdf5();
  Skeleton out;
  out.user_block = user_block_bytes(table.size() * (1 + state.size()));
  {
    H5 const create(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "file properties", path);
    hdf5_check(H5Pset_userblock(create, static_cast<hsize_t>(out.user_block)), "HDF5 settings", path);
    hdf5_check(H5Pset_obj_track_times(create, false), "HDF5 settings", path);
    H5 const access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "file properties", path);
    // Every version of the library then writes the same form: the one that hdf5_objects.hpp reads.
    hdf5_check(H5Pset_libver_bounds(access, H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST), "HDF5 settings", path);
    // Descriptions lie next to each other, and so do arrays.
    hdf5_check(H5Pset_meta_block_size(access, 1 << 16), "HDF5 settings", path);
    hdf5_check(H5Pset_alignment(access, 1 << 16, 4096), "HDF5 settings", path);  // large arrays begin on a page
    out.descriptions = std::make_shared<DescriptionFile>(create, access, path);
    hid_t const file = out.descriptions->hdf5();
    Builder b(file, path);
    b.text(file, "format", "p3d checkpoint");
    b.number(file, "format_version", std::int64_t{1});
    b.text(file, "p3d_version", header.p3d_version);
    b.number(file, "step", header.step);
    b.number(file, "tokens", header.tokens);
    b.number(file, "samples", header.samples);
    b.number(file, "seed", header.seed);
    b.text(file, "random", random_text);
    b.number(file, "data_hash", header.data_hash);
    b.number(file, "data_order", header.data_order);
    b.text(file, "precision", name(header.element));
    b.text(file, "layout", layout_text);
    if (!header.loss_scale.empty()) b.text(file, "loss_scale", header.loss_scale);
    if (header.versions_made >= 0) b.number(file, "versions_made", header.versions_made);
    if (!header.origin.empty()) b.text(file, "origin", header.origin);
    if (auto const& t = header.tokenizer; !t.name.empty()) {
      b.text(file, "tokenizer", t.name);
      b.text(file, "tokenizer_pattern", t.pattern);
      b.number(file, "tokenizer_hash", t.hash);
      b.number(file, "tokenizer_end", t.end);
      if (!t.file.empty()) b.text_set("tokenizer", t.file);
    }
    b.text_set("input", header.input);
    if (!model_files.empty()) b.group(model_files_group);
    for (auto const& f : model_files) {
      auto const name = fmt::format("{}/{}", model_files_group, f.name);
      // A tokenizer that is also a file of the model is stored once, under two names.
      bool const is_tokenizer = f.name == header.tokenizer.name && f.bytes == header.tokenizer.file;
      is_tokenizer ? b.link("tokenizer", name.c_str()) : b.text_set(name.c_str(), f.bytes);
    }
    b.table(table);
    for (auto const& array : state)
      if (array.rows > 0) b.number(file, "low_rank", array.rows);
    auto const add_group = [&](config::StateArray const& group) {
      auto const name = group.group();
      b.group(name.c_str());
      for (auto row : table) {
        if (group.rows > 0) row.rows = group.rows, row.vector = false;
        out.offsets.push_back(b.array(name + "/" + row.name, row, header.element, group.unit));
      }
    };
    add_group(parameters_group);
    for (auto const& array : state) add_group(array);
    out.descriptions->flush(path);
  }
  PosixFile const file(path, PosixFile::Mode::create);
  file.resize(out.descriptions->bytes().size());
  // A disk that is too small is found here, before the numbers are written.
  file.reserve();
  return out;
}

void finish_file(std::string const& path, CheckpointHeader const& header, std::vector<TableRow> const& table,
                 config::StateArrays state, Skeleton const& skeleton, std::vector<std::uint64_t> const& checksums) {
  auto const arrays = checkpoint_arrays(table, state);
  P3D_REQUIRE(arrays.size() == checksums.size() && arrays.size() == skeleton.offsets.size(),
              "one checksum for each array");
  auto& descriptions = *skeleton.descriptions;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    H5 const set(H5Dopen2(descriptions.hdf5(), arrays[i].name.c_str(), H5P_DEFAULT), H5Dclose,
                 "the array " + arrays[i].name, path);
    H5 const attribute(H5Aopen(set, "checksum", H5P_DEFAULT), H5Aclose, "the checksum of " + arrays[i].name, path);
    if (H5Awrite(attribute, H5T_NATIVE_UINT64, &checksums[i]) < 0)
      hdf5_failed("the checksum of " + arrays[i].name, path);
  }
  descriptions.close(path);
  std::vector<Extent> extents;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    extents.push_back({skeleton.offsets[i], arrays[i].size() * static_cast<std::int64_t>(size_of(header.element))});
  }
  PosixFile const file(path, PosixFile::Mode::write);
  copy_others(descriptions.bytes(), file, skeleton.user_block, extents);
  file.flush();  // only what is on disk is sealed
  write_seal(file, skeleton.user_block, extents);
  file.flush();
}

}  // namespace p3d::io
