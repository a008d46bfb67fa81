// SPDX-License-Identifier: Apache-2.0
// The note PREFIX.meta.json beside token files, which says by which tokenizer they were made. Tokens of another
// tokenizer are numbers like all others: without the note a run would train on nonsense and show a loss that falls.
#include <p3d/text/token_origin.hpp>

#include <p3d/text/text_files.hpp>
#include "text/output_file.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/printable.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/text_file.hpp>
#include <p3d/config/config.hpp>
#include <p3d/text/tokenizer.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <filesystem>
#include <vector>

namespace p3d::text {

namespace {

constexpr char const* made_by = "p3d data tokenize";

using base::refuse;

/// Reads 16 hexadecimal digits. A number of 64 bits does not fit into a JSON number everywhere, so it is text.
std::uint64_t read_hash(std::string const& text) {
  std::uint64_t hash = 0;
  auto const end = text.data() + text.size();
  auto const read = std::from_chars(text.data(), end, hash, 16);
  if (text.size() != 16 || read.ec != std::errc{} || read.ptr != end)
    throw std::invalid_argument("\"hash\" is not a number of 16 hexadecimal digits");
  return hash;
}

}  // namespace

bool same_tokenizer(TokenOrigin const& a, TokenOrigin const& b) { return a.hash == b.hash && a.pattern == b.pattern; }

std::string tokenizer_in_words(TokenOrigin const& t) {
  auto const pattern = t.pattern.empty() ? "" : ", pattern " + t.pattern;
  return fmt::format("{}{} (hash {:016x})", t.tokenizer, pattern, t.hash);
}

std::string origin_file(std::string const& prefix) { return prefix + ".meta.json"; }

void write_origin(std::string const& prefix, TokenOrigin const& origin) {
  nlohmann::ordered_json json;
  json["made_by"] = made_by;
  json["tokenizer"] = {{"name", origin.tokenizer},
                       {"pattern", origin.pattern},
                       {"hash", fmt::format("{:016x}", origin.hash)},
                       {"vocab_size", origin.vocab_size}};
  json["end_of_document"] = origin.end_of_document;
  json["bin_bytes"] = origin.bytes;
  auto const text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  OutputFile file(origin_file(prefix));
  file.write(text.data(), text.size());
  file.finish();
}

std::optional<TokenOrigin> read_origin(std::string const& prefix) {
  auto const path = origin_file(prefix);
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return {};
  std::string const what = "a note of p3d data tokenize about its tokenizer";
  std::string const fix = "make the token files again, or remove the note: the tokenizers are not compared then";
  auto const text = base::read_text_file(path, what, path, std::int64_t{1} << 20);
  TokenOrigin out;
  try {
    auto const json = nlohmann::json::parse(text);
    auto const& tokenizer = json.at("tokenizer");
    // Names are made one line each, as messages quote them.
    out = {.tokenizer = base::printable_line(tokenizer.at("name").get<std::string>()),
           .pattern = base::printable_line(tokenizer.at("pattern").get<std::string>()),
           .hash = read_hash(tokenizer.at("hash").get<std::string>()),
           .vocab_size = tokenizer.at("vocab_size").get<std::int64_t>(),
           .end_of_document = json.at("end_of_document").get<std::int64_t>(),
           .bytes = json.at("bin_bytes").get<std::int64_t>()};
  } catch (std::exception const& e) {
    refuse(what, std::string(e.what()).substr(0, 200), path, fix);
  }
  // A .bin file of another size was replaced after the note was written.
  std::error_code why;
  auto const bytes = std::filesystem::file_size(prefix + ".bin", why);
  if (!why && static_cast<std::int64_t>(bytes) != out.bytes)
    refuse(fmt::format("{}.bin of {} bytes, as {} says", prefix, out.bytes, path),
           fmt::format("{} bytes: other tokens than the note is about", bytes), path, fix);
  return out;
}

namespace {

char const* key_of_data(config::Config const& c) { return c.data.source.empty() ? "data.path" : "data.source"; }

/// The pairs of token files of a run, of its sources too.
std::vector<std::string> prefixes_of(config::Config const& c) {
  auto paths = c.data.path;
  for (auto const& source : c.data.source) paths.push_back(source.path);
  return find_prefixes(paths, key_of_data(c));
}

}  // namespace

std::string require_tokenizer(config::Config const& c, Tokenizer const& tokenizer) {
  if (c.data.format != config::DataFormat::megatron) return "";
  std::vector<std::string> without;
  auto const prefixes = prefixes_of(c);
  for (auto const& prefix : prefixes) {
    auto const origin = read_origin(prefix);
    if (!origin) {
      without.push_back(prefix);
      continue;
    }
    TokenOrigin const own{.tokenizer = c.data.tokenizer == "bytes" ? "\"bytes\"" : c.data.tokenizer,
                          .pattern = c.data.tokenizer_pattern,
                          .hash = tokenizer.hash()};
    if (same_tokenizer(*origin, own)) continue;
    refuse(fmt::format("tokens of the run's tokenizer, {}", tokenizer_in_words(own)),
           fmt::format("tokens of {}, as {} says", tokenizer_in_words(*origin), origin_file(prefix)),
           fmt::format("data.tokenizer, and {}.bin of {}", prefix, key_of_data(c)),
           fmt::format("set data.tokenizer to the file {}, or make the tokens with the other one: p3d data tokenize",
                       origin->tokenizer));
  }
  if (without.empty() || c.data.tokenizer == "bytes") return "";
  return fmt::format("Tokenizer: not compared with that of {} of {} (no {})", without.size(),
                     base::counted(std::ssize(prefixes), "token file"), origin_file(without.front()));
}

std::string note_about_ends(config::Config const& c) {
  if (c.data.format != config::DataFormat::megatron || c.data.eod_token < 0) return "";
  for (auto const& prefix : prefixes_of(c)) {
    auto const origin = read_origin(prefix);
    if (!origin || origin->end_of_document == c.data.eod_token) continue;
    auto const end = origin->end_of_document < 0 ? "no token ends a document"
                                                 : fmt::format("token {} ends a document", origin->end_of_document);
    return fmt::format("data.eod_token = {}, and {} says that {}: documents are cut where {} stands instead",
                       c.data.eod_token, origin_file(prefix), end, c.data.eod_token);
  }
  return "";
}

}  // namespace p3d::text
