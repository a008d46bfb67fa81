// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json of Hugging Face's tokenizers, model type BPE. A file asks for many things; each is either done
// exactly as the library does it, or refused by name ("tokenizer.json asks for X, which p3d lacks"), so that ids never
// differ silently. In byte-level files tokens are written in letters (byte_alphabet.hpp), which become bytes here.
// Example: the entry "\u0120the": 262 of "vocab" is the token " the" with the id 262.
#include "text/tokenizers/bpe_tokenizer.hpp"
#include "text/tokenizers/byte_alphabet.hpp"
#include "text/tokenizers/json_read.hpp"
#include "text/tokenizers/readers.hpp"
#include "text/tokenizers/refuse.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace p3d::text {

namespace {

/// Reads an id, which must be below a limit.
std::int32_t read_id(Json const& json, std::int64_t below, std::string const& where) {
  if (!json.is_number_integer() || json < 0 || json >= below)
    bad_tokenizer(fmt::format("an id from 0 to {}", below - 1), kind_of(json), where);
  return json.get<std::int32_t>();
}

/// The place of a token in the vocabulary, for messages.
std::string at(JsonObject const& object, std::string_view key) {
  return fmt::format("{}: {}.vocab \"{}\"", object.file, object.place, key.substr(0, 100));
}

/// Reads the vocabulary. With a byte-level model letters become bytes.
Vocabulary read_vocabulary(JsonObject const& model, bool byte_level) {
  auto const* const json = model.find("vocab");
  if (json == nullptr || !json->is_object())
    bad_tokenizer("an object of tokens and their ids", json ? kind_of(*json) : "nothing", model.where("vocab"));
  auto const limit = static_cast<std::int64_t>(json->size()) + largest_id_gap;
  std::int32_t last = -1;
  for (auto const& [token, id] : json->items()) last = std::max(last, read_id(id, limit, at(model, token)));
  Vocabulary out(json->size(), static_cast<std::size_t>(last) + 1);
  for (auto const& [token, id] : json->items()) {
    auto const bytes = byte_level ? bytes_of_letters(token) : token;
    bool const added =
        bytes ? out.add(id.get<std::int32_t>(), *bytes) : out.add_unfindable(id.get<std::int32_t>(), token);
    if (!added) bad_tokenizer("an id for each token", fmt::format("{} twice", id.dump()), at(model, token));
  }
  return out;
}

/// The two tokens of a merge, as the file writes them.
template <class Where>
std::pair<std::string_view, std::string_view> read_pair(Json const& json, Where const& where) {
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string())
    return {json[0].get_ref<std::string const&>(), json[1].get_ref<std::string const&>()};
  if (json.is_string()) {
    std::string_view const text = json.get_ref<std::string const&>();
    auto const space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  bad_tokenizer("two tokens, as \"a b\" or [\"a\", \"b\"]", kind_of(json), where());
}

/// Reads the merges, whose ranks are their places in the list.
Merges read_merges(JsonObject const& model, Vocabulary const& vocabulary, bool byte_level) {
  auto const& list = model.array("merges");
  Merges out(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto const where = [&] { return fmt::format("{}: {}.merges[{}]", model.file, model.place, i); };
    auto const [left, right] = read_pair(list[i], where);
    std::array<std::int32_t, 3> ids{};
    std::string const whole = std::string(left) + std::string(right);
    std::array<std::string_view, 3> const texts{left, right, whole};
    for (std::size_t k = 0; k < 3; ++k) {
      auto const bytes = byte_level ? bytes_of_letters(texts[k]) : std::string(texts[k]);
      ids[k] = bytes ? vocabulary.find(*bytes) : -1;
      if (ids[k] < 0)
        bad_tokenizer("tokens of the vocabulary", fmt::format("\"{}\"", texts[k].substr(0, 100)), where());
    }
    out.set(ids[0], ids[1], {static_cast<std::uint32_t>(i), ids[2]});
  }
  return out;
}

/// Reads the model: vocabulary, merges and options.
Bpe read_model(JsonObject const& model, bool byte_level) {
  if (auto const type = model.optional_text("type"); type && *type != "BPE")
    lacks(model.file, model.where("type"), fmt::format("the model \"{}\"", *type));
  if (auto const* const dropout = model.find("dropout"); dropout && *dropout != 0.0)
    lacks(model.file, model.place + ".dropout", "dropout");
  for (char const* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (auto const text = model.optional_text(key); text && !text->empty())
      lacks(model.file, fmt::format("{}.{}", model.place, key), fmt::format("{} \"{}\"", key, *text));
  }
  auto vocabulary = read_vocabulary(model, byte_level);
  auto merges = read_merges(model, vocabulary, byte_level);
  Bpe out{.vocabulary = std::move(vocabulary),
          .merges = std::move(merges),
          .byte_level = byte_level,
          .whole_words = model.flag("ignore_merges", false),
          .fuse_unknown = model.flag("fuse_unk", false),
          .byte_fallback = model.flag("byte_fallback", false)};
  out.prepare();
  if (auto const unknown = model.optional_text("unk_token")) {
    auto const& json = *model.find("vocab");
    auto const found = json.find(*unknown);
    if (found == json.end())
      bad_tokenizer("a token of the vocabulary", fmt::format("\"{}\"", *unknown), model.where("unk_token"));
    out.unknown = found->get<std::int32_t>();
  }
  bool const all_bytes = std::count(out.of_byte.begin(), out.of_byte.end(), -1) == 0;
  if (byte_level && out.byte_fallback && !all_bytes)
    lacks(model.file, model.place + ".byte_fallback", "byte_fallback of a byte-level model without all bytes");
  return out;
}

/// Reads the added tokens, and checks that their ids are those that the library would give.
std::vector<AddedToken> read_added(JsonObject const& file, Json const& vocab) {
  std::vector<AddedToken> out;
  auto const* const list = file.find("added_tokens");
  if (list == nullptr) return out;
  if (!list->is_array()) bad_tokenizer("an array", kind_of(*list), file.where("added_tokens"));
  auto const limit = static_cast<std::int64_t>(vocab.size() + list->size()) + largest_id_gap;
  std::set<std::int32_t> ids;
  std::set<std::string> contents;
  std::set<std::int32_t> taken;
  for (auto const& [token, id] : vocab.items()) taken.insert(id.get<std::int32_t>());
  std::int32_t next = static_cast<std::int32_t>(vocab.size());
  for (std::size_t i = 0; i < list->size(); ++i) {
    JsonObject const t((*list)[i], file.file, fmt::format("added_tokens[{}]", i));
    AddedToken token;
    token.content = t.text("content");
    auto const* const id = t.find("id");
    token.id = read_id(id ? *id : Json(), limit, t.where("id"));
    token.special = t.flag("special", false);
    token.single_word = t.flag("single_word", false);
    token.lstrip = t.flag("lstrip", false);
    token.rstrip = t.flag("rstrip", false);
    token.normalized = t.flag("normalized", !token.special);
    auto const known = vocab.find(token.content);
    if (known != vocab.end() && *known != token.id)
      bad_tokenizer(fmt::format("the id {} that the vocabulary gives \"{}\"", known->dump(), token.content),
                    fmt::format("{}", token.id), t.where("id"));
    // The library itself numbers the tokens that the vocabulary lacks, whatever the file says.
    if (known == vocab.end() && token.id != next)
      bad_tokenizer(fmt::format("the id {}, which follows from the vocabulary and the tokens before", next),
                    fmt::format("{}", token.id), t.where("id"));
    bool const twice = !ids.insert(token.id).second || !contents.insert(token.content).second;
    if (twice || (known == vocab.end() && taken.contains(token.id)))
      bad_tokenizer("an id of its own for each token", fmt::format("{}, which another token has", token.id),
                    t.where("id"));
    if (token.id >= next) next = token.id + 1;
    out.push_back(std::move(token));
  }
  return out;
}

/// Stops where the normalizer makes added tokens alike: the library chooses one of them by chance.
void require_different(std::vector<AddedToken> const& added, Normalizer const& normalizer, std::string const& path) {
  std::map<std::string, std::int32_t> seen;
  for (auto const& token : added) {
    if (!token.normalized) continue;
    auto const [other, is_new] = seen.emplace(normalizer(token.content), token.id);
    if (!is_new)
      lacks(path, "added_tokens",
            fmt::format("tokens that the normalizer makes alike, {} and {}", other->second, token.id));
  }
}

/// Finds the token that ends a document: the one that tokenizer_config.json beside the file names, or else one of the
/// usual names.
std::int32_t find_end(std::string const& path, std::vector<AddedToken> const& added, Vocabulary const& vocabulary) {
  auto const id_of = [&](std::string_view content) {
    auto const t = std::find_if(added.begin(), added.end(), [&](auto const& a) { return a.content == content; });
    return t == added.end() ? -1 : t->id;
  };
  auto const beside = (std::filesystem::path(path).parent_path() / "tokenizer_config.json").string();
  std::error_code ignored;
  if (std::filesystem::is_regular_file(beside, ignored)) {
    auto const json = parse_json(read_tokenizer_file(beside), beside);
    JsonObject const object(json, beside, "");
    if (auto const* const end = object.find("eos_token"); end != nullptr && !end->is_null()) {
      auto const text =
          end->is_object() ? JsonObject(*end, beside, "eos_token").text("content") : *object.optional_text("eos_token");
      auto id = id_of(text);
      if (id < 0) id = vocabulary.find(text);
      if (id < 0)
        bad_tokenizer(fmt::format("a token of {}", path), fmt::format("\"{}\"", text), object.where("eos_token"));
      return id;
    }
  }
  for (char const* name : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    auto const t = std::find_if(added.begin(), added.end(), [&](auto const& a) { return a.content == name; });
    if (t != added.end() && t->special) return t->id;
  }
  return -1;
}

}  // namespace

