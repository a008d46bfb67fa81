#include "hdf5_read.hpp"

#include <p3d/base/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace p3d::io {

namespace {

constexpr std::size_t longest_text = 1 << 16;  ///< of an attribute

std::string describe_type(hid_t type) {
  auto const bits = 8 * H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_INTEGER: return fmt::format("{}int{}", H5Tget_sign(type) == H5T_SGN_NONE ? "u" : "", bits);
    case H5T_FLOAT: return fmt::format("float{}", bits);
    case H5T_STRING: return H5Tis_variable_str(type) > 0 ? "text of variable length" : "text";
    case H5T_COMPOUND: return fmt::format("records of {} bytes", bits / 8);
    case H5T_REFERENCE: return "references";
    case H5T_ENUM: return "an enumeration";
    case H5T_VLEN: return "lists of variable length";
    case H5T_ARRAY: return fmt::format("arrays of {} bytes", bits / 8);
    default: return "another type";
  }
}

std::vector<std::int64_t> shape(hid_t space) {
  int const rank = H5Sget_simple_extent_ndims(space);
  std::vector<hsize_t> dims(static_cast<std::size_t>(std::max(rank, 1)));
  if (rank < 0 || H5Sget_simple_extent_dims(space, dims.data(), nullptr) < 0) return {-1};
  dims.resize(static_cast<std::size_t>(rank));
  // What does not fit into 63 bits is no size of a file.
  std::vector<std::int64_t> out;
  for (auto d : dims) out.push_back(d >> 62 != 0 ? -1 : static_cast<std::int64_t>(d));
  return out;
}

std::string describe(hid_t space, hid_t type) {
  auto const kind = H5Sget_simple_extent_type(space);
  if (kind == H5S_NULL) return "nothing (a null space)";
  if (kind == H5S_SCALAR) return "one value: " + describe_type(type);
  return fmt::format("an array [{}]: {}", fmt::join(shape(space), ", "), describe_type(type));
}

bool scalar(hid_t space) { return H5Sget_simple_extent_type(space) == H5S_SCALAR; }
bool is_text(hid_t space, hid_t type) {
  return scalar(space) && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0;
}
bool simple(hid_t space) { return H5Sget_simple_extent_type(space) == H5S_SIMPLE; }

}  // namespace

Hdf5File::Hdf5File(PosixFile const& file, std::int64_t user_block) : file_(file) {
  start_hdf5();
  auto const& path = file.path();
  check_superblock(file, user_block);
  H5 const access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "file properties", path);
  if (H5Pset_fapl_sec2(access) < 0) hdf5_failed("file properties", path);
  hdf5_ = H5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), H5Fclose, "a checkpoint that can be read", path);
  H5 const made(H5Fget_create_plist(hdf5_), H5Pclose, "file properties", path);
  hsize_t skipped = 0;
  if (H5Pget_userblock(made, &skipped) < 0 || skipped != static_cast<hsize_t>(user_block))
    refuse(fmt::format("a user block of {} bytes", user_block), fmt::format("one of {} bytes", skipped));
}

void Hdf5File::refuse(std::string const& expected, std::string const& found) const {
  throw damaged(file_.path(), expected, found);
}

bool Hdf5File::has(char const* object) const {
  auto const there = H5Lexists(hdf5_, object, H5P_DEFAULT);
  if (there < 0) hdf5_failed(object, file_.path());
  return there > 0;
}

bool Hdf5File::has_attribute(std::string const& object, char const* attribute) const {
  auto const there = H5Aexists(open(object), attribute);
  if (there < 0) hdf5_failed(fmt::format("attribute \"{}\" of {}", attribute, object), file_.path());
  return there > 0;
}

