// SPDX-License-Identifier: Apache-2.0
// Reads safetensors files of strangers. read_safetensors() checks every number of the header before it is used: sizes
// against the file, offsets against shapes, and that the tensors cover the data without a hole or an overlap. A folder
// of several files is read through its index. TensorReader then reads pieces of a tensor at their offsets and widens
// them. Example: a tensor of type F32 and shape [2, 3] must have 24 bytes.
#include <p3d/io/safetensors.hpp>

#include "open_regular.hpp"
#include "posix_file.hpp"
#include "tensor_types.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/printable.hpp>
#include <p3d/base/text.hpp>
#include <p3d/config/json_text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

namespace p3d::io {

namespace {

namespace fs = std::filesystem;
using config::describe;
using nlohmann::json;

/// Most bytes of a header or an index; the library safetensors has the same limit.
constexpr std::int64_t largest_header = 100'000'000;
constexpr std::size_t most_dimensions = 16;

/// The error for a file that is not in the format. Its exit code is bad_input.
base::Error refused(std::string expected, std::string found, std::string where) {
  return base::Error({.expected = std::move(expected),
                      .found = std::move(found),
                      .where = std::move(where),
                      .fix = "copy the file again from where it comes from, or write it again with its library"},
                     base::ExitCode::bad_input);
}

/// Opens a file for reading; every error has the exit code bad_input.
PosixFile open(std::string const& path) {
  try {
    return {open_regular(path, O_RDONLY, "a safetensors file that can be read"), path};
  } catch (base::Error const& e) {
    base::refuse(e.text());
  }
}

/// A name as JSON text, so that control characters are harmless.
std::string in_quotes(std::string_view name) { return describe(json(std::string(name))).substr(11); }

/// The value of a key that must be a list of at most `most` whole numbers from 0 on.
std::vector<std::int64_t> numbers(json const& entry, char const* key, std::size_t most, std::string const& where) {
  std::vector<std::int64_t> out;
  auto const& list = entry[key];
  if (!list.is_array()) throw refused(fmt::format("{}: a list of whole numbers", key), describe(list), where);
  if (list.size() > most)
    throw refused(fmt::format("{}: at most {} numbers", key, most), fmt::format("{}", list.size()), where);
  for (auto const& value : list) {
    bool const whole = value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{1} << 62;
    if (!whole) throw refused(fmt::format("{}: whole numbers from 0 to 2^62", key), describe(value), where);
    out.push_back(value.get<std::int64_t>());
  }
  return out;
}

/// Bytes of a shape whose numbers have `element` bytes, or nothing when 63 bits cannot count them.
std::optional<std::int64_t> bytes_of(std::vector<std::int64_t> const& shape, std::int64_t element) {
  std::int64_t n = element;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (auto const size : shape) {
    if (__builtin_mul_overflow(n, size, &n)) return {};
  }
  return n;
}

/// Reads the description of one tensor. The data begin at byte `data` of the file and are `data_bytes` long.
Tensor read_entry(std::string const& tensor, json const& entry, std::int64_t data, std::int64_t data_bytes,
                  std::string const& path) {
  auto const where = fmt::format("{}, tensor {}", path, in_quotes(tensor));
  if (!entry.is_object()) throw refused("an object of dtype, shape and data_offsets", describe(entry), where);
  for (auto const* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) throw refused(fmt::format("the key {}", key), "none", where);
  }
  for (auto const& item : entry.items()) {
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets")
      throw refused("dtype, shape, data_offsets and no other key", "the key " + in_quotes(item.key()), where);
  }
  auto const* row = entry["dtype"].is_string() ? find_dtype(entry["dtype"].get_ref<std::string const&>()) : nullptr;
  if (!row) throw refused("dtype: F64, F32, F16, BF16 or another of the format", describe(entry["dtype"]), where);

