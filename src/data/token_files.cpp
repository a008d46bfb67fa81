// SPDX-License-Identifier: Apache-2.0
// Token files in all formats. Every file, or pair of files, is a shard: a mapped file, the place and type of its
// tokens, and, for Megatron, the index. Numbers of tokens, documents and sequences are counted through all shards, and
// a binary search over their beginnings finds the shard. Example: shards of 100, 0 and 50 tokens begin at 0, 100 and
// 100, and token 120 is token 20 of the third one.
#include <p3d/data/token_files.hpp>

#include "data/content_hash.hpp"
#include "data/file_headers.hpp"
#include <p3d/text/text_files.hpp>
#include "data/megatron_index.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

namespace p3d::data {

using config::DataFormat;

/// One file or pair of files.
struct TokenFiles::Shard {
  MappedFile file;
  TokenPlace place;
  std::optional<MegatronIndex> index;
  std::int64_t first = 0;  ///< number of its first token in the whole source

  /// The address of a token.
  std::byte const* at(std::int64_t token) const {
    return file.bytes().data() + place.offset + token * bytes_of(place.type);
  }
};

namespace {

/// The files, or prefixes of pairs, behind the paths.
std::vector<std::string> find(DataFormat format, std::vector<std::string> const& paths, std::string const& key) {
  if (format == DataFormat::megatron) return text::find_prefixes(paths, key);
  bool const bytes = format == DataFormat::text, npy = format == DataFormat::npy;
  std::vector<std::string> out;
  auto const suffix = bytes ? "" : npy ? ".npy" : ".bin";
  auto const files = text::find_files(paths, suffix, bytes ? "text" : suffix, key);
  for (auto const& file : files) out.push_back(file.path);
  return out;
}

}  // namespace

TokenFiles::TokenFiles(DataFormat format, std::vector<std::string> const& paths, std::int64_t vocab_size,
                       std::string const& key, Check check)
    : format_(format), vocab_size_(std::min(vocab_size, most_tokens)), key_(key) {
  for (auto const& path : find(format, paths, key)) {
    Shard shard;
    switch (format) {
      case DataFormat::megatron: {
        shard.file = MappedFile(path + ".bin", key);
        auto const& index =
            shard.index.emplace(path + ".idx", shard.file.path(), shard.file.size(), key, check == Check::sample);
        shard.place = {index.type(), 0, index.tokens()};
        break;
      }
      case DataFormat::llmc:
        shard.file = MappedFile(path, key);
        shard.place = read_llmc_header(shard.file);
        break;
      case DataFormat::npy:
        shard.file = MappedFile(path, key);
        shard.place = read_npy_header(shard.file);
        break;
      case DataFormat::text:
      case DataFormat::synthetic:
        shard.file = MappedFile(path, key);
        shard.place = {TokenType::u8, 0, shard.file.size()};
        break;
    }
    shard.first = begins_.back();
    begins_.push_back(begins_.back() + shard.place.count);
    first_documents_.push_back(first_documents_.back() + (shard.index ? shard.index->documents() : 0));
    first_sequences_.push_back(first_sequences_.back() + (shard.index ? shard.index->sequences() : 0));
    shards_.push_back(std::move(shard));
  }
  if (size() == 0) refuse_empty();
  if (format == DataFormat::text && vocab_size_ < 256) check_text();
  hash_ = content();
}

TokenFiles::~TokenFiles() = default;

void TokenFiles::refuse_empty() const {
  bool const text = format_ == DataFormat::text;
  auto const& first = shards_.front().file.path();
  base::refuse({.expected = text ? "text to train on" : "tokens to train on",
                .found = fmt::format("{} empty file(s), the first is {}", shards_.size(), first),
                .where = key_,
                .fix = text ? "name a text file or a folder with text files" : "name files with tokens"});
}

void TokenFiles::check_text() const {
  for (auto const& shard : shards_) {
    auto const bytes = shard.file.bytes();
    auto const bad = std::find_if(bytes.begin(), bytes.end(),
                                  [this](std::byte b) { return std::to_integer<std::int64_t>(b) >= vocab_size_; });
    if (bad == bytes.end()) continue;
    std::byte highest{};
    for (auto const& other : shards_) {
      for (auto const b : other.file.bytes()) highest = std::max(highest, b);
    }
    base::refuse({.expected = fmt::format("tokens below model.vocab_size = {}", vocab_size_),
                  .found = fmt::format("byte {}", std::to_integer<int>(*bad)),
                  .where = fmt::format("{}, byte {} of the file", shard.file.path(), bad - bytes.begin() + 1),
                  .fix = fmt::format("set model.vocab_size to {} or more (256 fits every text)",
                                     std::to_integer<int>(highest) + 1)});
  }
}

std::uint64_t TokenFiles::content() const {
  std::vector<std::span<std::byte const>> parts;
  for (auto const& shard : shards_) {
    if (shard.index) parts.push_back(shard.index->file().bytes());
    parts.push_back(shard.file.bytes());
  }
  std::size_t bytes = 0;
  for (auto const& part : parts) bytes += part.size();
  bool const whole = bytes <= static_cast<std::size_t>(hashed_whole);
  if (whole) read_ahead(true);
  // In text only the content counts, however it is divided into files.
  auto const hash = content_hash(format_ == DataFormat::text ? "" : fmt::format("p3d {} 1", to_string(format_)), parts);
  if (whole) read_ahead(false);
  return hash;
}

TokenFiles::Shard const& TokenFiles::shard_of(std::vector<std::int64_t> const& begins, std::int64_t i,
                                              std::int64_t& within) const {
  // The last shard that begins there, so no empty one.
  auto const next = std::upper_bound(begins.begin(), begins.end(), i);
  auto const number = next - begins.begin() - 1;
  within = i - begins[static_cast<std::size_t>(number)];
  return shards_[static_cast<std::size_t>(number)];
}

void TokenFiles::read(std::int64_t first, std::span<int> out) const {
  P3D_REQUIRE(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= size(), "the tokens exist");
  while (!out.empty()) {
    std::int64_t within = 0;
    auto const& shard = shard_of(begins_, first, within);
    auto const here = std::min<std::int64_t>(shard.place.count - within, std::ssize(out));
    shard.file.require_whole();
    auto const good =
        decode(shard.place.type, shard.at(within), vocab_size_, out.first(static_cast<std::size_t>(here)));
    if (auto const n = static_cast<std::int64_t>(good); n < here) base::refuse(bad_token(shard, within + n));
    out = out.subspan(static_cast<std::size_t>(here));
    first += here;
  }
}

base::ErrorText TokenFiles::bad_token(Shard const& shard, std::int64_t token) const {
  auto const item = bytes_of(shard.place.type);
  auto where = fmt::format("{}, token {}, byte {}", shard.file.path(), token, shard.place.offset + token * item);
  if (shard.index) where += fmt::format(", document {}", shard.index->document_of(token));
  return {.expected = fmt::format("token ids from 0 to {} (model.vocab_size)", vocab_size_ - 1),
          .found = fmt::format("{}", value_at(shard.place.type, shard.at(token))),
          .where = where,
          .fix =
              "set model.vocab_size to that of the tokenizer, or make the file again; p3d data check finds all such "
              "ids"};
}

layout::Range TokenFiles::shifted(layout::Range tokens, Shard const& shard) const {
  return {tokens.begin + shard.first, tokens.end + shard.first};
}

layout::Range TokenFiles::document(std::int64_t i) const {
  P3D_REQUIRE(i >= 0 && i < documents(), "the document exists");
  std::int64_t within = 0;
  auto const& shard = shard_of(first_documents_, i, within);
  return shifted(shard.index->document(within), shard);
}

layout::Range TokenFiles::document_with(std::int64_t token) const {
  P3D_REQUIRE(knows_documents() && token >= 0 && token < size(), "the token is in a document");
  std::int64_t within = 0;
  auto const& shard = shard_of(begins_, token, within);
  if (!shard.index) return shifted({0, shard.place.count}, shard);
  auto const tokens = shard.index->document(shard.index->document_of(within));
  if (tokens.begin <= within && within < tokens.end) return shifted(tokens, shard);
  base::refuse({.expected = fmt::format("a document that holds token {}", within),
                .found = fmt::format("one of tokens {} to {}", tokens.begin, tokens.end),
                .where = shard.index->file().path(),
                .fix = "make the index again; p3d data check lists its errors"});
}

layout::Range TokenFiles::sequence(std::int64_t i) const {
  P3D_REQUIRE(i >= 0 && i < sequences(), "the sequence exists");
  std::int64_t within = 0;
  auto const& shard = shard_of(first_sequences_, i, within);
  return shifted(shard.index->sequence(within), shard);
}

std::string TokenFiles::describe() const {
  bool const one = shards_.size() == 1;
  auto const& path = shards_.front().file.path();
  if (format_ == DataFormat::text)
    return one ? fmt::format("{}, {} bytes", path, size()) : fmt::format("{} files, {} bytes", shards_.size(), size());
  auto out = fmt::format("{}, {} {}", one ? path : fmt::format("{} files", shards_.size()), size(),
                         one ? fmt::format("tokens ({})", name_of(shards_.front().place.type)) : "tokens");
  if (documents() > 0) out += fmt::format(", {}", base::counted(documents(), "document"));
  return out;
}

std::vector<TokenFileFacts> TokenFiles::files() const {
  std::vector<TokenFileFacts> out;
  for (auto const& s : shards_) {
    TokenFileFacts facts{s.file.path(), name_of(s.place.type), s.place.count, 0, 0, s.file.size()};
    if (s.index) {
      facts.path = facts.path.substr(0, facts.path.size() - 4);
      facts.documents = s.index->documents();
      facts.sequences = s.index->sequences();
      facts.bytes += s.index->file().size();
    }
    out.push_back(facts);
  }
  return out;
}

void TokenFiles::walk(std::function<bool(base::ErrorText const&)> const& tell) const {
  bool more = true;
  auto const told = [&](base::ErrorText const& error) { return more = tell(error); };
  std::array<int, 4096> ids{};
  read_ahead(true);
  for (auto const& shard : shards_) {
    if (more && shard.index) shard.index->walk(told);
    for (std::int64_t i = 0; more && i < shard.place.count;) {
      auto const here = std::min<std::int64_t>(shard.place.count - i, std::ssize(ids));
      auto const good = static_cast<std::int64_t>(
          decode(shard.place.type, shard.at(i), vocab_size_, {ids.data(), static_cast<std::size_t>(here)}));
      i += good;
      if (good < here) told(bad_token(shard, i++));
    }
  }
  read_ahead(false);
}

void TokenFiles::read_ahead(bool on) const {
  using Access = MappedFile::Access;
  for (auto const& shard : shards_) {
    shard.file.expect(on ? Access::in_order : Access::windows);
    if (shard.index) shard.index->file().expect(on ? Access::in_order : Access::most);
  }
}

DataFormat guess_format(std::string const& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  bool const named = path.ends_with(".bin") || path.ends_with(".idx");
  auto const index = (named ? path.substr(0, path.size() - 4) : path) + ".idx";
  if (path.ends_with(".idx") || fs::exists(index, ignored)) return DataFormat::megatron;
  if (fs::is_directory(path, ignored)) {
    for (auto const& entry : fs::directory_iterator(path, ignored)) {
      auto const name = entry.path().string();
      if (name.ends_with(".idx")) return DataFormat::megatron;
      if (name.ends_with(".npy")) return DataFormat::npy;
      if (name.ends_with(".bin")) return guess_format(name);
    }
    return DataFormat::text;
  }
  if (!fs::is_regular_file(path, ignored)) return DataFormat::text;
  MappedFile const file(path, path);
  return looks_like_npy(file) ? DataFormat::npy : looks_like_llmc(file) ? DataFormat::llmc : DataFormat::text;
}

}  // namespace p3d::data