/// Steps from group to group, only through hard links: these cannot leave the file.
H5 Hdf5File::open(std::string const& object) const {
  auto const& path = file_.path();
  H5 at(H5Oopen(hdf5_, "/", H5P_DEFAULT), H5Oclose, "the root group", path);
  for (std::size_t begin = object.find_first_not_of('/'); begin < object.size();) {
    auto const end = std::min(object.find('/', begin), object.size());
    auto const name = object.substr(begin, end - begin), so_far = fmt::format("/{}", object.substr(0, end));
    begin = end + 1;
    auto const there = H5Lexists(at, name.c_str(), H5P_DEFAULT);
    if (there < 0) hdf5_failed(so_far, path);
    if (there == 0) refuse(so_far, "no such object");
    H5L_info_t link;
    if (H5Lget_info(at, name.c_str(), &link, H5P_DEFAULT) < 0) hdf5_failed(so_far, path);
    if (link.type != H5L_TYPE_HARD) {
      refuse(so_far + " in this file, by a hard link", link.type == H5L_TYPE_SOFT       ? "a soft link"
                                                       : link.type == H5L_TYPE_EXTERNAL ? "a link to another file"
                                                                                        : "a link of another kind");
    }
    H5 next(H5Oopen(at, name.c_str(), H5P_DEFAULT), H5Oclose, so_far, path);
    auto const kind = H5Iget_type(next);
    bool const last = begin >= object.size();
    if (last ? kind != H5I_GROUP && kind != H5I_DATASET : kind != H5I_GROUP)
      refuse(so_far + (last ? ", a dataset or a group" : ", a group"), "an object of another kind");
    at = std::move(next);
  }
  return at;
}

void Hdf5File::read_number(std::string const& object, char const* attribute, hid_t stored_as, hid_t type,
                           void* out) const {
  auto const a = attribute_of(object, attribute);
  if (!scalar(a.space) || H5Tequal(a.type, stored_as) <= 0)
    refuse(fmt::format("{}: one value: {}", a.what, describe_type(stored_as)), describe(a.space, a.type));
  if (H5Aread(a.id, type, out) < 0) hdf5_failed(a.what, file_.path());
}

Hdf5File::Found Hdf5File::attribute_of(std::string const& object, char const* attribute) const {
  auto const& path = file_.path();
  Found out;
  out.what = fmt::format("attribute \"{}\" of {}{}", attribute, object == "/" ? "" : "/", object);
  auto const place = open(object);
  auto const there = H5Aexists(place, attribute);
  if (there < 0) hdf5_failed(out.what, path);
  if (there == 0) refuse(out.what, "no such attribute");
  out.id = H5(H5Aopen(place, attribute, H5P_DEFAULT), H5Aclose, out.what, path);
  out.space = H5(H5Aget_space(out.id), H5Sclose, out.what, path);
  out.type = H5(H5Aget_type(out.id), H5Tclose, out.what, path);
  return out;
}

std::int64_t Hdf5File::signed_number(std::string const& object, char const* attribute) const {
  std::int64_t out = 0;
  read_number(object, attribute, H5T_STD_I64LE, H5T_NATIVE_INT64, &out);
  return out;
}

std::uint64_t Hdf5File::unsigned_number(std::string const& object, char const* attribute) const {
  std::uint64_t out = 0;
  read_number(object, attribute, H5T_STD_U64LE, H5T_NATIVE_UINT64, &out);
  return out;
}

std::string Hdf5File::text(std::string const& object, char const* attribute) const {
  auto const a = attribute_of(object, attribute);
  if (!is_text(a.space, a.type)) refuse(a.what + ": one value: text", describe(a.space, a.type));
  auto const size = H5Tget_size(a.type);
  if (size < 1 || size > longest_text)
    refuse(fmt::format("{}: at most {} characters", a.what, longest_text), fmt::format("{}", size));
  std::string out(size, '\0');
  if (H5Aread(a.id, a.type, out.data()) < 0) hdf5_failed(a.what, file_.path());
  out.resize(std::min(out.size(), out.find('\0')));
  if (std::any_of(out.begin(), out.end(), [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; }))
    refuse(a.what + ": printable text", "other characters");
  return out;
}