  Tensor t;
  t.name = tensor;
  t.dtype = row->name;
  t.type = row->type;
  t.shape = numbers(entry, "shape", most_dimensions, where);
  auto const offsets = numbers(entry, "data_offsets", 2, where);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    throw refused(
        fmt::format("data_offsets: first and last byte within the {} of data", base::counted(data_bytes, "byte")),
        entry["data_offsets"].dump(), where);
  }
  t.bytes = offsets[1] - offsets[0];
  auto const needed = bytes_of(t.shape, row->bytes);
  if (needed != t.bytes) {
    throw refused(fmt::format("data_offsets of {} {}: {}", t.dtype, shape_text(t.shape),
                              needed ? base::counted(*needed, "byte") : "more bytes than 63 bits count"),
                  fmt::format("{}", base::counted(t.bytes, "byte")), where);
  }
  t.offset = data + offsets[0];
  return t;
}

/// Throws unless every byte of the data belongs to just one tensor.
void require_cover(Safetensors const& all, std::int64_t data, std::int64_t end, std::string const& path) {
  std::vector<Tensor const*> order;
  order.reserve(all.tensors.size());
  for (auto const& [name, tensor] : all.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](auto const* a, auto const* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  auto at = data;
  for (auto const* t : order) {
    if (t->offset != at) {
      throw refused("tensors that follow each other without a hole or an overlap",
                    fmt::format("a tensor that begins at byte {} of the data, where {} was expected", t->offset - data,
                                at - data),
                    fmt::format("{}, tensor {}", path, in_quotes(t->name)));
    }
    at += t->bytes;
  }
  if (at != end) {
    throw refused(fmt::format("data of {}, as the tensors say", base::counted(at - data, "byte")),
                  base::counted(end - data, "byte"), path);
  }
}

/// Reads the index of a folder: the file of each tensor.
std::map<std::string, std::string> read_index(std::string const& path) {
  auto const file = open(path);
  auto const size = file.size();
  if (size > largest_header)
    throw refused(fmt::format("an index of at most {} bytes", largest_header), base::counted(size, "byte"), path);
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read(0, text.data(), text.size());
  auto const index = config::parse_json(text, path);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    throw refused("the object weight_map: the file of every tensor", "none", path);
  std::map<std::string, std::string> out;
  for (auto const& item : index["weight_map"].items()) {
    auto const* shard = item.value().is_string() ? &item.value().get_ref<std::string const&>() : nullptr;
    if (!shard || !base::is_file_name(*shard))
      throw refused("the name of a file in this folder", describe(item.value()),
                    fmt::format("{}, tensor {}", path, in_quotes(item.key())));
    out.emplace(item.key(), *shard);
  }
  return out;
}

}  // namespace

std::int64_t Tensor::elements() const {
  // Whatever the other sizes are: their product may not fit.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t n = 1;
  for (auto const size : shape) n *= size;
  return n;
}

std::string shape_text(std::vector<std::int64_t> const& shape) {
  std::vector<std::string> sizes;
  for (auto const size : shape) sizes.push_back(fmt::format("{}", size));
  return fmt::format("[{}]", base::join(sizes));
}

Tensor const* Safetensors::find(std::string_view tensor) const {
  auto const it = tensors.find(tensor);
  return it == tensors.end() ? nullptr : &it->second;
}