std::unique_ptr<Tokenizer> read_hugging_face(std::string const& path, std::string const& text,
                                             std::optional<std::int32_t> known_end) {
  auto const json = parse_json(text, path);
  JsonObject const file(json, path, "");
  auto const* const model_json = file.find("model");
  if (model_json == nullptr) bad_tokenizer("a tokenizer.json of Hugging Face, with a \"model\"", "none", path);
  JsonObject const model(*model_json, path, "model");
  auto const part = [&](char const* key) { return json.value(key, Json()); };
  if (auto const type = model.optional_text("type"); type && *type != "BPE")
    lacks(path, "model.type", fmt::format("the model \"{}\"", *type));
  PreTokenizer pre_tokenizer(part("pre_tokenizer"), path, "pre_tokenizer");
  bool const byte_level = pre_tokenizer.byte_level();
  if (pre_tokenizer.first_is_by_place() && !part("normalizer").is_null())
    lacks(path, "pre_tokenizer", "the scheme \"first\" behind another step, with a normalizer");
  auto bpe = read_model(model, byte_level);
  auto added = read_added(file, *model.find("vocab"));
  Normalizer normalizer(part("normalizer"), path, "normalizer");
  require_different(added, normalizer, path);
  auto const end = known_end ? *known_end : find_end(path, added, bpe.vocabulary);
  return make_bpe_tokenizer({.model = std::move(bpe),
                             .normalizer = std::move(normalizer),
                             .pre_tokenizer = std::move(pre_tokenizer),
                             .decoder = Decoder(part("decoder"), byte_level, path, "decoder"),
                             .added = std::move(added),
                             .end_of_document = end,
                             .name = std::filesystem::path(path).filename().string(),
                             .hash = XXH64(text.data(), text.size(), 0)});
}

}  // namespace p3d::text