/// Checks how a dataset is stored before anything else: the shape of a virtual one would open the files that it names.
Hdf5File::Found Hdf5File::dataset(std::string const& name) const {
  auto const& path = file_.path();
  Found out;
  out.what = "dataset /" + name;
  out.id = open(name);
  auto const& what = out.what;
  if (H5Iget_type(out.id) != H5I_DATASET) refuse(what, "a group");
  H5 const made(H5Dget_create_plist(out.id), H5Pclose, what, path);
  auto const layout = H5Pget_layout(made);
  if (layout != H5D_CONTIGUOUS) {
    refuse(what + ", contiguous", layout == H5D_CHUNKED   ? "a chunked one"
                                  : layout == H5D_COMPACT ? "a compact one"
                                  : layout == H5D_VIRTUAL ? "a virtual one"
                                                          : "another layout");
  }
  if (H5Pget_external_count(made) != 0) refuse(what + ", in this file", "one in other files");
  if (H5Pget_nfilters(made) != 0) refuse(what + ", without filters", "one with filters (compressed?)");
  auto const offset = H5Dget_offset(out.id);
  auto const bytes = H5Dget_storage_size(out.id);
  auto const size = static_cast<hsize_t>(file_.size());
  if (offset == HADDR_UNDEF) refuse(what + ", stored in the file", "one without a place");
  if (offset > size || bytes > size - offset)
    refuse(fmt::format("{}, within the {} bytes of the file", what, size),
           fmt::format("{} bytes at byte {}", bytes, offset));
  out.extent = {static_cast<std::int64_t>(offset), static_cast<std::int64_t>(bytes)};
  out.space = H5(H5Dget_space(out.id), H5Sclose, what, path);
  out.type = H5(H5Dget_type(out.id), H5Tclose, what, path);
  return out;
}

std::string Hdf5File::text_of(std::string const& name) const {
  auto const set = dataset(name);
  if (!is_text(set.space, set.type)) refuse(set.what + ": one value: text", describe(set.space, set.type));
  auto const bytes = set.extent.bytes;
  if (H5Tget_size(set.type) != static_cast<std::size_t>(bytes))
    refuse(fmt::format("{}: {} bytes", set.what, H5Tget_size(set.type)), fmt::format("{} that are stored", bytes));
  std::string out(static_cast<std::size_t>(bytes), '\0');
  file_.read(set.extent.offset, out.data(), out.size());
  out.resize(std::min(out.size(), out.find('\0')));
  return out;
}

std::vector<char> Hdf5File::records(std::string const& name, hid_t type, std::size_t record_bytes) const {
  auto const set = dataset(name);
  auto const dims = shape(set.space);
  if (!simple(set.space) || dims.size() != 1 || H5Tequal(set.type, type) <= 0)
    refuse(set.what + ": a list of records as docs/checkpoint_format.md says", describe(set.space, set.type));
  auto const bytes = set.extent.bytes, each = static_cast<std::int64_t>(record_bytes);
  if (dims[0] < 1 || dims[0] > bytes / each || dims[0] * each != bytes)
    refuse(fmt::format("{}: {} records of {} bytes", set.what, dims[0], each), fmt::format("{} bytes", bytes));
  std::vector<char> out(static_cast<std::size_t>(bytes));
  file_.read(set.extent.offset, out.data(), out.size());
  return out;
}

Extent Hdf5File::place(std::string const& name, hid_t type, std::vector<std::int64_t> const& dims) const {
  auto const set = dataset(name);
  if (!simple(set.space) || shape(set.space) != dims || H5Tequal(set.type, type) <= 0) {
    refuse(fmt::format("{}: an array [{}]: {}", set.what, fmt::join(dims, ", "), describe_type(type)),
           describe(set.space, set.type));
  }
  auto bytes = static_cast<std::int64_t>(H5Tget_size(type));
  for (auto d : dims) bytes = d > 0 && bytes <= set.extent.bytes / d ? bytes * d : std::int64_t{-1};
  if (bytes != set.extent.bytes)
    refuse(set.what + ": as many bytes as its shape has", fmt::format("{} bytes", set.extent.bytes));
  return set.extent;
}

}  // namespace p3d::io
