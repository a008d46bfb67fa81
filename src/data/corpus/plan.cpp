// SPDX-License-Identifier: Apache-2.0
#include "data/corpus/plan.hpp"

#include "data/corpus/byte_stream.hpp"

#include <p3d/base/error.hpp>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

namespace p3d::data {

namespace {

bool is_json(std::string_view path) {
  if (path.ends_with(".gz")) path.remove_suffix(3);
  if (path.ends_with(".zst")) path.remove_suffix(4);
  return path.ends_with(".jsonl") || path.ends_with(".json") || path.ends_with(".ndjson");
}

}  // namespace

std::vector<CorpusFile> find_corpus(std::vector<std::string> const& paths) {
  std::vector<CorpusFile> out;
  try {
    for (auto const& file : find_text_files(paths)) {
      auto const changed = std::filesystem::last_write_time(file.path).time_since_epoch().count();
      out.push_back({file.path, file.bytes, static_cast<std::int64_t>(changed), is_json(file.path)});
    }
  } catch (base::Error const& e) {
    throw base::Error({.expected = e.text().expected,
                       .found = e.text().found,
                       .where = "the inputs on the command line",
                       .fix = "name text files, .jsonl files, or folders of them"},
                      e.code());
  }
  return out;
}

std::vector<CorpusPart> divide_corpus(std::vector<CorpusFile> const& files, bool cuts) {
  std::int64_t total = 0;
  for (auto const& f : files) total += f.bytes;
  auto const size = std::clamp<std::int64_t>(total / 64, 1 << 20, 64 << 20);
  std::vector<CorpusPart> out;
  CorpusPart part;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    auto const& f = files[i];
    bool const whole = compression_of(f.path) != Compression::none || (!f.lines && !cuts);
    std::int64_t begin = 0;
    do {
      auto const end = whole ? f.bytes : std::min(f.bytes, begin + size - bytes);
      part.push_back({i, begin, end});
      bytes += end - begin;
      begin = end;
      if (bytes < size) continue;
      out.push_back(std::exchange(part, {}));
      bytes = 0;
    } while (begin < f.bytes);
  }
  if (!part.empty()) out.push_back(std::move(part));
  return out;
}

}  // namespace p3d::data
