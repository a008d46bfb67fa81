// SPDX-License-Identifier: Apache-2.0
// Training of byte-level BPE, and the tokenizer.json that it gives. All words of the text are counted first; the loop
// then works on different words only. Example: from "low low lower" the pair (l, o), which occurs three times, becomes
// the token "lo", then (lo, w) the token "low".
#include <p3d/text/bpe_trainer.hpp>

#include "text/corpus/documents.hpp"
#include "text/output_file.hpp"
#include "text/tokenizers/byte_alphabet.hpp"
#include "text/tokenizers/pair_counts.hpp"
#include "text/tokenizers/patterns.hpp"
#include "text/tokenizers/pre_tokenizer.hpp"
#include "text/tokenizers/utf8.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>

namespace p3d::text {

namespace {

/// The hash of a word, which also finds string views.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return XXH3_64bits(text.data(), text.size()); }
};
using WordCounts = std::unordered_map<std::string, std::int64_t, TextHash, std::equal_to<>>;

/// Counts the words of all documents.
WordCounts count_words(BpeTraining const& training, SplitPattern const& pattern, std::vector<std::string>& left_out) {
  PreTokenizer const split(Regex(pattern.text, RegexSyntax::oniguruma, "--pattern"), pattern.text);
  WordCounts out;
  auto const take = [&](DocumentPiece const& piece) {
    std::string valid;
    std::vector<Replaced> replaced;
    replace_invalid(piece.text, valid, replaced);
    split.split(valid, true, [&](Piece const& word) {
      auto const found = out.find(word.text);
      found != out.end() ? ++found->second : out.emplace(word.text, 1).first->second;
    });
  };
  for (auto const& file : find_corpus(training.inputs, left_out)) {
    read_documents(file, {0, 0, file.bytes}, {.json_key = training.json_key, .cuts = split.cuts_at_lines()}, take,
                   [](std::int64_t) {});
  }
  return out;
}

/// The state of a training: tokens as letters, by id, and the merges so far.
class Training {
public:
  explicit Training(BpeTraining const& options) : options_(options) {
    for (auto const& token : options.special) {
      if (!token.empty()) add(token);
    }
    special_ = tokens_.size();
    std::array<unsigned char, 256> bytes{};
    for (unsigned b = 0; b < 256; ++b) bytes[b] = static_cast<unsigned char>(b);
    std::sort(bytes.begin(), bytes.end(),
              [](auto a, auto b) { return utf8_at(letter_of_byte(a), 0).code < utf8_at(letter_of_byte(b), 0).code; });
    for (auto byte : bytes) of_byte_[byte] = add(std::string(letter_of_byte(byte)));
  }

  std::int64_t tokens() const { return std::ssize(tokens_); }
  std::int64_t merges() const { return std::ssize(merges_); }

  void run(WordCounts const& counted) {
    // Words are sorted, so that nothing depends on the order of a hash table.
    std::vector<std::pair<std::string_view, std::int64_t>> sorted(counted.begin(), counted.end());
    std::sort(sorted.begin(), sorted.end());
    std::vector<CountedWord> words;
    words.reserve(sorted.size());
    for (auto const& [text, count] : sorted) {
      CountedWord word{{}, count};
      for (char const c : text) word.symbols.push_back(of_byte_[static_cast<unsigned char>(c)]);
      words.push_back(std::move(word));
    }
    PairCounts pairs(std::move(words));
    while (tokens() < options_.vocab_size) {
      auto const pair = pairs.take();
      if (pair.count < std::max<std::int64_t>(1, options_.min_frequency)) break;
      auto const merged =
          add(tokens_[static_cast<std::size_t>(pair.left)] + tokens_[static_cast<std::size_t>(pair.right)]);
      // A pair that is merged once more gets its later rank, as a reader of the file understands it.
      ranks_[{pair.left, pair.right}] = merges_.size();
      merges_.emplace_back(pair.left, pair.right);
      pairs.merge(pair, merged);
    }
  }

  /// Writes tokenizer.json in the form that Hugging Face's tokenizers read.
  void write(SplitPattern const& pattern) const {
    OutputFile file(options_.out);
    auto const put = [&](std::string const& text) { file.write(text.data(), text.size()); };
    auto const quoted = [](std::string const& text) { return nlohmann::json(text).dump(); };
    put(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)");
    for (std::size_t i = 0; i < special_; ++i) {
      put(
          fmt::format("{}{{\"id\":{},\"content\":{},\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                      "\"normalized\":false,\"special\":true}}",
                      i == 0 ? "" : ",", i, quoted(tokens_[i])));
    }
    auto const bytes = [](bool regex) {
      return fmt::format("{{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":{}}}",
                         regex);
    };
    put(R"(],"normalizer":null,"pre_tokenizer":)");
    bool const own = std::string_view(pattern.name) != "gpt2";
    if (own) {
      put(
          fmt::format("{{\"type\":\"Sequence\",\"pretokenizers\":[{{\"type\":\"Split\",\"pattern\":{{\"Regex\":{}}},"
                      "\"behavior\":\"Isolated\",\"invert\":false}},",
                      quoted(pattern.text)));
    }
    put(bytes(!own) + (own ? "]}" : ""));
    put(R"(,"post_processor":null,"decoder":)" + bytes(true));
    put(R"(,"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
        R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{)");
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      put(fmt::format("{}{}:{}", i == 0 ? "" : ",", quoted(tokens_[i]), i));
    put(R"(},"merges":[)");
    bool first = true;
    for (std::size_t i = 0; i < merges_.size(); ++i) {
      auto const [left, right] = merges_[i];
      if (ranks_.at(merges_[i]) != i) continue;
      put(fmt::format("{}[{},{}]", std::exchange(first, false) ? "" : ",",
                      quoted(tokens_[static_cast<std::size_t>(left)]),
                      quoted(tokens_[static_cast<std::size_t>(right)])));
    }
    put("]}}");
    file.finish();
  }

private:
  /// The id of a token; a new one unless another pair gave the same text.
  std::int32_t add(std::string const& token) {
    auto const [place, fresh] = ids_.try_emplace(token, static_cast<std::int32_t>(tokens_.size()));
    if (fresh) tokens_.push_back(token);
    return place->second;
  }

  BpeTraining const& options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::pair<std::int32_t, std::int32_t>> merges_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks_;
  std::array<std::int32_t, 256> of_byte_{};
  std::size_t special_ = 0;
};

}  // namespace

BpeTrained train_bpe(BpeTraining const& training) {
  auto const refuse = [](std::string expected, std::string found, std::string fix) {
    base::refuse(
        {.expected = std::move(expected), .found = std::move(found), .where = "command line", .fix = std::move(fix)});
  };
  auto const* const pattern = find_split_pattern(training.pattern);
  if (pattern == nullptr) {
    refuse("a pattern: one of " + split_pattern_names(), fmt::format("\"{}\"", training.pattern),
           "give one of these to --pattern");
  }
  Training state(training);
  if (state.tokens() > training.vocab_size) {
    refuse(fmt::format("--vocab-size of at least {}: 256 bytes and the special tokens", state.tokens()),
           fmt::format("{}", training.vocab_size), "raise it");
  }
  BpeTrained out;
  auto const words = count_words(training, *pattern, out.left_out);
  for (auto const& [word, count] : words) out.words += count;
  if (words.empty()) refuse("text to learn from", "none in " + base::join(training.inputs), "name files with text");
  state.run(words);
  state.write(*pattern);
  out.different_words = std::ssize(words);
  out.tokens = state.tokens();
  out.merges = state.merges();
  return out;
}

}  // namespace p3d::text
