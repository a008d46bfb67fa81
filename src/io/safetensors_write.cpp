// SPDX-License-Identifier: Apache-2.0
// Writes a model as safetensors files. All places follow from the list of items alone, so the constructor computes
// every header; create() then makes files of the final length, and any process can write any piece of an item at its
// place. Example: two items [2, 3] and [3] in F32 lie at bytes 0 and 24 of the data, behind a header of a multiple of 8
// bytes.
#include <p3d/io/safetensors.hpp>

#include "checksum.hpp"
#include "posix_file.hpp"
#include "tensor_types.hpp"

#include <p3d/base/error.hpp>
#include <p3d/io/text_file.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <set>
#include <utility>

namespace p3d::io {

namespace {

namespace fs = std::filesystem;

std::int64_t elements_of(SafetensorsWriter::Item const& item) {
  std::int64_t n = 1;
  for (auto const size : item.shape) n *= size;
  return n;
}

/// The part of an item's checksum that `count` numbers of `width` bytes add, of which the first has index `first`.
std::uint64_t sum_of(char const* numbers, std::int64_t count, std::int64_t first, std::size_t width) {
  auto const index = static_cast<std::uint64_t>(first);
  return width == 2 ? checksum_of<std::uint16_t>(numbers, count, index) : checksum(numbers, count, index, width);
}

std::string in_quotes(std::string const& text) { return nlohmann::json(text).dump(); }

}  // namespace

struct SafetensorsWriter::State {
  /// One file of the model.
  struct Shard {
    std::string path;
    std::string header;              ///< the JSON with its length in front, as it stands in the file
    std::int64_t bytes = 0;          ///< length of the whole file
    std::size_t first = 0, end = 0;  ///< its items are [first, end)
  };
  std::string folder;
  std::vector<Item> items;
  TensorType type;
  std::vector<Shard> shards = {};
  std::vector<std::pair<std::size_t, std::int64_t>> places = {};  ///< the shard of each item, and its first byte there
  std::string index = {};                                         ///< text of the index; "" where one file is enough
  std::vector<std::string> files = {};                            ///< final paths
  std::map<std::size_t, PosixFile> open = {};                     ///< files that this object writes to, by shard
  std::vector<char> buffer = {};
  std::vector<std::uint64_t> sums = {};  ///< written()

  TensorType type_of(Item const& item) const { return item.wide && size_of(type) < 4 ? TensorType::f32 : type; }
  std::int64_t bytes_of(Item const& item) const {
    return elements_of(item) * static_cast<std::int64_t>(size_of(type_of(item)));
  }

  /// Distributes the items over files, in order; a new file begins where one would have more than `most` bytes of data.
  void divide(std::int64_t most) {
    std::int64_t used = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      auto const size = bytes_of(items[i]);
      if (shards.empty() || (used > 0 && used + size > most)) {
        shards.emplace_back().first = i;
        used = 0;
      }
      used += size;
      shards.back().end = i + 1;
    }
  }

  /// Makes the header of a shard, and the places of its items.
  void make_header(std::size_t shard) {
    auto& s = shards[shard];
    std::string text = R"({"__metadata__":{"format":"pt"})";
    std::int64_t at = 0;
    for (auto i = s.first; i < s.end; ++i) {
      auto const end = at + bytes_of(items[i]);
      auto sizes = shape_text(items[i].shape);
      std::erase(sizes, ' ');
      text += fmt::format(R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", in_quotes(items[i].name),
                          name(type_of(items[i])), sizes, at, end);
      places.emplace_back(shard, at);
      at = end;
    }
    text += '}';
    text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begin at a multiple of 8
    std::uint64_t const length = text.size();
    s.header.assign(reinterpret_cast<char const*>(&length), sizeof length);
    s.header += text;
    for (auto i = s.first; i < s.end; ++i) places[i].second += static_cast<std::int64_t>(s.header.size());
    s.bytes = static_cast<std::int64_t>(s.header.size()) + at;
  }

  /// Makes the text of the index, which names the file of every item.
  void make_index() {
    std::int64_t total = 0;
    std::string map;
    for (auto const& s : shards) {
      for (auto i = s.first; i < s.end; ++i) {
        total += bytes_of(items[i]);
        map += fmt::format("{}\n    {}: {}", map.empty() ? "" : ",", in_quotes(items[i].name),
                           in_quotes(fs::path(s.path).filename().string()));
      }
    }
    index = fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{{}\n  }}\n}}\n",
                        total, map);
  }
};

