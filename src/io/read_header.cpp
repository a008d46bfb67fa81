// Reading everything of a checkpoint but its numbers.

#include "hdf5.hpp"
#include "seal.hpp"
#include "table.hpp"

#include <p3d/io/checkpoint.hpp>

#include <p3d/base/error.hpp>
#include <p3d/io/file_watch.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace p3d::io {

namespace {

class Reader {
public:
  Reader(hid_t file, std::string const& path) : file_(file), path_(path) {}

  std::string text(char const* name) {
    H5 const a(H5Aopen(file_, name, H5P_DEFAULT), H5Aclose, std::string("the attribute ") + name, path_);
    H5 const type(H5Aget_type(a), H5Tclose, "a text type", path_);
    std::string out(H5Tget_size(type), '\0');
    if (H5Tget_class(type) != H5T_STRING || H5Aread(a, type, out.data()) < 0)
      hdf5_failed(std::string("the text ") + name, path_);
    out.resize(std::min(out.size(), out.find('\0')));
    return out;
  }
  template <class T>
  T number(hid_t place, char const* name) {
    H5 const a(H5Aopen(place, name, H5P_DEFAULT), H5Aclose, std::string("the attribute ") + name, path_);
    T out{};
    auto const type = std::numeric_limits<T>::is_signed ? H5T_NATIVE_INT64 : H5T_NATIVE_UINT64;
    if (H5Aread(a, type, &out) < 0) hdf5_failed(std::string("the number ") + name, path_);
    return out;
  }
  std::string input() {
    H5 const set(H5Dopen2(file_, "input", H5P_DEFAULT), H5Dclose, "the input", path_);
    H5 const type(H5Dget_type(set), H5Tclose, "a text type", path_);
    std::string out(H5Tget_size(type), '\0');
    if (H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data()) < 0) hdf5_failed("the input", path_);
    out.resize(std::min(out.size(), out.find('\0')));
    return out;
  }
  std::vector<TableRow> table() {
    H5 const set(H5Dopen2(file_, "table", H5P_DEFAULT), H5Dclose, "the table of parameters", path_);
    H5 const space(H5Dget_space(set), H5Sclose, "a data space", path_);
    auto const n = H5Sget_simple_extent_npoints(space);
    std::vector<TableRecord> records(static_cast<std::size_t>(std::max<hssize_t>(n, 0)));
    H5 const type(record_type(), H5Tclose, "a record type", path_);
    if (H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, records.data()) < 0)
      hdf5_failed("the table of parameters", path_);
    return unpack(records);
  }
  void array(CheckpointArray& a) {
    H5 const set(H5Dopen2(file_, a.name.c_str(), H5P_DEFAULT), H5Dclose, "the array " + a.name, path_);
    a.checksum = number<std::uint64_t>(set, "checksum");
    a.offset = static_cast<std::int64_t>(H5Dget_offset(set));
  }

private:
  hid_t file_;
  std::string path_;
};

// A small binary form for the broadcast.
class Packer {
public:
  void put(std::string const& s) {
    put(static_cast<std::uint64_t>(s.size()));
    bytes += s;
  }
  void put(std::uint64_t v) { bytes.append(reinterpret_cast<char const*>(&v), sizeof v); }
  void put(std::int64_t v) { put(static_cast<std::uint64_t>(v)); }
  std::string bytes;
};
class Unpacker {
public:
  explicit Unpacker(std::string const& bytes) : bytes_(bytes) {}
  std::uint64_t number() {
    std::uint64_t v = 0;
    std::memcpy(&v, bytes_.data() + at_, sizeof v);
    at_ += sizeof v;
    return v;
  }
  std::string text() {
    auto const n = number();
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }

private:
  std::string const& bytes_;
  std::size_t at_ = 0;
};

