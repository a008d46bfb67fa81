// SPDX-License-Identifier: Apache-2.0
// Finds the files of a corpus and divides them into parts. A part is a 64th of the corpus, so that many
// ranks and threads have work, but not so small that its files are a burden. Files that are compressed, or are one
// document that must not be cut, go into a part whole.
#include "text/corpus/plan.hpp"

#include "text/corpus/byte_stream.hpp"
#include "text/corpus/text_check.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/text/tokenize.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

namespace p3d::text {

namespace fs = std::filesystem;

namespace {

/// True for a file with one JSON object a line, by its name without the ending of a compression.
bool is_json(std::string_view path) {
  if (path.ends_with(".gz")) path.remove_suffix(3);
  if (path.ends_with(".zst")) path.remove_suffix(4);
  return path.ends_with(".jsonl") || path.ends_with(".json") || path.ends_with(".ndjson");
}

/// The words for a file that p3d data tokenize made, or "": it is no text, wherever its folder lies. A set of token
/// files has three names; a folder of parts has a plan.
std::string made_by_tokenize(std::string const& path) {
  constexpr std::string_view endings[] = {".meta.json", ".bin", ".idx"};
  std::error_code ignored;
  for (auto const ending : endings) {
    if (!path.ends_with(ending)) continue;
    auto const prefix = path.substr(0, path.size() - ending.size());
    if (std::all_of(std::begin(endings), std::end(endings),
                    [&](auto const other) { return fs::exists(prefix + std::string(other), ignored); }))
      return "token files";
  }
  auto const folder = fs::path(path).parent_path();
  if (folder.extension() != ".parts") return "";
  std::ifstream plan(folder / "plan");
  std::string line;
  return std::getline(plan, line) && line.starts_with(parts_title) ? "parts of token files" : "";
}

[[noreturn]] void refuse(std::string expected, std::string found, std::string fix) {
  base::refuse({.expected = std::move(expected),
                .found = std::move(found),
                .where = "the inputs on the command line",
                .fix = std::move(fix)});
}

}  // namespace

std::vector<CorpusFile> find_corpus(std::vector<std::string> const& paths, std::vector<std::string>& left_out) {
  std::vector<TextFile> found;
  try {
    found = find_text_files(paths);
  } catch (base::Error const& e) {
    refuse(e.text().expected, e.text().found, "name text files, .jsonl files, or folders of them");
  }
  std::vector<CorpusFile> out;
  for (auto const& file : found) {
    bool const lines = is_json(file.path);
    auto why = made_by_tokenize(file.path);
    if (why.empty() && !lines) why = why_not_text_file(file.path, compression_of(file.path));
    if (!why.empty()) {
      if (std::find(paths.begin(), paths.end(), file.path) != paths.end())
        refuse("text, in UTF-8 or another 8-bit encoding", file.path + ": " + why,
               "leave the file out, or make text of it first");
      left_out.push_back(file.path + ": " + why);
      continue;
    }
    auto const changed = std::filesystem::last_write_time(file.path).time_since_epoch().count();
    out.push_back({file.path, file.bytes, static_cast<std::int64_t>(changed), lines});
  }
  if (out.empty())
    refuse("text files, or .jsonl files",
           fmt::format("none in {} ({})", base::counted(std::ssize(left_out), "file"), left_out.front()),
           "name files with text, or folders of them");
  return out;
}

std::string note_about_binaries(std::vector<std::string> const& paths, char const* key) {
  auto const files = find_text_files(paths);
  std::int64_t binaries = 0;
  std::string first;
  for (auto const& file : files) {
    // The file is read as it is, not decompressed, and not document by document.
    bool const lines = file.path.ends_with(".jsonl") || file.path.ends_with(".ndjson");
    auto const why = lines ? "lines of JSON" : why_not_text_file(file.path, Compression::none);
    if (why.empty()) continue;
    if (binaries++ == 0) first = file.path + ": " + why;
  }
  if (binaries == 0) return "";
  return fmt::format("{}: {} of {} {} no text, and read as it is all the same ({})", key, binaries,
                     base::counted(std::ssize(files), "file"), binaries == 1 ? "is" : "are", first);
}

// The parts depend on the files alone, not on the number of ranks: another number must find the finished ones again.
std::vector<CorpusPart> divide_corpus(std::vector<CorpusFile> const& files, bool cuts) {
  std::int64_t total = 0;
  for (auto const& f : files) total += f.bytes;
  // A 64th of the corpus, from 1 to 64 MiB.
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

}  // namespace p3d::text
