// SPDX-License-Identifier: Apache-2.0
#include "mutations.hpp"

#include "io/checksum.hpp"
#include "io/hdf5.hpp"
#include "io/posix_file.hpp"
#include "io/seal.hpp"
#include "io/skeleton.hpp"
#include "io/table.hpp"
#include "unit/io/checkpoint_cases.hpp"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <unistd.h>

namespace p3d::fuzz {

namespace {

using Expect = Mutation::Expect;
using io::Extent;

/// Identifiers of HDF5 that close themselves. A failed call of the fuzzer itself is a defect of the fuzzer.
hid_t good_id(hid_t id, char const* what) {
  if (id < 0) throw std::runtime_error(std::string("the fuzzer cannot make ") + what);
  return id;
}
#define P3D_FUZZ_ID(call, close) io::H5(good_id(call, #call), close, #call, "")

std::vector<Extent> extents_of(io::Checkpoint const& c) {
  std::vector<Extent> out;
  for (auto const& a : c.arrays)
    out.push_back({a.offset, a.size() * static_cast<std::int64_t>(io::size_of(c.header.element))});
  return io::joined(out);
}

std::int64_t user_block_of(io::Checkpoint const& c) { return io::user_block_bytes(c.arrays.size()); }

/// A seal with whatever numbers it is given, and the right hash at its end.
void write_any_seal(io::PosixFile const& file, std::int64_t user_block, std::string text) {
  text.resize(static_cast<std::size_t>(user_block) - 17, '\n');
  io::ByteHash hash;
  hash.add(text.data(), text.size());
  text += fmt::format("{:016x}\n", hash.value());
  file.write(0, text.data(), text.size());
}

/// The seal that fits the file as it is now, around the places of the good file's arrays.
void seal_again(io::Checkpoint const& good, std::string const& path) {
  io::PosixFile const file(path, io::PosixFile::Mode::write);
  std::vector<Extent> inside;
  for (auto const& e : extents_of(good)) {
    if (e.offset + e.bytes <= file.size()) inside.push_back(e);
  }
  io::write_seal(file, user_block_of(good), inside);
}

io::H5 open_to_write(std::string const& path) {
  return P3D_FUZZ_ID(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
}

struct AnyType {
  io::H5 id;
  char const* name = "";
  bool variable = false;
};

AnyType any_type(Draw& draw) {
  switch (draw.below(12)) {
    case 0: return {P3D_FUZZ_ID(H5Tcopy(H5T_STD_I64LE), H5Tclose), "int64"};
    case 1: return {P3D_FUZZ_ID(H5Tcopy(H5T_STD_U64LE), H5Tclose), "uint64"};
    case 2: return {P3D_FUZZ_ID(H5Tcopy(H5T_STD_I64BE), H5Tclose), "int64, big-endian"};
    case 3: return {P3D_FUZZ_ID(H5Tcopy(H5T_STD_I8LE), H5Tclose), "int8"};
    case 4: return {P3D_FUZZ_ID(H5Tcopy(H5T_STD_U32LE), H5Tclose), "uint32"};
    case 5: return {P3D_FUZZ_ID(H5Tcopy(H5T_IEEE_F32LE), H5Tclose), "float32"};
    case 6: return {P3D_FUZZ_ID(H5Tcopy(H5T_IEEE_F64LE), H5Tclose), "float64"};
    case 7: return {P3D_FUZZ_ID(H5Tcopy(H5T_IEEE_F64BE), H5Tclose), "float64, big-endian"};
    case 8: {
      AnyType t{P3D_FUZZ_ID(H5Tcopy(H5T_C_S1), H5Tclose), "variable text", true};
      H5Tset_size(t.id, H5T_VARIABLE);
      return t;
    }
    case 9: {
      AnyType t{P3D_FUZZ_ID(H5Tcopy(H5T_C_S1), H5Tclose), "text"};
      H5Tset_size(t.id, 1 + draw.below(300));
      return t;
    }
    case 10: {
      hsize_t const n = 1 + draw.below(20);
      return {P3D_FUZZ_ID(H5Tarray_create2(H5T_STD_I64LE, 1, &n), H5Tclose), "arrays"};
    }
    default: return {io::H5(io::record_type(), H5Tclose, "a record", ""), "records"};
  }
}

io::H5 any_space(Draw& draw, std::uint64_t most) {
  switch (draw.below(5)) {
    case 0: return P3D_FUZZ_ID(H5Screate(H5S_SCALAR), H5Sclose);
    case 1: return P3D_FUZZ_ID(H5Screate(H5S_NULL), H5Sclose);
    default: {
      hsize_t const dims[3] = {1 + draw.below(most), 1 + draw.below(3), 1 + draw.below(3)};
      return P3D_FUZZ_ID(H5Screate_simple(1 + static_cast<int>(draw.below(3)), dims, nullptr), H5Sclose);
    }
  }
}

/// An attribute of another rank, size or type; filled with numbers.
Mutation attribute_form(io::Checkpoint const& good, std::string const& path, Draw& draw) {
  static std::vector<std::string> const of_root{"step",   "tokens",    "samples",     "seed",          "data_hash",
                                                "format", "precision", "p3d_version", "format_version"};
  bool const root = draw.below(3) != 0;
  auto const object = root ? std::string("/") : draw.of(good.arrays).name;
  auto const name = root ? draw.of(of_root) : std::string("checksum");
  auto const file = open_to_write(path);
  auto const place = P3D_FUZZ_ID(H5Oopen(file, object.c_str(), H5P_DEFAULT), H5Oclose);
  Mutation m{"attribute form", fmt::format("{} of {}", name, object), fmt::format("\"{}\"", name)};
  io::H5 old_type, old_space;
  {
    auto const old = P3D_FUZZ_ID(H5Aopen(place, name.c_str(), H5P_DEFAULT), H5Aclose);
    old_type = P3D_FUZZ_ID(H5Aget_type(old), H5Tclose);
  }
  H5Adelete(place, name.c_str());
  if (draw.one_in(12)) {
    m.detail += " deleted";
    return m;
  }
  auto const type = any_type(draw);
  auto const space = any_space(draw, 2000);
  m.detail += fmt::format(": {}, {} values", type.name, H5Sget_simple_extent_npoints(space));
  bool const scalar = H5Sget_simple_extent_type(space) == H5S_SCALAR;
  if (scalar && H5Tequal(type.id, old_type) > 0) m.expect = Expect::anything;
  bool const both_text = H5Tget_class(old_type) == H5T_STRING && H5Tget_class(type.id) == H5T_STRING && !type.variable;
  if (scalar && both_text) m.expect = Expect::anything;  // its length may be any
  auto const a = io::H5(H5Acreate2(place, name.c_str(), type.id, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                        "an attribute of this size", path);  // too large for an object header: drawn again
  auto const bytes = static_cast<std::size_t>(std::max<hssize_t>(H5Sget_simple_extent_npoints(space), 1)) *
                     std::max<std::size_t>(H5Tget_size(type.id), 8);
  if (!type.variable) {
    std::vector<char> const fill(bytes, static_cast<char>(draw.bits()));
    H5Awrite(a, type.id, fill.data());
  }
  return m;
}

/// Another value in an attribute of the right form.
Mutation attribute_value(io::Checkpoint const& good, std::string const& path, Draw& draw) {
  static std::vector<std::string> const names{"step", "tokens", "samples", "format_version", "seed", "data_hash"};
  bool const root = draw.below(4) != 0;
  auto const object = root ? std::string("/") : draw.of(good.arrays).name;
  auto const name = root ? draw.of(names) : std::string("checksum");
  auto const value = draw.extreme();
  auto const file = open_to_write(path);
  auto const place = P3D_FUZZ_ID(H5Oopen(file, object.c_str(), H5P_DEFAULT), H5Oclose);
  auto const a = P3D_FUZZ_ID(H5Aopen(place, name.c_str(), H5P_DEFAULT), H5Aclose);
  auto const type = P3D_FUZZ_ID(H5Aget_type(a), H5Tclose);
  H5Awrite(a, type, &value);
  Mutation m{"attribute value", fmt::format("{} of {} = {}", name, object, value), name};
  bool const position = name == "step" || name == "tokens" || name == "samples";
  if (name == "checksum") m.expect = Expect::damage;
  if (position && value >= 0 && value <= std::int64_t{1} << 53) m.expect = Expect::anything;
  if (name == "seed" || name == "data_hash") m.expect = Expect::anything;
  if (name == "format_version") {
    m.named = "format";
    if (value == 1) m.expect = Expect::anything;
  }
  return m;
}

/// A name of the tokenizer that leads elsewhere, or changes a terminal.
Mutation tokenizer_name(io::Checkpoint const&, std::string const& path, Draw& draw) {
  static std::vector<std::string> const names{"..",
                                              "../victim/profile.sh",
                                              "/etc/passwd",
                                              "a/b",
                                              "a\n",
                                              "\x1b[2J",
                                              "\xc2\x9b"
                                              "2J",
                                              "\xff",
                                              "other.json",
                                              "."};
  auto const& name = draw.of(names);
  auto const file = open_to_write(path);
  H5Adelete(file, "tokenizer");
  auto const type = P3D_FUZZ_ID(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, name.size());
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  auto const one = P3D_FUZZ_ID(H5Screate(H5S_SCALAR), H5Sclose);
  auto const a = P3D_FUZZ_ID(H5Acreate2(file, "tokenizer", type, one, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  H5Awrite(a, type, name.data());
  return {"tokenizer name", name, "\"tokenizer\"", name == "other.json" ? Expect::anything : Expect::refusal};
}

/// A dataset in the place of another: other type, shape or storage.
Mutation dataset_form(io::Checkpoint const& good, std::string const& path, Draw& draw) {
  auto const which = draw.below(6);
  auto const name = which == 0   ? std::string("input")
                    : which == 1 ? std::string("table")
                    : which == 2 ? "model_files/" + draw.of(test::small_model_files()).name
                                 : draw.of(good.arrays).name;
  Mutation m{"dataset form", name, "/" + name};
  auto const file = open_to_write(path);
  io::H5 old_type, old_space;
  {
    auto const old = P3D_FUZZ_ID(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose);
    old_type = P3D_FUZZ_ID(H5Dget_type(old), H5Tclose);
    old_space = P3D_FUZZ_ID(H5Dget_space(old), H5Sclose);
  }
  H5Ldelete(file, name.c_str(), H5P_DEFAULT);
  auto const make = P3D_FUZZ_ID(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  auto any = any_type(draw);
  auto space = any_space(draw, 300);
  auto const keep_form = [&] {
    any.id = P3D_FUZZ_ID(H5Tcopy(old_type), H5Tclose);
    any.variable = false;
    space = P3D_FUZZ_ID(H5Scopy(old_space), H5Sclose);
  };
  bool const simple = H5Sget_simple_extent_type(old_space) == H5S_SIMPLE;
  switch (draw.below(7)) {
    case 0:
    case 1:
      m.detail += ": another form";
      if (draw.one_in(2)) H5Pset_alloc_time(make, H5D_ALLOC_TIME_EARLY);
      break;
    case 2:
      m.detail += ": compact";
      keep_form();
      space = P3D_FUZZ_ID(H5Screate(H5S_SCALAR), H5Sclose);
      H5Pset_layout(make, H5D_COMPACT);
      break;
    case 3:
      if (!simple) break;
      m.detail += ": chunked";
      keep_form();
      {
        hsize_t dims[2] = {1, 1};
        H5Sget_simple_extent_dims(space, dims, nullptr);
        H5Pset_chunk(make, H5Sget_simple_extent_ndims(space), dims);
        if (draw.one_in(2)) H5Pset_deflate(make, 1), m.detail += ", compressed";
      }
      break;
    case 4:
      if (!simple) break;
      m.detail += ": in another file";
      keep_form();
      H5Pset_external(make, "/etc/passwd", 0, H5F_UNLIMITED);
      break;
    case 5:
      if (!simple) break;
      m.detail += ": virtual";
      keep_form();
      H5Pset_virtual(make, space, good.path.c_str(), name.c_str(), space);
      break;
    default: {
      m.detail += ": huge and not stored";
      hsize_t const dims[2] = {hsize_t{1} << (10 + draw.below(30)), hsize_t{1} << draw.below(20)};
      space = P3D_FUZZ_ID(H5Screate_simple(1 + static_cast<int>(draw.below(2)), dims, nullptr), H5Sclose);
      any.id = P3D_FUZZ_ID(H5Tcopy(old_type), H5Tclose);
      H5Pset_alloc_time(make, H5D_ALLOC_TIME_LATE);
    }
  }
  auto const set = io::H5(H5Dcreate2(file, name.c_str(), any.id, space, H5P_DEFAULT, make, H5P_DEFAULT), H5Dclose,
                          "a dataset like this", path);
  if (draw.one_in(2) && which > 2) {
    auto const one = P3D_FUZZ_ID(H5Screate(H5S_SCALAR), H5Sclose);
    auto const a = P3D_FUZZ_ID(H5Acreate2(set, "checksum", H5T_STD_U64LE, one, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    std::uint64_t const sum = draw.bits();
    H5Awrite(a, H5T_NATIVE_UINT64, &sum);
  }
  // By chance the right form: then it lies outside the seal's extents, or holds another text.
  if ((name == "input" || which == 2) && H5Tget_class(any.id) == H5T_STRING && !any.variable)
    m.expect = Expect::anything;
  return m;
}

/// Another kind of link, or another object, where a group or dataset is expected.
Mutation link_form(io::Checkpoint const& good, std::string const& path, Draw& draw) {
  auto const which = draw.below(6);
  auto const name = which == 0   ? std::string("input")
                    : which == 1 ? std::string("table")
                    : which == 2 ? std::string("parameters")
                                 : draw.of(good.arrays).name;
  Mutation m{"link form", name, "/" + name};
  auto const file = open_to_write(path);
  auto const moved = std::string("moved");
  H5Lmove(file, name.c_str(), file, moved.c_str(), H5P_DEFAULT, H5P_DEFAULT);
  switch (draw.below(6)) {
    case 0: H5Lcreate_soft(("/" + moved).c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT); break;
    case 1: H5Lcreate_soft(("/" + name).c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT); break;
    case 2:
      H5Lcreate_external(good.path.c_str(), name.c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
      m.named = "/" + name.substr(0, which <= 2 ? 0 : name.find('/')) + ", a group";  // which then has another form
      break;
    case 3: {
      auto const other = draw.of(good.arrays).name;
      if (other == name || which <= 2) break;  // then it is missing
      H5Lcreate_hard(file, other.c_str(), file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
      m.named = "";  // the shape of one, or two arrays in one place
      break;
    }
    case 4: {
      if (which == 2) break;
      auto const group = P3D_FUZZ_ID(H5Gcreate2(file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
      break;
    }
    default: {
      auto const type = P3D_FUZZ_ID(H5Tcopy(H5T_STD_I64LE), H5Tclose);
      H5Tcommit2(file, name.c_str(), type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    }
  }
  return m;
}

/// Other numbers and names in the records of /table.
Mutation table_record(io::Checkpoint const& good, std::string const& path, Draw& draw) {
  auto records = io::pack(good.table);
  auto& r = draw.of(records);
  auto const old = r;
  Mutation m{"table record", "", "/"};
  auto& target = const_cast<io::TableRecord&>(r);
  switch (draw.below(5)) {
    case 0: target.rows = draw.extreme(), m.detail = fmt::format("rows {}", target.rows); break;
    case 1: target.cols = draw.extreme(), m.detail = fmt::format("cols {}", target.cols); break;
    case 2:
      target.layer = draw.extreme(), m.detail = fmt::format("layer {}", target.layer);
      if (target.layer >= -1 && target.layer <= 2147483647) m.expect = Expect::anything;
      break;
    case 3:
      target.decay = draw.extreme(), m.detail = fmt::format("decay {}", target.decay);
      if (target.decay == 0 || target.decay == 1) m.expect = Expect::anything;
      break;
    default: {
      static std::vector<std::string> const names{"",
                                                  ".",
                                                  "..",
                                                  "../input",
                                                  "/input",
                                                  "a/b",
                                                  "embed.token.weight",
                                                  "name\n",
                                                  "\x1b[2J",
                                                  std::string(120, 'x'),
                                                  std::string(119, 'y')};
      auto const& name = draw.of(names);
      std::memset(target.name, 0, sizeof target.name);
      std::memcpy(target.name, name.data(), std::min(name.size(), sizeof target.name));
      m.detail = "name";
    }
  }
  if (std::memcmp(&old, &target, sizeof old) == 0) m.expect = Expect::anything;
  auto const file = open_to_write(path);
  auto const set = P3D_FUZZ_ID(H5Dopen2(file, "table", H5P_DEFAULT), H5Dclose);
  auto const type = io::H5(io::record_type(), H5Tclose, "a record", "");
  H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, records.data());
  return m;
}

/// A seal with other numbers and the right hash.
Mutation seal_numbers(io::Checkpoint const& good, std::string const& path, Draw& draw) {
  io::PosixFile const file(path, io::PosixFile::Mode::write);
  auto extents = extents_of(good);
  auto const user_block = user_block_of(good);
  Mutation m{"seal", "", ""};
  std::string count = std::to_string(extents.size());
  auto block = fmt::format("{:020}", user_block), bytes = fmt::format("{:020}", file.size());
  auto& e = extents[draw.below(extents.size())];
  bool resealed = true;
  switch (draw.below(8)) {
    case 0: count = std::to_string(draw.extreme()), m.detail = "count " + count; break;
    case 1: e.bytes += 1 + static_cast<std::int64_t>(draw.below(4096)), m.detail = "an extent that is longer"; break;
    case 2: e.bytes -= 1, m.detail = "an extent that is shorter"; break;
    case 3: e.offset = draw.extreme(), m.detail = fmt::format("an extent at {}", e.offset); break;
    case 4: e.bytes = draw.extreme(), m.detail = fmt::format("an extent of {}", e.bytes); break;
    case 5: bytes = fmt::format("{:020}", draw.extreme()), m.detail = "file_bytes " + bytes; break;
    case 6: block = fmt::format("{:020}", draw.extreme()), m.detail = "user_block " + block; break;
    default: extents.push_back(e), m.detail = "an extent twice"; count = std::to_string(extents.size());
  }
  std::string list;
  for (auto const& x : extents) list += fmt::format("{} {}\n", x.offset, x.bytes);
  // The hash of the rest as a careful author would compute it, where that is possible.
  io::ByteHash hash;
  std::int64_t at = user_block;
  for (auto const& x : extents) {
    resealed = resealed && x.offset >= at && x.bytes > 0 && x.bytes <= file.size() && x.offset <= file.size() - x.bytes;
    if (!resealed) break;
    std::vector<char> rest(static_cast<std::size_t>(x.offset - at));
    file.read(at, rest.data(), rest.size());
    hash.add(rest.data(), rest.size());
    at = x.offset + x.bytes;
  }
  std::vector<char> rest(static_cast<std::size_t>(file.size() - at));
  file.read(at, rest.data(), rest.size());
  hash.add(rest.data(), rest.size());
  auto const other = fmt::format("{:016x}", hash.value());
  write_any_seal(file, user_block,
                 fmt::format("p3d checkpoint 1\nuser_block {}\nfile_bytes {}\nother_hash {}\nextents {}\n{}", block,
                             bytes, other, count, list));
  if (count == std::to_string(extents_of(good).size()) && bytes == fmt::format("{:020}", file.size()) &&
      block == fmt::format("{:020}", user_block) && extents == extents_of(good))
    m.expect = Expect::anything;
  return m;
}

/// Bytes of the descriptions, under a new seal: HDF5 meets them.
Mutation description_bytes(io::Checkpoint const& good, std::string const& path, Draw& draw) {
  Mutation m{"description bytes", "", "", Expect::anything};
  {
    io::PosixFile const file(path, io::PosixFile::Mode::write);
    auto const inside = extents_of(good);
    auto const free = [&](std::int64_t at) {
      return std::none_of(inside.begin(), inside.end(),
                          [&](Extent const& e) { return at >= e.offset && at < e.offset + e.bytes; });
    };
    for (auto n = 1 + draw.below(4); n > 0; --n) {
      auto const begin = user_block_of(good);
      std::int64_t at = 0;
      do at = begin + static_cast<std::int64_t>(draw.below(static_cast<std::uint64_t>(file.size() - begin)));
      while (!free(at));
      // Most bytes there are padding: half of the changes go where something is.
      char byte = 0;
      file.read(at, &byte, 1);
      if (byte == 0 && draw.below(4) != 0) {
        ++n;
        continue;
      }
      byte = draw.one_in(2) ? static_cast<char>(byte ^ (1 << draw.below(8))) : static_cast<char>(draw.bits());
      if (draw.one_in(4)) byte = static_cast<char>(0xff);
      file.write(at, &byte, 1);
      m.detail += fmt::format("{} ", at);
    }
  }
  seal_again(good, path);
  return m;
}

/// Single bytes, cuts and growth without a new seal.
Mutation plain_damage(io::Checkpoint const&, std::string const& path, Draw& draw) {
  Mutation m{"plain damage", "", "", Expect::damage};
  auto const size = std::filesystem::file_size(path);
  switch (draw.below(6)) {
    case 0: {
      auto const cut = draw.below(size);
      std::filesystem::resize_file(path, cut);
      m.detail = fmt::format("cut to {}", cut);
      break;
    }
    case 1: std::filesystem::resize_file(path, size + 1 + draw.below(5000)), m.detail = "longer"; break;
    default: {
      io::PosixFile const file(path, io::PosixFile::Mode::write);
      auto const at = static_cast<std::int64_t>(draw.below(size));
      char byte = 0;
      file.read(at, &byte, 1);
      byte = static_cast<char>(byte ^ (1 + draw.below(255)));
      file.write(at, &byte, 1);
      m.detail = fmt::format("byte {}", at);
    }
  }
  return m;
}

/// A cut file under a new seal, HDF5's signature elsewhere, another superblock.
Mutation outer_form(io::Checkpoint const& good, std::string const& path, Draw& draw) {
  Mutation m{"outer form", "", "", Expect::anything};
  auto const user_block = user_block_of(good);
  if (draw.one_in(2)) {
    auto const size = std::filesystem::file_size(path);
    auto const left =
        static_cast<std::uint64_t>(user_block) + draw.below(size - static_cast<std::uint64_t>(user_block));
    std::filesystem::resize_file(path, left);
    m.detail = fmt::format("cut to {} and sealed", left);
  } else {
    io::PosixFile const file(path, io::PosixFile::Mode::write);
    auto const at = user_block + static_cast<std::int64_t>(draw.below(96));
    auto const byte = static_cast<char>(draw.bits());
    file.write(at, &byte, 1);
    m.detail = fmt::format("byte {} of the superblock", at - user_block);
  }
  seal_again(good, path);
  return m;
}

}  // namespace

std::int64_t Draw::extreme() {
  switch (below(6)) {
    case 0: return static_cast<std::int64_t>(below(5)) - 2;
    case 1: return static_cast<std::int64_t>(std::uint64_t{1} << below(64));
    case 2: return static_cast<std::int64_t>((std::uint64_t{1} << below(64)) - 1);
    case 3: return -static_cast<std::int64_t>(below(1 << 20));
    case 4: return static_cast<std::int64_t>(below(2) == 0 ? std::uint64_t{1} << 63 : ~std::uint64_t{0} >> 1);
    default: return static_cast<std::int64_t>(bits());
  }
}

void make_good(std::string const& path, io::Element element, bool moments) {
  auto const header = test::small_header(element);
  auto const table = test::small_table();
  auto const state = moments ? config::state_of({}).arrays : config::StateArrays{};
  auto const arrays = io::checkpoint_arrays(table, state);
  auto const skeleton = io::make_skeleton(path, header, table, state, test::small_model_files());
  std::vector<std::uint64_t> sums;
  {
    io::PosixFile const file(path, io::PosixFile::Mode::write);
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      auto const n = arrays[a].size();
      auto const bytes = io::size_of(element);
      std::vector<char> data(static_cast<std::size_t>(n) * bytes);
      for (std::int64_t i = 0; i < n; ++i) {
        double const wide = test::value_of(a, i);
        float const narrow = static_cast<float>(wide);
        std::memcpy(data.data() + static_cast<std::size_t>(i) * bytes,
                    bytes == 8 ? static_cast<void const*>(&wide) : &narrow, bytes);
      }
      file.write(skeleton.offsets[a], data.data(), data.size());
      sums.push_back(io::checksum(data.data(), n, 0, bytes));
    }
  }
  io::finish_file(path, header, table, state, skeleton, sums);
}

Mutation mutate(io::Checkpoint const& good, std::string const& path, Draw& draw) {
  for (;;) {
    std::filesystem::copy_file(good.path, path, std::filesystem::copy_options::overwrite_existing);
    try {
      auto const kind = draw.below(16);
      if (kind == 0) return plain_damage(good, path, draw);
      if (kind <= 2) return seal_numbers(good, path, draw);
      if (kind <= 5) return description_bytes(good, path, draw);
      if (kind == 6) return outer_form(good, path, draw);
      auto m = kind <= 9    ? attribute_form(good, path, draw)
               : kind == 10 ? (draw.one_in(2) ? tokenizer_name(good, path, draw) : attribute_value(good, path, draw))
               : kind <= 13 ? dataset_form(good, path, draw)
               : kind == 14 ? link_form(good, path, draw)
                            : table_record(good, path, draw);
      seal_again(good, path);
      // What was at its end is gone, and with it the end of an extent of several arrays.
      if (std::filesystem::file_size(path) < static_cast<std::uintmax_t>(good.file_bytes)) m.named.clear();
      return m;
    } catch (base::Error const&) {  // HDF5 refuses to make such a file: another one
    }
  }
}

}  // namespace p3d::fuzz
