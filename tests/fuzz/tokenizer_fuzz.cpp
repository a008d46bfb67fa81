// SPDX-License-Identifier: Apache-2.0
// Reads damaged and hostile files of tokenizers. Each must be refused as bad input, with the file, or else encode and
// decode some text; nothing may allocate much more than the file holds.
//
// usage: tokenizer_fuzz FILES [SEED [FIRST]]      FIRST: number of the first file, to look at one again

#include "allocations.hpp"
#include "hostile.hpp"

#include <p3d/base/error.hpp>
#include <p3d/text/tokenizer.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <support/temp_dir.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace p3d::fuzz {
namespace {

using Json = nlohmann::json;

std::string read(std::string const& name) {
  std::ifstream in(std::string(P3D_SOURCE_DIR) + "/tests/unit/text/tokenizers/" + name, std::ios::binary);
  std::string out{std::istreambuf_iterator<char>(in), {}};
  if (out.empty()) throw std::runtime_error("cannot read " + name);
  return out;
}

class Fuzz {
public:
  Fuzz(std::uint64_t seed, std::uint64_t number) : random_(seed * 0x9e3779b97f4a7c15ULL + number) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  /// Bytes changed, left out, doubled, or the end cut off.
  void bytes(std::string& text) {
    for (auto n = 1 + below(4); n > 0 && !text.empty(); --n) {
      auto const at = below(text.size());
      auto const count = std::min<std::uint64_t>(1 + below(below(8) == 0 ? 4000 : 8), text.size() - at);
      switch (below(5)) {
        case 0: text[at] = static_cast<char>(random_()); break;
        case 1: text[at] = "\"{}[]:, \\0-9n/="[below(14)]; break;
        case 2: text.erase(at, count); break;
        case 3: text.insert(at, text.substr(below(text.size()), count)); break;
        default: text.resize(at); break;
      }
    }
  }

  /// A value of the tree becomes another one.
  void tree(Json& json) {
    auto* at = &json;
    while ((at->is_object() || at->is_array()) && !at->empty() && below(6) != 0) {
      auto it = at->begin();
      std::advance(it, static_cast<std::ptrdiff_t>(below(std::min<std::uint64_t>(at->size(), 40))));
      at = &*it;
    }
    *at = value();
  }

private:
  Json value() {
    static std::vector<std::string> const types = {
        "BPE",       "Unigram", "Sequence", "ByteLevel", "Split",  "Digits",       "Metaspace", "NFC",  "NFKD",
        "Lowercase", "Prepend", "Replace",  "Fuse",      "Strip",  "ByteFallback", "Isolated",  "x",    "",
        "(a|b)*c",   "(?<=a)b", "[",        "\\p{L}+",   "(a*)*b", "\\x{110000}",  "a b",       "a b c"};
    static std::vector<std::int64_t> const numbers = {
        -1, 0, 1, 255, 65536, 16777216, 2147483647, 2147483648, 9223372036854775807, -9223372036854775807};
    switch (below(8)) {
      case 0: return nullptr;
      case 1: return below(2) == 0;
      case 2: return numbers[below(numbers.size())];
      case 3: return 1e300;
      case 4: return Json::array({types[below(types.size())], types[below(types.size())]});
      case 5: {
        Json out = {{"type", types[below(types.size())]}, {"pattern", {{"Regex", types[below(types.size())]}}}};
        out["content"] = types[below(types.size())];
        out["behavior"] = types[below(types.size())];
        out["normalizers"] = out["pretokenizers"] = out["decoders"] = Json::array({out, out});
        return out;
      }
      default: return types[below(types.size())];
    }
  }
  std::mt19937_64 random_;
};

/// "" when all is well.
std::string try_file(std::string const& path, bool& refused) {
  static std::vector<std::string> const texts = {"", "Hello, world's 123 \xc3\xa9\n\n  <|endoftext|>",
                                                 "\xff\xc3(\xe2\x82", std::string(3000, ' ') + "x",
                                                 std::string(3000, 'a')};
  try {
    auto const tokenizer = text::make_tokenizer(path, path.ends_with(".tiktoken") ? "gpt2" : "");
    for (auto const& text : texts) {
      for (bool special : {false, true}) {
        std::vector<std::int32_t> ids;
        tokenizer->encode(text, ids, special);
        for (auto id : ids) {
          if (id < 0 || id >= tokenizer->vocab_size()) return fmt::format("the id {}", id);
        }
        if (tokenizer->decode(ids).size() > 100 * text.size() + (1 << 16)) return "too much text";
      }
    }
    if (tokenizer->end_of_document() >= tokenizer->vocab_size()) return "an end of document that is no token";
  } catch (base::Error const& e) {
    refused = true;
    if (e.code() != base::ExitCode::bad_input) return fmt::format("not bad input: {}", e.what());
    if (e.text().where.find(path) == std::string::npos) return fmt::format("it does not name the file: {}", e.what());
    if (std::string_view(e.what()).size() > 3000) return "a message without end";
  } catch (std::exception const& e) {
    return fmt::format("another exception: {}", e.what());
  }
  return "";
}

int fuzz(std::uint64_t files, std::uint64_t seed, std::uint64_t first) {
  test::TempDir const folder;
  std::vector<std::string> names = {"gpt2.json", "llama3.json", "qwen2.json", "llama2.json", "ranks.tiktoken"};
#if P3D_SENTENCEPIECE
  names.insert(names.end(), {"bpe.model", "unigram.model"});
#endif
  std::map<std::string, std::string> good;
  for (auto const& name : names) good[name] = read(name);
  std::map<std::string, std::array<int, 2>> counts;
  std::size_t largest = 0, most = 0;
  int failures = 0;
  for (auto n = first; n < first + files; ++n) {
    Fuzz random(seed, n);
    auto const& name = names[random.below(names.size())];
    current = fmt::format("file {} of seed {}: {}\n", n, seed, name);
    auto text = good[name];
    if (name.ends_with(".json") && random.below(3) != 0) {
      auto json = Json::parse(text);
      for (auto changes = 1 + random.below(3); changes > 0; --changes) random.tree(json);
      text = json.dump();
    } else {
      random.bytes(text);
    }
    auto const path = folder.write(name, text);
    bool refused = false;
    count_allocations();
    auto wrong = try_file(path, refused);
    auto const used = stop_counting();
    largest = std::max(largest, used.largest), most = std::max(most, used.most);
    // A table of words is 2 MB in each thread, and ids may have gaps: tables of 65536 of them.
    if (used.largest > 40 * text.size() + (4 << 20)) wrong += fmt::format(" an allocation of {} bytes", used.largest);
    if (used.most > 100 * text.size() + (16 << 20)) wrong += fmt::format(" {} bytes held", used.most);
    ++counts[name][refused ? 0 : 1];
    if (wrong.empty()) continue;
    ++failures;
    std::printf("WRONG: %s       %s\n", current.c_str(), wrong.c_str());
  }
  fmt::print("{:<20} {:>8} {:>8}\n", "file", "refused", "read");
  for (auto const& [name, c] : counts) fmt::print("{:<20} {:>8} {:>8}\n", name, c[0], c[1]);
  fmt::print("{} files of seed {}: {} wrong; largest allocation {} bytes, {} held\n", files, seed, failures, largest,
             most);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace p3d::fuzz

int main(int argc, char** argv) { return p3d::fuzz::run_fuzz(argc, argv, 500, p3d::fuzz::fuzz); }