Safetensors read_safetensors(std::string const& path) {
  auto const file = open(path);
  auto const size = file.size();
  std::uint64_t length = 0;
  if (size < 8) throw refused("a safetensors file: 8 bytes and a header", base::counted(size, "byte"), path);
  file.read(0, &length, sizeof length);
  auto const most = std::min<std::int64_t>(largest_header, size - 8);
  if (length > static_cast<std::uint64_t>(most)) {
    throw refused(fmt::format("a header of at most {}", base::counted(most, "byte")),
                  fmt::format("{} bytes, says the first number of the file", length), path);
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read(8, text.data(), text.size());
  if (!text.starts_with('{')) throw refused("a header that begins with {", "another byte at byte 8", path);
  auto const header = config::parse_json(text, path + ", its header");
  std::string().swap(text);

  auto const data = 8 + static_cast<std::int64_t>(length);
  Safetensors out;
  out.files.push_back(path);
  for (auto const& item : header.items()) {
    if (item.key() != "__metadata__") {
      out.tensors.emplace(item.key(), read_entry(item.key(), item.value(), data, size - data, path));
      continue;
    }
    bool good = item.value().is_object();
    for (auto const& pair : item.value().items()) good = good && pair.value().is_string();
    if (!good) throw refused("__metadata__: an object of strings", describe(item.value()), path);
  }
  require_cover(out, data, size, path);
  return out;
}

Safetensors read_safetensors_folder(std::string const& folder) {
  auto const single = fs::path(folder) / "model.safetensors", index = fs::path(folder) / "model.safetensors.index.json";
  std::error_code ignored;
  if (fs::exists(single, ignored)) return read_safetensors(single.string());
  if (!fs::exists(index, ignored)) {
    base::refuse({.expected = "model.safetensors or model.safetensors.index.json",
                  .found = fs::is_directory(folder, ignored) ? "neither" : "no such folder",
                  .where = folder,
                  .fix = "name the folder of a model in Hugging Face form; older files (pytorch_model.bin) become "
                         "safetensors with save_pretrained"});
  }
  auto const map = read_index(index.string());
  Safetensors out;
  std::set<std::string> shards;
  for (auto const& [tensor, shard] : map) shards.insert(shard);
  for (auto const& shard : shards) {
    auto const path = (fs::path(folder) / shard).string();
    if (!fs::exists(path, ignored)) {
      base::refuse({.expected = "every file that the index names",
                    .found = fmt::format("no {}", shard),
                    .where = index.string(),
                    .fix = "copy the missing file into the folder"});
    }
    auto one = read_safetensors(path);
    for (auto& [name, tensor] : one.tensors) {
      auto const named = map.find(name);
      if (named == map.end() || named->second != shard)
        throw refused(named == map.end() ? "only tensors of the index" : "this tensor in " + named->second,
                      "it is here", fmt::format("{}, tensor {}", path, in_quotes(name)));
      tensor.file = out.files.size();
      out.tensors.emplace(name, std::move(tensor));
    }
    out.files.push_back(path);
  }
  for (auto const& [tensor, shard] : map) {
    if (out.find(tensor)) continue;
    throw refused(fmt::format("this tensor in {}, as the index says", shard), "none",
                  fmt::format("{}, tensor {}", index.string(), in_quotes(tensor)));
  }
  return out;
}

struct TensorReader::State {
  Safetensors const& all;
  std::map<std::size_t, PosixFile> files = {};
  std::vector<char> buffer = {};
};

TensorReader::TensorReader(Safetensors const& files) : state_(new State{files}) {}
TensorReader::~TensorReader() = default;

void TensorReader::read(Tensor const& tensor, std::int64_t first, std::int64_t count, Element as, void* out) {
  P3D_REQUIRE(tensor.type, "the tensor holds weights");
  P3D_REQUIRE(first >= 0 && count >= 0 && first + count <= tensor.elements(), "the piece lies in the tensor");
  auto file = state_->files.find(tensor.file);
  if (file == state_->files.end())
    file = state_->files.emplace(tensor.file, open(state_->all.files.at(tensor.file))).first;
  constexpr std::int64_t piece = std::int64_t{1} << 18;
  auto const width = static_cast<std::int64_t>(size_of(*tensor.type));
  bool const same = static_cast<std::size_t>(width) == size_of(as);
  for (std::int64_t i = 0; i < count; i += piece) {
    auto const n = std::min(piece, count - i);
    auto* const to = static_cast<char*>(out) + i * static_cast<std::int64_t>(size_of(as));
    auto const at = tensor.offset + (first + i) * width;
    if (same) {  // F32 as float and F64 as double are copied as they are
      file->second.read(at, to, static_cast<std::size_t>(n * width));
      continue;
    }
    state_->buffer.resize(static_cast<std::size_t>(n * width));
    file->second.read(at, state_->buffer.data(), state_->buffer.size());
    widen(*tensor.type, state_->buffer.data(), n, as, to);
  }
}

}  // namespace p3d::io
