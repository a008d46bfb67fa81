// SPDX-License-Identifier: Apache-2.0
// The reader of HDF5's descriptions (hdf5_objects.hpp). A group is a B-tree: nodes "TREE" lead to nodes "SNOD", whose
// entries give the place of a name in the group's heap and the address of an object's header. An object header is a
// list of messages (type, length, flags, body), which may go on in other pieces of the file. Every read is checked
// against the end of the file, and a budget bounds all of them, so that loops end.
#include "hdf5_objects.hpp"

#include "seal.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace p3d::io {

namespace {

constexpr std::string_view signature("\x89HDF\r\n\x1a\n", 8);
/// The address that means: there is none.
constexpr auto nowhere = ~std::uint64_t{0};
/// Most levels of a B-tree that are followed.
constexpr int deepest_tree = 8;
constexpr std::size_t longest_name = 255;

/// Takes numbers (little-endian) and texts off the front of some bytes. After a read behind their end every result is
/// zero or empty, and failed() is true.
class Bytes {
public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t number(std::size_t size) {
    auto const piece = text(size);
    std::uint64_t out = 0;
    for (std::size_t i = piece.size(); i > 0; --i) out = out << 8 | static_cast<unsigned char>(piece[i - 1]);
    return out;
  }
  std::string_view text(std::size_t size) {
    failed_ = failed_ || size > bytes_.size();
    if (failed_) return {};
    auto const out = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return out;
  }
  /// Takes the first `size` bytes of a piece that is filled up to a multiple of 8.
  std::string_view padded(std::size_t size) {
    auto const out = text((size + 7) / 8 * 8);
    return out.substr(0, std::min(size, out.size()));
  }
  std::size_t left() const { return failed_ ? 0 : bytes_.size(); }
  bool failed() const { return failed_; }

private:
  std::string_view bytes_;
  bool failed_ = false;
};

std::string_view until_zero(std::string_view text) { return text.substr(0, text.find('\0')); }

/// Reads a dataspace message of version 1. A size of 2^62 or more becomes -1, which no caller accepts.
Hdf5Shape read_shape(std::string_view message) {
  Bytes in(message);
  Hdf5Shape out;
  auto const version = in.number(1), rank = in.number(1), flags = in.number(1);
  in.text(5);
  for (std::uint64_t i = 0; i < rank && !in.failed(); ++i) {
    auto const d = in.number(8);
    out.dims.push_back(d >> 62 != 0 ? -1 : static_cast<std::int64_t>(d));
  }
  out.known = !in.failed() && version == 1 && flags <= 1 && rank <= 32;
  return out;
}

/// Reads an attribute message. Only version 1 is known; other versions are read for their name, to report them.
Hdf5Attribute read_attribute(std::string_view message, bool shared) {
  Bytes in(message);
  Hdf5Attribute out;
  auto const version = in.number(1);
  in.number(1);
  auto const name = in.number(2), type = in.number(2), space = in.number(2);
  if (version == 3) in.number(1);
  auto const piece = [&](std::size_t size) { return version == 1 ? in.padded(size) : in.text(size); };
  out.name = until_zero(piece(name));
  out.type.bytes = piece(type);
  out.shape = read_shape(piece(space));
  out.data = in.text(in.left());
  out.known = !in.failed() && version == 1 && !shared;
  return out;
}

/// Words for a message of an object header that p3d does not write, by the message's type.
char const* kind_of_message(std::uint64_t type) {
  switch (type) {
    case 0x02:
    case 0x06:
    case 0x0a: return "a group with links of another form";
    case 0x07: return "data in other files";
    case 0x0b: return "filters (compressed?)";
    case 0x0f: return "shared messages";
    case 0x15: return "attributes of another form";
    default: return "a part that p3d does not write";
  }
}

}  // namespace

std::string Hdf5Shape::text() const {
  return !known         ? "of an unknown shape"
         : dims.empty() ? "one value"
                        : fmt::format("an array [{}]", fmt::join(dims, ", "));
}

char const* name(Hdf5Type::Kind kind) {
  switch (kind) {
    case Hdf5Type::Kind::int64: return "int64";
    case Hdf5Type::Kind::uint64: return "uint64";
    case Hdf5Type::Kind::float32: return "float32";
    default: return "float64";
  }
}

/// Compares the type with the descriptions that HDF5 writes for the four kinds.
bool Hdf5Type::is(Kind kind) const {
  using namespace std::string_view_literals;
  static std::string_view const forms[4] = {"\x10\x08\0\0\x08\0\0\0\0\0\x40\0"sv, "\x10\0\0\0\x08\0\0\0\0\0\x40\0"sv,
                                            "\x11\x20\x1f\0\x04\0\0\0\0\0\x20\0\x17\x08\0\x17\x7f\0\0\0"sv,
                                            "\x11\x20\x3f\0\x08\0\0\0\0\0\x40\0\x34\x0b\0\x34\xff\x03\0\0"sv};
  auto const& form = forms[static_cast<std::size_t>(kind)];
  return std::string_view(bytes).substr(0, form.size()) == form;
}

