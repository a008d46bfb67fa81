// SPDX-License-Identifier: Apache-2.0
// Reads everything of a checkpoint but its numbers. read_here() reads the file on one process and believes nothing:
// each number has limits, and the arrays must be just the extents of the seal. For a collective read, rank 0 reads and
// broadcasts the result, or the error, in a small binary form (Packer), so that one process alone touches the file.
// Example: an array that the seal does not list is an error.

#include "hdf5_read.hpp"
#include "seal.hpp"
#include "table.hpp"

#include <p3d/io/checkpoint.hpp>
#include <p3d/io/file_watch.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/printable.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>

namespace p3d::io {

namespace {

/// The largest number that a step, sample or token of a run may have: products with a batch and sums then stay within
/// 63 bits.
constexpr std::int64_t largest_position = std::int64_t{1} << 53;

/// Reads a number that is not negative and that later arithmetic can hold.
std::int64_t position(Hdf5File& file, std::string const& path, char const* name) {
  auto const n = file.signed_number("/", name);
  if (n >= 0 && n <= largest_position) return n;
  throw damaged(path, fmt::format("attribute \"{}\" of /: 0 to 2^53", name), fmt::format("{}", n));
}

/// The arrays of state that a file has: those of the optimizer whose first array is there, with the older weights where
/// these are there, and those of compression for as many workers as there are. A file that lacks another one of them is
/// damaged, which the reading of the arrays finds.
std::vector<config::StateArray> stored_state(Hdf5File& file, std::string const& path) {
  std::vector<config::StateArray> out;
  auto older = config::previous_weights;
  while (file.has(older.group())) ++older.age;
  for (auto const& optimizer : config::optimizer_states) {
    if (optimizer.arrays.empty() || !file.has(optimizer.arrays.front().name) || optimizer.delay + 1 != older.age)
      continue;
    out.assign(optimizer.arrays.begin(), optimizer.arrays.end());
    break;
  }
  for (auto kind : {config::Compress::topk, config::Compress::powersgd}) {
    auto one = config::compression_arrays(kind, 1);
    if (!file.has(one.front().group())) continue;
    auto rows = std::int64_t{0};
    if (kind == config::Compress::powersgd) rows = position(file, path, "low_rank");
    auto& worker = one.back();
    while (file.has(worker.group())) ++worker.worker;
    auto const more = config::compression_arrays(kind, worker.worker, rows);
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

/// Reads the rows of the table; each must have a shape whose array fits into the file.
std::vector<TableRow> read_table(Hdf5File& file, std::string const& path, std::int64_t file_bytes) {
  auto const bytes = file.table_records("table", sizeof(TableRecord));
  std::vector<TableRecord> records(bytes.size() / sizeof(TableRecord));
  std::memcpy(records.data(), bytes.data(), bytes.size());
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < records.size(); ++i) {
    auto const& r = records[i];
    auto const wrong = [&](std::string const& expected, std::string const& found) {
      return damaged(path, fmt::format("dataset /table, record {}: {}", i, expected), found);
    };
    std::string_view const name(r.name, ::strnlen(r.name, sizeof r.name));
    bool const plain = !name.empty() && name.size() < sizeof r.name && name != "." && name != ".." &&
                       std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~' && c != '/'; });
    if (!plain) throw wrong("the name of a parameter", "another text");
    if (!names.insert(name).second) throw wrong("a name of its own", fmt::format("{}, which was there before", name));
    auto const rows = std::max<std::int64_t>(r.rows, 1);
    if (r.rows < 0 || r.cols < 1 || rows > file_bytes || r.cols > file_bytes / rows)
      throw wrong(fmt::format("rows and cols of {}, within the {} bytes of the file", name, file_bytes),
                  fmt::format("{} and {}", r.rows, r.cols));
    if (r.layer < -1 || r.layer > std::numeric_limits<int>::max())
      throw wrong(fmt::format("layer of {}", name), fmt::format("{}", r.layer));
    if (r.decay != 0 && r.decay != 1) throw wrong(fmt::format("decay of {}: 0 or 1", name), fmt::format("{}", r.decay));
  }
  return unpack(records);
}

/// Reads the places and checksums of the arrays. Each byte of an array must be under its checksum, and each other byte
/// under the seal: that is so when the arrays do not overlap and are just the extents that the seal leaves out.
void read_arrays(Hdf5File& file, Checkpoint& c, Seal const& seal) {
  auto const bytes = static_cast<std::int64_t>(size_of(c.header.element));
  std::vector<Extent> places;
  for (std::size_t i = 0; i < c.arrays.size(); ++i) {
    auto& a = c.arrays[i];
    auto const& row = c.table[i % c.table.size()];
    bool const vector = row.vector && !a.is_of(config::low_rank_factor.name);
    auto const dims = vector ? std::vector{a.cols} : std::vector{a.rows, a.cols};
    a.offset = file.place(a.name, bytes == 4 ? Hdf5Type::Kind::float32 : Hdf5Type::Kind::float64, dims).offset;
    a.checksum = file.unsigned_number(a.name, "checksum");
    places.push_back({a.offset, a.size() * bytes});
    auto const after = std::upper_bound(seal.extents.begin(), seal.extents.end(), a.offset,
                                        [](std::int64_t at, Extent const& e) { return at < e.offset; });
    if (after == seal.extents.begin() || (after - 1)->offset + (after - 1)->bytes < a.offset + a.size() * bytes) {
      throw damaged(c.path, fmt::format("dataset /{}, within an extent of the seal", a.name),
                    fmt::format("{} bytes at byte {}, outside", a.size() * bytes, a.offset));
    }
  }
  // Sort the arrays by offset, to find two that overlap.
  std::vector<std::size_t> order(places.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto x, auto y) { return places[x].offset < places[y].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    auto const &before = places[order[i - 1]], &here = places[order[i]];
    if (before.offset + before.bytes <= here.offset) continue;
    throw damaged(c.path, fmt::format("dataset /{}, apart from other arrays", c.arrays[order[i]].name),
                  fmt::format("bytes of /{}", c.arrays[order[i - 1]].name));
  }
  auto const found = joined(std::move(places));
  for (std::size_t i = 0; i < seal.extents.size(); ++i) {
    if (i < found.size() && found[i] == seal.extents[i]) continue;
    auto const& e = seal.extents[i];
    throw damaged(c.path, fmt::format("in the seal, extent {}: the place of arrays", i + 1),
                  fmt::format("{} bytes at byte {}, which are not all of arrays", e.bytes, e.offset));
  }
}

/// Writes texts and numbers one behind the other, for the broadcast. A text is its length and its bytes.
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
/// Reads what a Packer wrote, in the same order.
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
      p.put(h.data_hash), p.put(h.data_order);
  p.put(static_cast<std::uint64_t>(h.element)), p.put(h.p3d_version), p.put(h.input), p.put(h.loss_scale),
      p.put(h.versions_made), p.put(h.origin), p.put(h.tokenizer.name), p.put(h.tokenizer.pattern),
      p.put(h.tokenizer.hash), p.put(h.tokenizer.end), p.put(h.tokenizer.file);
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
  h.seed = u.number(), h.data_hash = u.number(), h.data_order = number(), h.element = static_cast<Element>(u.number());
  h.p3d_version = u.text(), h.input = u.text(), h.loss_scale = u.text();
  h.versions_made = number(), h.origin = u.text();
  h.tokenizer.name = u.text(), h.tokenizer.pattern = u.text(), h.tokenizer.hash = u.number();
  h.tokenizer.end = number(), h.tokenizer.file = u.text();
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

/// Reads the file on this process.
Checkpoint read_here(std::string const& path) {
  Checkpoint c;
  c.path = path;
  PosixFile const posix(path, PosixFile::Mode::read);
  c.file_bytes = posix.size();
  auto const seal = check_seal(posix);
  Hdf5File file(posix, seal.user_block);
  auto const format = file.text("/", "format");
  if (format != "p3d checkpoint")
    throw damaged(path, "attribute \"format\" of /: p3d checkpoint", format.substr(0, 100));
  auto const version = file.signed_number("/", "format_version");
  if (version != 1) {
    throw base::Error({.expected = "a checkpoint of format 1",
                       .found = fmt::format("format {}", version),
                       .where = path,
                       .fix = "use a newer p3d"});
  }
  auto& h = c.header;
  h.p3d_version = file.text("/", "p3d_version");
  h.step = position(file, path, "step");
  h.tokens = position(file, path, "tokens");
  h.samples = position(file, path, "samples");
  h.seed = file.unsigned_number("/", "seed");
  h.data_hash = file.unsigned_number("/", "data_hash");
  h.data_order = file.has_attribute("/", "data_order") ? position(file, path, "data_order") : 1;
  if (h.data_order < 1 || h.data_order > CheckpointHeader::newest_data_order)
    throw damaged(path, "attribute \"data_order\" of /: 1 or 2, unless a newer p3d wrote the file",
                  std::to_string(h.data_order));
  auto const precision = file.text("/", "precision");
  h.element = precision == name(Element::float64) ? Element::float64 : Element::float32;
  if (precision != name(h.element))
    throw damaged(path, "attribute \"precision\" of /: fp32 or fp64", precision.substr(0, 100));
  h.input = file.text_of("input");
  if (file.has_attribute("/", "loss_scale")) h.loss_scale = file.text("/", "loss_scale");
  if (file.has_attribute("/", "versions_made")) h.versions_made = position(file, path, "versions_made");
  if (file.has_attribute("/", "origin")) h.origin = file.text("/", "origin");
  if (file.has_attribute("/", "tokenizer")) {
    h.tokenizer.name = file.text("/", "tokenizer");
    if (!base::is_file_name(h.tokenizer.name))  // a command may write a file of this name
      throw damaged(path, "attribute \"tokenizer\" of /: the name of a file, without folders",
                    h.tokenizer.name.substr(0, 100));
    h.tokenizer.pattern = file.text("/", "tokenizer_pattern");
    h.tokenizer.hash = file.unsigned_number("/", "tokenizer_hash");
    h.tokenizer.end = file.signed_number("/", "tokenizer_end");
    if (file.has("tokenizer")) h.tokenizer.file = file.bytes_of("tokenizer");
  }
  c.table = read_table(file, path, c.file_bytes);
  c.arrays = checkpoint_arrays(c.table, stored_state(file, path));
  read_arrays(file, c, seal);
  return c;
}

/// Reads an error from its binary form: the exit code, then its four texts.
base::Error unpack_error(std::string const& bytes) {
  Unpacker u(bytes);
  auto const code = static_cast<base::ExitCode>(u.number());
  base::ErrorText t;
  t.expected = u.text(), t.found = u.text(), t.where = u.text(), t.fix = u.text();
  return base::Error(t, code);
}

std::string pack(base::Error const& e) {
  Packer p;
  auto const& t = e.text();
  p.put(static_cast<std::uint64_t>(e.code())), p.put(t.expected), p.put(t.found), p.put(t.where), p.put(t.fix);
  return p.bytes;
}

}  // namespace

Checkpoint read_checkpoint(std::string const& path) {
  // Whatever the reason of the error: this file is not to be used.
  return base::as_bad_input([&] { return read_here(path); });  // whatever the reason: this file is not to be used
}

Checkpoint read_checkpoint(comm::Communicator& world, std::string const& path) {
  std::string bytes;
  std::int64_t failed = 0;
  if (world.rank() == 0) {
    try {
      apart([&] { bytes = pack(read_checkpoint(path)); });
    } catch (base::Error const& e) {
      failed = 1;
      bytes = pack(e);
    } catch (std::exception const& e) {  // no memory, for example: the other ranks must not wait for ever
      failed = 1;
      bytes = pack(base::Error({.expected = "a checkpoint that can be read",
                                .found = e.what(),
                                .where = path,
                                .fix = "see what this rank lacks"}));
    }
  }
  world.broadcast(&failed, 1, comm::Type::int64, 0).wait();
  comm::broadcast_text(world, bytes, 0);
  if (failed != 0) throw unpack_error(bytes);
  return unpack(bytes);
}

}  // namespace p3d::io