std::string pack(Checkpoint const& c) {
  Packer p;
  auto const& h = c.header;
  p.put(c.path), p.put(c.file_bytes), p.put(h.step), p.put(h.tokens), p.put(h.samples), p.put(h.seed),
      p.put(h.data_hash);
  p.put(static_cast<std::uint64_t>(h.element)), p.put(h.p3d_version), p.put(h.input), p.put(h.origin);
  p.put(static_cast<std::uint64_t>(c.table.size()));
  for (auto const& r : c.table) {
    p.put(r.name), p.put(r.rows), p.put(r.cols), p.put(static_cast<std::int64_t>(r.layer));
    p.put(static_cast<std::uint64_t>(r.decay)), p.put(static_cast<std::uint64_t>(r.vector));
  }
  p.put(static_cast<std::uint64_t>(c.arrays.size()));
  for (auto const& a : c.arrays) p.put(a.name), p.put(a.rows), p.put(a.cols), p.put(a.offset), p.put(a.checksum);
  return p.bytes;
}

Checkpoint unpack(std::string const& bytes) {
  Unpacker u(bytes);
  Checkpoint c;
  auto const number = [&] { return static_cast<std::int64_t>(u.number()); };
  auto& h = c.header;
  c.path = u.text(), c.file_bytes = number(), h.step = number(), h.tokens = number(), h.samples = number();
  h.seed = u.number(), h.data_hash = u.number(), h.element = static_cast<Element>(u.number());
  h.p3d_version = u.text(), h.input = u.text(), h.origin = u.text();
  c.table.resize(u.number());
  for (auto& r : c.table) {
    r.name = u.text(), r.rows = number(), r.cols = number(), r.layer = static_cast<int>(number());
    r.decay = u.number() != 0, r.vector = u.number() != 0;
  }
  c.arrays.resize(u.number());
  for (auto& a : c.arrays)
    a.name = u.text(), a.rows = number(), a.cols = number(), a.offset = number(), a.checksum = u.number();
  return c;
}

void broadcast(comm::Communicator& world, std::string& text) {
  auto length = static_cast<std::int64_t>(text.size());
  world.broadcast(&length, 1, comm::Type::int64, 0).wait();
  text.resize(static_cast<std::size_t>(length));
  if (length > 0) world.broadcast(text.data(), length, comm::Type::byte, 0).wait();
}

}  // namespace

Checkpoint read_checkpoint(std::string const& path) {
  start_hdf5();
  Checkpoint c;
  c.path = path;
  {
    PosixFile const file(path, PosixFile::Mode::read);
    c.file_bytes = file.size();
    check_seal(file);
  }
  FileOperation const here("H5Fopen or H5Dread", path);
  H5 const file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, "a checkpoint that can be read", path);
  Reader r(file, path);
  auto const version = r.number<std::int64_t>(file, "format_version");
  if (version != 1) {
    throw base::Error({.expected = "a checkpoint of format 1",
                       .found = fmt::format("format {}", version),
                       .where = path,
                       .fix = "use a newer p3d"});
  }
  auto& h = c.header;
  h.p3d_version = r.text("p3d_version");
  h.step = r.number<std::int64_t>(file, "step");
  h.tokens = r.number<std::int64_t>(file, "tokens");
  h.samples = r.number<std::int64_t>(file, "samples");
  h.seed = r.number<std::uint64_t>(file, "seed");
  h.data_hash = r.number<std::uint64_t>(file, "data_hash");
  h.element = r.text("precision") == name(Element::float64) ? Element::float64 : Element::float32;
  h.input = r.input();
  if (H5Aexists(file, "origin") > 0) h.origin = r.text("origin");
  c.table = r.table();
  c.arrays = checkpoint_arrays(c.table, H5Lexists(file, groups[1], H5P_DEFAULT) > 0);
  for (auto& a : c.arrays) r.array(a);
  return c;
}

Checkpoint read_checkpoint(comm::Communicator& world, std::string const& path) {
  std::string bytes, wrong[4];
  std::int64_t failed = 0;
  if (world.rank() == 0) {
    try {
      bytes = pack(read_checkpoint(path));
    } catch (base::Error const& e) {
      failed = 1;
      auto const& t = e.text();
      wrong[0] = t.expected, wrong[1] = t.found, wrong[2] = t.where, wrong[3] = t.fix;
    }
  }
  world.broadcast(&failed, 1, comm::Type::int64, 0).wait();
  if (failed != 0) {
    for (auto& w : wrong) broadcast(world, w);
    throw base::Error({.expected = wrong[0], .found = wrong[1], .where = wrong[2], .fix = wrong[3]});
  }
  broadcast(world, bytes);
  return unpack(bytes);
}

}  // namespace p3d::io