bool Hdf5Type::is_text() const { return bytes.size() >= 8 && bytes[0] == 0x13; }

std::uint64_t Hdf5Type::size() const {
  return Bytes(std::string_view(bytes).substr(std::min<std::size_t>(bytes.size(), 4))).number(4);
}

std::string Hdf5Type::name() const {
  if (bytes.size() < 8) return "no type";
  static constexpr char const* classes[] = {
      "integer", "float",   "time",       "text",           "bits",
      "opaque",  "records", "references", "an enumeration", "lists of variable length",
      "arrays"};
  auto const kind = static_cast<unsigned char>(bytes[0]) & 15U;
  for (auto k : {Kind::int64, Kind::uint64, Kind::float32, Kind::float64}) {
    if (is(k)) return io::name(k);
  }
  return fmt::format("{} of {} bytes", kind < std::size(classes) ? classes[kind] : "another type", size());
}

bool Hdf5Type::is_table_record() const {
  struct Member {
    char const* name;
    std::uint64_t offset, text;  ///< text: its bytes, or 0 for a number
  };
  static constexpr Member members[6] = {{"name", 0, 120},  {"rows", 120, 0},  {"cols", 128, 0},
                                        {"layer", 136, 0}, {"decay", 144, 0}, {"unit", 152, 8}};
  // 0x16: version 1, class 6 (compound); then 6 members and 160 bytes.
  Bytes in(bytes);
  if (in.number(1) != 0x16 || in.number(3) != 6 || in.number(4) != 160) return false;
  for (auto const& m : members) {
    std::string_view const expected(m.name);
    if (in.padded(expected.size() + 1) != std::string_view(m.name, expected.size() + 1)) return false;
    if (in.number(4) != m.offset || in.number(1) != 0) return false;
    in.text(27);  // dimensions of a member that is an array: none here
    Hdf5Type type;
    type.bytes = in.text(m.text != 0 ? 8 : 12);
    if (m.text != 0 ? !type.is_text() || type.size() != m.text : !type.is(Kind::int64)) return false;
  }
  return !in.failed();
}

Hdf5Attribute const* Hdf5Object::find(std::string_view attribute) const {
  auto const it =
      std::find_if(attributes.begin(), attributes.end(), [&](auto const& a) { return a.name == attribute; });
  return it == attributes.end() ? nullptr : &*it;
}

void Hdf5Objects::refuse(std::string const& expected, std::string const& found) const {
  throw damaged(file_.path(), expected, found);
}

std::string Hdf5Objects::bytes(std::uint64_t address, std::uint64_t count, std::string const& what) {
  auto const behind = static_cast<std::uint64_t>(size_ - user_block_);
  if (address > behind || count > behind - address)
    refuse(fmt::format("{}: a description within the {} bytes of the file", what, size_),
           fmt::format("{} bytes at address {}", count, address));
  budget_ -= static_cast<std::int64_t>(count);
  if (budget_ < 0) refuse(what + ": descriptions that are read once", "some that lead back to each other");
  std::string out(count, '\0');
  file_.read(user_block_ + static_cast<std::int64_t>(address), out.data(), out.size());
  return out;
}

Hdf5Objects::Hdf5Objects(PosixFile const& file, std::int64_t user_block)
    : file_(file), user_block_(user_block), size_(file.size()), budget_(4 * size_ + (1 << 20)) {
  auto const wrong = [&](std::string const& found) {
    refuse(fmt::format("behind the {} bytes of the seal, an HDF5 file as p3d writes it", user_block), found);
  };
  auto const block = bytes(0, 96, "the superblock");
  Bytes in(block);
  if (in.text(8) != signature) wrong("another signature");
  auto const version = in.number(1);
  if (version != 0) wrong(fmt::format("a superblock of version {}", version));
  // Versions of the parts, then bytes of an address and of a length.
  in.text(4);
  if (in.number(1) != 8 || in.number(1) != 8) wrong("addresses or lengths that have not 8 bytes");
  // Reserved, sizes of tree nodes, flags; then the base address.
  in.text(9);
  if (in.number(8) != static_cast<std::uint64_t>(user_block)) wrong("another base address");
  // Addresses of free space and of the file's end; then that of a driver's description.
  in.text(16);
  if (in.number(8) != nowhere) wrong("a driver of its own");
  // The root's entry: the place of its name, then its header's address.
  in.text(8);
  root_ = in.number(8);
}

