// SPDX-License-Identifier: Apache-2.0
// Reads the objects of a checkpoint by name. The file may come from anywhere, so each object is compared with the one
// form that p3d writes (hdf5_objects.hpp reads that form) before a byte of it is used; everything else is refused with
// an error that names the object. Example: signed_number("/", "step") accepts one scalar int64 and nothing else.
#include "hdf5_read.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace p3d::io {

namespace {

constexpr std::size_t longest_text = 1 << 13;  ///< bytes of an attribute that is read (one holds a path)

std::string describe(Hdf5Shape const& shape, Hdf5Type const& type) { return shape.text() + ": " + type.name(); }

}  // namespace

Hdf5File::Hdf5File(PosixFile const& file, std::int64_t user_block)
    : file_(file), objects_(file, user_block), root_(objects_.object(objects_.root(), "/")) {
  if (!root_.group || !root_.other.empty()) refuse("/, a group", root_.other.empty() ? "something else" : root_.other);
  groups_[""] = objects_.links(root_, "/");
}

void Hdf5File::refuse(std::string const& expected, std::string const& found) const {
  throw damaged(file_.path(), expected, found);
}

std::map<std::string, Hdf5Link> const& Hdf5File::links_of(std::string const& group) {
  if (auto const known = groups_.find(group); known != groups_.end()) return known->second;
  auto const object = open(group);
  if (!object.group || !object.other.empty())
    refuse("/" + group + ", a group", object.other.empty() ? "something else" : object.other);
  return groups_[group] = objects_.links(object, "/" + group);
}

/// Walks from group to group, only through hard links: these cannot leave the file. The last object is kept, as its
/// attributes are usually read one after the other.
Hdf5Object const& Hdf5File::open(std::string const& object) {
  if (object == "/") return root_;
  if (object == last_name_) return last_;
  auto const slash = object.rfind('/');
  auto const parent = slash == std::string::npos ? std::string() : object.substr(0, slash);
  auto const name = slash == std::string::npos ? object : object.substr(slash + 1);
  auto const what = "/" + object;
  auto const& links = links_of(parent);
  auto const link = links.find(name);
  if (link == links.end()) refuse(what, "no such object");
  if (!link->second.hard) refuse(what + ", in this place", "a soft link");
  last_ = objects_.object(link->second.header, what);
  last_name_ = object;
  return last_;
}

Hdf5Attribute Hdf5File::attribute(std::string const& object, char const* name, std::string const& wanted) {
  auto const what = fmt::format("attribute \"{}\" of {}{}: {}", name, object == "/" ? "" : "/", object, wanted);
  auto const* found = open(object).find(name);
  if (!found) refuse(what, "no such attribute");
  if (!found->known || !found->shape.known) refuse(what, "one in a form that p3d does not write");
  if (!found->shape.scalar()) refuse(what, describe(found->shape, found->type));
  return *found;
}

std::uint64_t Hdf5File::number(std::string const& object, char const* name, Hdf5Type::Kind kind) {
  auto const wanted = fmt::format("one value: {}", io::name(kind));
  auto const a = attribute(object, name, wanted);
  if (!a.type.is(kind) || a.data.size() < 8) {
    refuse(fmt::format("attribute \"{}\" of {}{}: {}", name, object == "/" ? "" : "/", object, wanted),
           describe(a.shape, a.type));
  }
  std::uint64_t out = 0;
  // The value is stored little-endian; this also reads it right on a big-endian machine.
  for (std::size_t i = 8; i > 0; --i) out = out << 8 | static_cast<unsigned char>(a.data[i - 1]);
  return out;
}

std::int64_t Hdf5File::signed_number(std::string const& object, char const* name) {
  return static_cast<std::int64_t>(number(object, name, Hdf5Type::Kind::int64));
}

std::uint64_t Hdf5File::unsigned_number(std::string const& object, char const* name) {
  return number(object, name, Hdf5Type::Kind::uint64);
}

