// SPDX-License-Identifier: Apache-2.0
#include "table.hpp"

#include "checksum.hpp"

#include <p3d/base/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace p3d::io {

std::size_t size_of(Element element) { return element == Element::float32 ? 4 : 8; }
char const* name(Element element) { return element == Element::float32 ? "fp32" : "fp64"; }

CheckpointArray const* Checkpoint::find(std::string const& array) const {
  auto const it = std::find_if(arrays.begin(), arrays.end(), [&](auto const& a) { return a.name == array; });
  return it == arrays.end() ? nullptr : &*it;
}

std::uint64_t content_hash(Checkpoint const& checkpoint, bool all) {
  ByteHash hash;
  if (all) hash.add(reinterpret_cast<char const*>(&checkpoint.header.step), sizeof checkpoint.header.step);
  for (auto const& a : checkpoint.arrays) {
    if (!all && !a.is_of("parameters")) continue;
    hash.add(a.name.data(), a.name.size());
    hash.add(reinterpret_cast<char const*>(&a.checksum), sizeof a.checksum);
  }
  return hash.value();
}

std::vector<CheckpointArray> checkpoint_arrays(std::vector<TableRow> const& table, config::StateArrays state) {
  std::vector<CheckpointArray> out;
  auto const add_group = [&](std::string const& group, std::int64_t rows = 0) {
    for (auto const& row : table) {
      CheckpointArray a;
      a.name = group + "/" + row.name;
      a.rows = rows > 0 ? rows : row.rows;
      a.cols = row.cols;
      out.push_back(std::move(a));
    }
  };
  add_group(parameters_group.name);
  for (auto const& array : state) add_group(array.group(), array.rows);
  return out;
}

hid_t record_type() {
  auto const good = [](herr_t status) { hdf5_check(status, "a record type", ""); };
  H5 const name(H5Tcopy(H5T_C_S1), H5Tclose, "a text type", "");
  good(H5Tset_size(name, sizeof(TableRecord::name)));
  H5 const unit(H5Tcopy(H5T_C_S1), H5Tclose, "a text type", "");
  good(H5Tset_size(unit, sizeof(TableRecord::unit)));
  H5 type(H5Tcreate(H5T_COMPOUND, sizeof(TableRecord)), H5Tclose, "a record type", "");
  good(H5Tinsert(type, "name", offsetof(TableRecord, name), name));
  good(H5Tinsert(type, "rows", offsetof(TableRecord, rows), H5T_STD_I64LE));
  good(H5Tinsert(type, "cols", offsetof(TableRecord, cols), H5T_STD_I64LE));
  good(H5Tinsert(type, "layer", offsetof(TableRecord, layer), H5T_STD_I64LE));
  good(H5Tinsert(type, "decay", offsetof(TableRecord, decay), H5T_STD_I64LE));
  good(H5Tinsert(type, "unit", offsetof(TableRecord, unit), unit));
  return type.release();
}

std::vector<TableRecord> pack(std::vector<TableRow> const& rows) {
  std::vector<TableRecord> out(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto const& r = rows[i];
    P3D_REQUIRE(r.name.size() < sizeof(TableRecord::name), "a parameter's name is short");
    auto& o = out[i];
    std::memset(&o, 0, sizeof o);
    std::memcpy(o.name, r.name.data(), r.name.size());
    o.rows = r.vector ? 0 : r.rows;
    o.cols = r.cols;
    o.layer = r.layer;
    o.decay = r.decay ? 1 : 0;
    std::strcpy(o.unit, parameters_group.unit);
  }
  return out;
}

std::vector<TableRow> unpack(std::vector<TableRecord> const& records) {
  std::vector<TableRow> out;
  for (auto const& r : records) {
    TableRow row;
    row.name.assign(r.name, ::strnlen(r.name, sizeof r.name));
    row.vector = r.rows == 0;
    row.rows = row.vector ? 1 : r.rows;
    row.cols = r.cols;
    row.layer = static_cast<int>(r.layer);
    row.decay = r.decay != 0;
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace p3d::io