Hdf5Object Hdf5Objects::object(std::uint64_t header, std::string const& what) {
  auto const start = bytes(header, 16, what);
  Bytes head(start);
  auto const version = head.number(1);
  head.number(1);
  auto const messages = head.number(2);
  head.number(4);
  auto const size = head.number(4);
  if (version != 1) refuse(what + ": an object header of version 1", fmt::format("version {}", version));
  Hdf5Object out;
  int layouts = 0, types = 0, shapes = 0, tables = 0;
  // Pieces of the header (address, bytes); continuation messages add to them.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces{{header + 16, size}};
  std::uint64_t count = 0;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    auto const piece = bytes(pieces[p].first, pieces[p].second, what);
    Bytes in(piece);
    while (in.left() >= 8) {
      auto const type = in.number(2), length = in.number(2), flags = in.number(1);
      in.text(3);
      auto const body = in.text(length);
      if (in.failed() || ++count > messages)
        refuse(fmt::format("{}: a header of {} messages", what, messages), "one that is longer than it says");
      bool const shared = (flags & 2) != 0;
      Bytes m(body);
      switch (type) {
        case 0x00:
        case 0x04:
        case 0x05:
        case 0x12: break;  // nothing, fill values, a time: not needed
        case 0x01: out.shape = read_shape(body), ++shapes; break;
        case 0x03: out.type.bytes = body, ++types; break;
        case 0x08: {
          auto const form = m.number(1), kind = m.number(1);
          out.contiguous = form == 3 && kind == 1;
          out.layout = form == 3 && kind == 0   ? "a compact one"
                       : form == 3 && kind == 2 ? "a chunked one"
                       : form == 4 && kind == 3 ? "a virtual one"
                                                : "another layout";
          if (out.contiguous) out.address = m.number(8), out.bytes = m.number(8);
          ++layouts;
          break;
        }
        case 0x0c: out.attributes.push_back(read_attribute(body, shared)); break;
        case 0x10: {
          // A continuation message: the header goes on at another address.
          auto const at = m.number(8), bytes = m.number(8);
          if (!m.failed()) pieces.emplace_back(at, bytes);
          break;
        }
        case 0x11: out.tree = m.number(8), out.heap = m.number(8), ++tables; break;
        default: out.other = kind_of_message(type);
      }
      if (m.failed()) out.other = "a message that is cut off";
      if (shared && type != 0x0c) out.other = "a description that is stored elsewhere";
    }
  }
  out.group = tables == 1 && layouts == 0;
  out.dataset = tables == 0 && layouts == 1 && types == 1 && shapes == 1;
  return out;
}

std::map<std::string, Hdf5Link> Hdf5Objects::links(Hdf5Object const& group, std::string const& what) {
  // The heap's head: signature, version, reserved, bytes of names, offset of free space, address of the names.
  auto const prefix = bytes(group.heap, 32, what);
  Bytes heap(prefix);
  if (heap.text(4) != "HEAP" || heap.number(1) != 0) refuse(what + ": the names of a group", "something else");
  heap.text(3);
  auto const size = heap.number(8);
  heap.text(8);
  auto const names = bytes(heap.number(8), size, what);
  std::map<std::string, Hdf5Link> out;
  read_tree(group.tree, -1, names, what, out);
  return out;
}

void Hdf5Objects::read_tree(std::uint64_t address, int level, std::string const& names, std::string const& what,
                            std::map<std::string, Hdf5Link>& out) {
  auto const wrong = [&] { refuse(what + ": the symbol table of a group", "a damaged one"); };
  if (level == 0) {
    auto const start = bytes(address, 8, what);
    Bytes head(start);
    if (head.text(4) != "SNOD" || head.number(1) != 1) wrong();
    head.number(1);
    auto const count = head.number(2);
    auto const entries = bytes(address + 8, count * 40, what);
    Bytes in(entries);
    for (std::uint64_t i = 0; i < count; ++i) {
      // An entry of 40 bytes: place of the name, header, kind of link (2: soft), reserved.
      auto const at = in.number(8);
      Hdf5Link link;
      link.header = in.number(8);
      link.hard = in.number(4) != 2;
      in.text(20);
      if (at >= names.size()) wrong();
      auto const name = until_zero(std::string_view(names).substr(at, longest_name + 1));
      if (name.empty() || name.size() > longest_name || !out.emplace(name, link).second) wrong();
    }
    return;
  }
  auto const start = bytes(address, 24, what);
  // A node's head of 24 bytes: signature, type 0 (a group), level, number of children, addresses of its neighbours.
  Bytes head(start);
  if (head.text(4) != "TREE" || head.number(1) != 0) wrong();
  auto const here = static_cast<int>(head.number(1)) + 1;
  if (level > 0 ? here != level : here > deepest_tree) wrong();
  auto const count = head.number(2);
  auto const children = bytes(address + 24, count * 16, what);
  Bytes in(children);
  for (std::uint64_t i = 0; i < count; ++i) {
    // A key, which is not needed, and a child's address.
    in.number(8);
    read_tree(in.number(8), here - 1, names, what, out);
  }
}

}  // namespace p3d::io