std::string Hdf5File::text(std::string const& object, char const* name) {
  auto const a = attribute(object, name, "one value: printable text");
  auto const wrong = [&](std::string const& found) {
    refuse(fmt::format("attribute \"{}\" of {}{}: printable text", name, object == "/" ? "" : "/", object), found);
  };
  if (!a.type.is_text()) wrong(describe(a.shape, a.type));
  auto const size = a.type.size();
  if (size < 1 || size > longest_text || size > a.data.size()) wrong(fmt::format("{} characters", size));
  auto out = a.data.substr(0, size);
  out.resize(std::min(out.size(), out.find('\0')));
  if (std::any_of(out.begin(), out.end(), [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; }))
    wrong("other characters");
  return out;
}

Hdf5File::Found Hdf5File::dataset(std::string const& name) {
  Found out;
  out.what = "dataset /" + name;
  auto const& what = out.what;
  auto const& o = open(name);
  if (o.group) refuse(what, "a group");
  if (!o.other.empty()) refuse(what + ", contiguous and in this file", o.other);
  if (!o.dataset) refuse(what, "an object of another kind");
  if (!o.contiguous) refuse(what + ", contiguous", o.layout);
  // Addresses count from the end of the user block.
  auto const behind = static_cast<std::uint64_t>(file_.size() - objects_.user_block());
  if (o.address > behind || o.bytes > behind - o.address) {
    refuse(fmt::format("{}, within the {} bytes of the file", what, file_.size()),
           o.address == ~std::uint64_t{0} ? "one without a place"
                                          : fmt::format("{} bytes at address {}", o.bytes, o.address));
  }
  out.object = o;
  out.extent = {static_cast<std::int64_t>(o.address) + objects_.user_block(), static_cast<std::int64_t>(o.bytes)};
  return out;
}

std::string Hdf5File::text_of(std::string const& name) {
  auto out = bytes_of(name);
  out.resize(std::min(out.size(), out.find('\0')));
  return out;
}

std::string Hdf5File::bytes_of(std::string const& name) {
  auto const set = dataset(name);
  auto const& o = set.object;
  if (!o.shape.scalar() || !o.type.is_text()) refuse(set.what + ": one value: text", describe(o.shape, o.type));
  if (o.type.size() != o.bytes)
    refuse(fmt::format("{}: {} bytes", set.what, o.type.size()), fmt::format("{} that are stored", o.bytes));
  std::string out(o.bytes, '\0');
  file_.read(set.extent.offset, out.data(), out.size());
  return out;
}

std::vector<char> Hdf5File::table_records(std::string const& name, std::size_t record_bytes) {
  auto const set = dataset(name);
  auto const& o = set.object;
  if (!o.shape.known || o.shape.dims.size() != 1 || !o.type.is_table_record())
    refuse(set.what + ": a list of records as docs/checkpoint_format.md says", describe(o.shape, o.type));
  auto const n = o.shape.dims[0], bytes = set.extent.bytes, each = static_cast<std::int64_t>(record_bytes);
  if (n < 1 || n > bytes / each || n * each != bytes)
    refuse(fmt::format("{}: {} records of {} bytes", set.what, n, each), fmt::format("{} bytes", bytes));
  std::vector<char> out(o.bytes);
  file_.read(set.extent.offset, out.data(), out.size());
  return out;
}

Extent Hdf5File::place(std::string const& name, Hdf5Type::Kind kind, std::vector<std::int64_t> const& dims) {
  auto const set = dataset(name);
  auto const& o = set.object;
  if (!o.shape.known || o.shape.dims != dims || !o.type.is(kind))
    refuse(fmt::format("{}: an array [{}]: {}", set.what, fmt::join(dims, ", "), io::name(kind)),
           describe(o.shape, o.type));
  std::int64_t bytes = kind == Hdf5Type::Kind::float32 ? 4 : 8;
  for (auto d : dims) bytes = d > 0 && bytes <= set.extent.bytes / d ? bytes * d : std::int64_t{-1};
  if (bytes != set.extent.bytes)
    refuse(set.what + ": as many bytes as its shape has", fmt::format("{} bytes", set.extent.bytes));
  return set.extent;
}

}  // namespace p3d::io