SafetensorsWriter::SafetensorsWriter(std::string folder, std::vector<Item> items, TensorType type,
                                     std::int64_t max_bytes)
    : state_(new State{std::move(folder), std::move(items), type}) {
  auto& s = *state_;
  P3D_REQUIRE(!s.items.empty(), "a model has tensors");
  s.divide(max_bytes);
  s.sums.assign(s.items.size(), 0);
  for (std::size_t i = 0; i < s.shards.size(); ++i) {
    auto const file = s.shards.size() == 1 ? std::string("model.safetensors")
                                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, s.shards.size());
    s.shards[i].path = (fs::path(s.folder) / file).string();
    s.make_header(i);
    s.files.push_back(s.shards[i].path);
  }
  if (s.shards.size() == 1) return;
  s.make_index();
  s.files.push_back((fs::path(s.folder) / "model.safetensors.index.json").string());
}
SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::create() {
  for (auto const& shard : state_->shards) {
    PosixFile const file(shard.path + ".part", PosixFile::Mode::create);
    file.resize(shard.bytes);
    file.reserve();
    file.write(0, shard.header.data(), shard.header.size());
    file.flush();
  }
}

void SafetensorsWriter::write(std::size_t item, std::int64_t first, std::int64_t count, Element from,
                              void const* numbers) {
  auto& s = *state_;
  P3D_REQUIRE(first >= 0 && count >= 0 && first + count <= elements_of(s.items.at(item)), "the piece lies in the item");
  auto const [shard, begin] = s.places[item];
  auto file = s.open.find(shard);
  if (file == s.open.end())
    file = s.open.emplace(shard, PosixFile(s.shards[shard].path + ".part", PosixFile::Mode::write)).first;
  constexpr std::int64_t piece = std::int64_t{1} << 18;
  auto const type = s.type_of(s.items[item]);
  auto const width = static_cast<std::int64_t>(size_of(type));
  for (std::int64_t i = 0; i < count; i += piece) {
    auto const n = std::min(piece, count - i);
    s.buffer.resize(static_cast<std::size_t>(n * width));
    narrow(from, static_cast<char const*>(numbers) + i * static_cast<std::int64_t>(size_of(from)), n, type,
           s.buffer.data());
    file->second.write(begin + (first + i) * width, s.buffer.data(), s.buffer.size());
    s.sums[item] += sum_of(s.buffer.data(), n, first + i, size_of(type));
  }
}

void SafetensorsWriter::flush() {
  for (auto const& [shard, file] : state_->open) file.flush();
  state_->open.clear();
}

std::vector<std::uint64_t> const& SafetensorsWriter::written() const { return state_->sums; }

std::vector<std::uint64_t> SafetensorsWriter::read_back(int part, int parts) const {
  auto const& s = *state_;
  std::vector<std::uint64_t> sums(s.items.size(), 0);
  std::vector<char> numbers;
  std::int64_t piece = 0;
  for (std::size_t shard = 0; shard < s.shards.size(); ++shard) {
    PosixFile const file(s.shards[shard].path + ".part", PosixFile::Mode::read);
    file.forget_cache();
    for (auto item = s.shards[shard].first; item < s.shards[shard].end; ++item) {
      auto const width = size_of(s.type_of(s.items[item]));
      constexpr std::int64_t at_once = std::int64_t{1} << 21;
      for (std::int64_t first = 0, all = elements_of(s.items[item]); first < all; first += at_once) {
        if (piece++ % parts != part) continue;
        auto const n = std::min(at_once, all - first);
        numbers.resize(static_cast<std::size_t>(n) * width);
        file.read(s.places[item].second + first * static_cast<std::int64_t>(width), numbers.data(), numbers.size());
        sums[item] += sum_of(numbers.data(), n, first, width);
      }
    }
  }
  return sums;
}

void SafetensorsWriter::commit() {
  for (auto const& shard : state_->shards) rename_and_flush(shard.path + ".part", shard.path);
  if (!state_->index.empty()) write_text_atomically(state_->files.back(), state_->index);
}

void SafetensorsWriter::discard() noexcept {
  std::error_code ignored;
  for (auto const& shard : state_->shards) fs::remove(shard.path + ".part", ignored);
}

std::vector<std::string> const& SafetensorsWriter::files() const { return state_->files; }

}  // namespace p3d::io
