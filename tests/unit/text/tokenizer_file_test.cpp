// SPDX-License-Identifier: Apache-2.0
// What tokenizers' files may ask for, and what is refused.
#include "long.hpp"

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/text/tokenizer.hpp>

#include <support/errors.hpp>
#include <support/temp_dir.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace {
using namespace p3d;
using text::make_tokenizer;
using test::tokenizer_file;
using Ids = std::vector<std::int32_t>;

/// A tokenizer.json of characters: a to z and space are 0 to 26, then what is given.
std::string json(std::string const& vocab, std::string const& merges, std::string const& others = "",
                 std::string const& model = "") {
  std::string letters;
  for (char c = 'a'; c <= 'z'; ++c) letters += std::string("\"") + c + "\":" + std::to_string(c - 'a') + ",";
  return R"({"model":{"type":"BPE",)" + model + R"("vocab":{)" + letters + R"(" ":26)" + (vocab.empty() ? "" : ",") +
         vocab + R"(},"merges":[)" + merges + "]}" + (others.empty() ? "" : ",") + others + "}";
}

class TokenizerFile : public testing::Test {
protected:
  Ids encode(std::string const& text, std::string_view input, bool special = false) {
    Ids out;
    make_tokenizer(dir_.write("tokenizer.json", text))->encode(input, out, special);
    return out;
  }
  void refused(std::string const& text, std::string_view words, std::string_view name = "tokenizer.json",
               std::string const& pattern = "") {
    auto const path = dir_.write(name, text);
    try {
      make_tokenizer(path, pattern);
      ADD_FAILURE() << "not refused: " << words;
    } catch (base::Error const& e) {
      EXPECT_NE(std::string_view(e.what()).find(words), std::string_view::npos) << words << "\n" << e.what();
      EXPECT_EQ(e.code(), base::ExitCode::bad_input);
      EXPECT_NE(e.text().where.find(path), std::string::npos) << e.what();
      EXPECT_FALSE(e.text().expected.empty() || e.text().found.empty() || e.text().fix.empty());
    }
  }
  test::TempDir dir_;
};

TEST_F(TokenizerFile, MergesGoByRankAndThenFromTheLeft) {
  auto const vocab = R"("ab":27,"bc":28,"aa":29,"abc":30)";
  EXPECT_EQ(encode(json(vocab, R"("b c","a b")"), "abc"), (Ids{0, 28}));
  EXPECT_EQ(encode(json(vocab, R"(["a","b"],["b","c"])"), "abc"), (Ids{27, 2}));
  EXPECT_EQ(encode(json(vocab, R"("a a")"), "aaaaa"), (Ids{29, 29, 0}));
  EXPECT_EQ(encode(json(vocab, R"("a b","ab c")"), "abcab"), (Ids{30, 27}));
  // A word that is a token is that token only where the file says so.
  auto const words = R"("pre_tokenizer":{"type":"Split","pattern":{"String":" "},"behavior":"Removed"})";
  EXPECT_EQ(encode(json(vocab, R"("b c")", words, R"("ignore_merges":true,)"), "abc abc"), (Ids{30, 30}));
  EXPECT_EQ(encode(json(vocab, R"("b c")", words), "abc abc"), (Ids{0, 28, 0, 28}));
}

TEST_F(TokenizerFile, UnknownCharacters) {
  EXPECT_EQ(encode(json("", ""), "a\xc3\xa9 b"), (Ids{0, 26, 1}));  // no token for them: left out
  EXPECT_EQ(encode(json(R"("?":27)", "", "", R"("unk_token":"?",)"), "a\xc3\xa9\xc3\xa9z"), (Ids{0, 27, 27, 25}));
  EXPECT_EQ(encode(json(R"("?":27)", "", "", R"("unk_token":"?","fuse_unk":true,)"), "a\xc3\xa9\xc3\xa9z"),
            (Ids{0, 27, 25}));
  EXPECT_EQ(encode(json(R"("<0xC3>":27,"<0xA9>":28)", "", "", R"("byte_fallback":true,)"), "a\xc3\xa9"),
            (Ids{0, 27, 28}));
}

TEST_F(TokenizerFile, SplitsByBehavior) {
  // Words are told apart by the merge that the cut forbids.
  auto const ids = [&](std::string const& behavior, std::string const& invert = "false") {
    return encode(json(R"("ax":27,"xb":28,"xx":29)", R"("a x","x b","x x")",
                       R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"x"},"behavior":")" + behavior +
                           R"(","invert":)" + invert + "}"),
                  "axxb");
  };
  EXPECT_EQ(ids("Isolated"), (Ids{0, 23, 23, 1}));
  EXPECT_EQ(ids("Removed"), (Ids{0, 1}));
  EXPECT_EQ(ids("Removed", "true"), (Ids{23, 23}));
  EXPECT_EQ(ids("Contiguous"), (Ids{0, 29, 1}));
  EXPECT_EQ(ids("MergedWithPrevious"), (Ids{27, 23, 1}));
  EXPECT_EQ(ids("MergedWithNext"), (Ids{0, 23, 28}));
  EXPECT_EQ(encode(json(R"("1":27,"2":28,"12":29)", R"("1 2")", R"("pre_tokenizer":{"type":"Digits"})"), "12"),
            (Ids{29}));
  EXPECT_EQ(encode(json(R"("1":27,"2":28,"12":29)", R"("1 2")",
                        R"("pre_tokenizer":{"type":"Digits","individual_digits":true})"),
                   "12"),
            (Ids{27, 28}));
}

TEST_F(TokenizerFile, MetaspaceAndNormalizers) {
  auto const ids = [&](std::string const& others, std::string_view text) {
    return encode(json(R"("_":27,"_a":28)", R"("_ a")", others), text);
  };
  auto const metaspace = [](std::string const& scheme) {
    return R"("pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":")" + scheme + "\"}";
  };
  EXPECT_EQ(ids(metaspace("always"), "a a"), (Ids{28, 28}));
  EXPECT_EQ(ids(metaspace("never"), "a a"), (Ids{0, 28}));
  EXPECT_EQ(ids(metaspace("first"), "a a"), (Ids{28, 28}));
  EXPECT_EQ(ids(R"("normalizer":{"type":"Lowercase"})", "AbC"), (Ids{0, 1, 2}));
  EXPECT_EQ(ids(R"("normalizer":{"type":"NFKC"})", "\xef\xbd\x81"), (Ids{0}));  // a full-width letter
  EXPECT_EQ(ids(R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},
            {"type":"Replace","pattern":{"String":" "},"content":"_"}]})",
                "a a"),
            (Ids{28, 28}));
}

TEST_F(TokenizerFile, AddedTokens) {
  auto const ids = [&](std::string const& flags, std::string_view text, bool special = true) {
    return encode(json("", "", R"("added_tokens":[{"id":27,"content":"<x>","special":true)" + flags + "}]"), text,
                  special);
  };
  EXPECT_EQ(ids("", "a<x>b"), (Ids{0, 27, 1}));
  EXPECT_EQ(ids("", "a<x>b", false), (Ids{0, 23, 1}));  // what has no token is left out
  EXPECT_EQ(ids(R"(,"lstrip":true)", "a  <x> b"), (Ids{0, 27, 26, 1}));
  EXPECT_EQ(ids(R"(,"rstrip":true)", "a <x>  b"), (Ids{0, 26, 27, 1}));
  EXPECT_EQ(ids(R"(,"single_word":true)", "a<x>"), (Ids{0, 23}));
  EXPECT_EQ(ids(R"(,"single_word":true)", "a <x> b"), (Ids{0, 26, 27, 26, 1}));
  // Not special: always found, the longest of those that begin at one place.
  auto const two = json("", "",
                        R"("added_tokens":[{"id":27,"content":"ab","normalized":false},
                        {"id":28,"content":"abc","normalized":false}])");
  EXPECT_EQ(encode(two, "abcab"), (Ids{28, 27}));
  auto const path = dir_.write("tokenizer.json", two);
  EXPECT_EQ(make_tokenizer(path)->find("abc"), 28);
  EXPECT_EQ(make_tokenizer(path)->find("c"), 2);
  EXPECT_EQ(make_tokenizer(path)->find("cd"), -1);
  EXPECT_EQ(make_tokenizer(path)->vocab_size(), 29);
}

// Numbers below are those of tokenizers 0.23.3 with the same descriptions.
TEST_F(TokenizerFile, PatternsMeanWhatTheyMeanToOniguruma) {
  auto const cut = [](std::string const& pattern, std::string const& behavior = "Isolated") {
    return R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":")" + pattern + R"("},"behavior":")" + behavior +
           "\"}";
  };
  // U+3002 is written in several scripts and belongs to none.
  auto const han = json(R"("\u6c49":27,"\u3002":28,"\u6c49\u3002":29)", R"("\u6c49 \u3002")", cut(R"([\\p{Han}]+)"));
  EXPECT_EQ(encode(han, "\xe6\xb1\x89\xe3\x80\x82"), (Ids{27, 28}));
  // A superscript belongs to a word, but not in a set.
  auto const square = [&](std::string const& pattern) {
    return encode(json(R"("\u00b2":27,"m\u00b2":28)", R"("m \u00b2")", cut(pattern)), "m\xc2\xb2");
  };
  EXPECT_EQ(square(R"(\\b)"), (Ids{28}));
  EXPECT_EQ(square(R"(\\w+)"), (Ids{28}));
  EXPECT_EQ(square(R"([\\w]+)"), (Ids{12, 27}));
  EXPECT_EQ(square(R"(\\W)"), (Ids{28}));
  EXPECT_EQ(encode(json("", "", cut("ax{,1}b", "Removed")), "axb"), (Ids{}));
  EXPECT_EQ(encode(json(R"("\n":27)", "", cut(R"(\\v)", "Removed")), "a\nb\v"), (Ids{0, 27, 1}));
  auto const lacks = [&](std::string const& pattern, std::string_view words) {
    refused(json("", "", cut(pattern)), words);
  };
  lacks("[[:punct:]]", "[:punct:]");
  lacks(R"(\\pL)", "\\p without braces");
  lacks("x{2}?", "{n}?");
  lacks(R"(\\xE4\\xB8)", "a byte that is no character");
  lacks("(?i)best", "(?i) and \"st\"");
  lacks(R"((?i)\u00df)", "several letters in another case");
  lacks(R"(\\p{Alphabetic})", "pattern.Regex");
  lacks(R"(\\Qa\\E)", "\\Q");
}

TEST_F(TokenizerFile, EmptyMatchesCount) {
  auto const replaced = [&](std::string const& pattern, std::string_view text) {
    return encode(json("", "", R"("normalizer":{"type":"Replace","pattern":)" + pattern + R"(,"content":"z"})"), text);
  };
  EXPECT_EQ(replaced(R"({"Regex":"^"})", "axxb"), (Ids{25, 0, 23, 23, 1}));
  EXPECT_EQ(replaced(R"({"Regex":"x*"})", "axxb"), (Ids{25, 0, 25, 1, 25}));
  EXPECT_EQ(replaced(R"({"Regex":"$"})", "axxb"), (Ids{0, 23, 23, 1, 25}));
  EXPECT_EQ(replaced("{\"Regex\":\"(?=x)\"}", "axxb"), (Ids{0, 25, 23, 25, 23, 1}));
  EXPECT_EQ(replaced(R"({"String":""})", "ab"), (Ids{25, 0, 25, 1, 25}));
  EXPECT_EQ(replaced(R"({"Regex":"^"})", ""), (Ids{}));
  auto const parts = [&](std::string const& behavior) {
    return encode(json(R"("ab":27)", R"("a b")",
                       R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"x?"},"behavior":")" + behavior + "\"}"),
                  "ab");
  };
  EXPECT_EQ(parts("Contiguous"), (Ids{0, 1}));
  EXPECT_EQ(parts("MergedWithPrevious"), (Ids{0, 1}));
}

TEST_F(TokenizerFile, NormalFormsAreThoseOfUnicode9) {
  auto const form = [](std::string const& name) { return R"("normalizer":{"type":")" + name + "\"}"; };
  EXPECT_EQ(encode(json(R"("\u32ff":27)", "", form("NFKC")), "\xe3\x8b\xbf"), (Ids{27}));  // a sign of 2019
  // A mark of 2021 keeps the marks around it apart, whose order would be another one.
  EXPECT_EQ(encode(json(R"("\u0301":27,"\u0898":28,"\u0323":29)", "", form("NFD")), "a\xcc\x81\xe0\xa2\x98\xcc\xa3"),
            (Ids{0, 27, 28, 29}));
}

TEST_F(TokenizerFile, AddedTokensMeet) {
  auto const tokens = [](std::string const& flags) {
    return R"("added_tokens":[{"id":27,"content":"<u>","normalized":false)" + flags +
           R"(},{"id":28,"content":"\n","normalized":false}])";
  };
  EXPECT_EQ(encode(json("", "", tokens(R"(,"rstrip":true)")), "a<u>\nb"), (Ids{0, 27, 28, 1}));
  // A token that takes the line end before it forbids to cut a text there.
  auto const cuts = [&](std::string const& content, std::string const& flags) {
    return make_tokenizer(dir_.write("tokenizer.json", json("", "",
                                                            R"("pre_tokenizer":{"type":"ByteLevel",
                            "add_prefix_space":false},"added_tokens":[{"id":27,"content":")" +
                                                                content + "\"" + flags + "}]")))
        ->cuts_at_lines();
  };
  EXPECT_TRUE(cuts("foo", ""));
  EXPECT_TRUE(cuts("<f>", R"(,"lstrip":true)"));
  EXPECT_FALSE(cuts("foo", R"(,"lstrip":true)"));
  refused(json("", "",
               R"("normalizer":{"type":"Lowercase"},"added_tokens":[{"id":27,"content":"AB","normalized":true},
               {"id":28,"content":"ab","normalized":true}])"),
          "tokens that the normalizer makes alike, 27 and 28");
}

TEST_F(TokenizerFile, EndOfDocument) {
  auto const with = [&](char const* name) {
    auto const text =
        json("", "", std::string(R"("added_tokens":[{"id":27,"content":")") + name + R"(","special":true}])");
    return make_tokenizer(dir_.write("tokenizer.json", text))->end_of_document();
  };
  EXPECT_EQ(with("<|endoftext|>"), 27);
  EXPECT_EQ(with("</s>"), 27);
  EXPECT_EQ(with("<|im_end|>"), -1);
  dir_.write("tokenizer_config.json", R"({"eos_token":{"content":"<|im_end|>"}})");
  EXPECT_EQ(with("<|im_end|>"), 27);
  dir_.write("tokenizer_config.json", R"({"eos_token":"b"})");
  EXPECT_EQ(with("</s>"), 1);
  constexpr std::int32_t stored = 5;
  auto const bytes = text::read_tokenizer_file(tokenizer_file("llama2.json"));
  EXPECT_EQ(text::parse_tokenizer(dir_ / "tokenizer.json", bytes, "", stored)->end_of_document(), stored)
      << "bytes from elsewhere have nothing beside them";
  EXPECT_EQ(text::parse_tokenizer(dir_ / "tokenizer.json", bytes, "", -1)->end_of_document(), -1);
  auto const path = dir_.write("tokenizer_config.json", R"({"eos_token":"<none>"})");
  test::expect_error([&] { with("</s>"); }, path + ": eos_token");
}

TEST_F(TokenizerFile, DecodersPutTextTogether) {
  auto const tokenizer = make_tokenizer(tokenizer_file("llama2.json"));
  auto const ids = tokenizer->encode("Hello w\xc3\xb6rld \xf0\x9f\x98\x80");
  EXPECT_EQ(tokenizer->decode(ids), "Hello w\xc3\xb6rld \xf0\x9f\x98\x80");
  std::string one_by_one;
  for (auto id : ids) tokenizer->decode(id, one_by_one);
  EXPECT_EQ(one_by_one, " Hello w\xc3\xb6rld \xf0\x9f\x98\x80");  // the space before the first word is Strip's
  std::string none;
  test::expect_error([&] { tokenizer->decode(100'000, none); }, "a token from 0 to ");
  test::expect_error([&] { tokenizer->decode(-1, none); }, "found:    -1");
}

TEST_F(TokenizerFile, WhatIsNotDoneIsNamed) {
  refused(R"({"model":{"type":"Unigram","vocab":[]}})", "asks for the model \"Unigram\", which p3d lacks");
  refused(R"({"model":{"type":"WordPiece","vocab":{}}})", "the model \"WordPiece\"");
  refused(json("", "", "", R"("dropout":0.1,)"), "asks for dropout");
  refused(json("", "", "", R"("continuing_subword_prefix":"##",)"), "continuing_subword_prefix \"##\"");
  refused(json("", "", "", R"("end_of_word_suffix":"</w>",)"), "end_of_word_suffix");
  refused(json("", "", R"("normalizer":{"type":"StripAccents"})"), "the normalizer \"StripAccents\"");
  refused(json("", "", R"("pre_tokenizer":{"type":"BertPreTokenizer"})"), "the pre-tokenizer \"BertPreTokenizer\"");
  refused(json("", "", R"("decoder":{"type":"CTC"})"), "the decoder \"CTC\"");
  refused(json("", "", R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"a{1,3}+"},"behavior":"Isolated"})"),
          "{n,m}+");
  refused(json("", "", R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"[a[bc]]"},"behavior":"Isolated"})"),
          "a set inside of a set");
  refused(json("", "", R"("decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},
               {"type":"Replace","pattern":{"String":"a"},"content":"b"}]})"),
          "the decoder \"Replace\" behind \"ByteFallback\"");
  auto const first = R"({"type":"Metaspace","replacement":"_","prepend_scheme":"first"})";
  auto const behind = [&](std::string const& step) {
    return R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)" + step + "," + first + "]}";
  };
  refused(json("", "", behind(R"({"type":"Digits"})") + R"(,"normalizer":{"type":"NFKD"})"), "the scheme \"first\"");
  refused(json("", "", behind(R"({"type":"Metaspace","replacement":"+"})")), "the scheme \"first\"");
}

TEST_F(TokenizerFile, WhatIsWrongIsPlaced) {
  refused("{", "JSON");
  refused(json("", "") + std::string(1, '\0') + "}", "a NUL at byte");
  refused(json("", "", R"("pre_tokenizer":{"type":"Metaspace","replacement":"_","add_prefix_space":false,
               "prepend_scheme":"always"})"),
          "the scheme \"never\"");
  refused("[]", "an array of 0");
  refused("{}", "with a \"model\"");
  refused(json("", R"("a b")"), "model.merges[0]");
  refused(json(R"("ab":27)", R"("a b","a b c")"), "model.merges[1]");
  refused(json(R"("ab":25)", ""), "25 twice");
  refused(json(R"("ab":-1)", ""), "model.vocab \"ab\"");
  refused(json(R"("ab":2000000000)", ""), "an id from 0 to ");
  refused(json("", "", "", R"("unk_token":"nothing",)"), "model.unk_token");
  refused(json("", "", R"("added_tokens":[{"id":3,"content":"x3"}])"), "added_tokens[0].id");
  refused(json("", "", R"("added_tokens":[{"id":28,"content":"x3"}])"), "the id 27, which follows");
  refused(json("", "", R"("added_tokens":[{"id":3,"content":"a"}])"), "the id 0 that the vocabulary gives \"a\"");
  refused(json("", "", R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})"),
          "pre_tokenizer.pattern.Regex");
  std::string deep = R"({"type":"NFC"})";
  for (int i = 0; i < 20; ++i) deep = R"({"type":"Sequence","normalizers":[)" + deep + "]}";
  refused(json("", "", R"("normalizer":)" + deep), "at most 8 sequences");
  refused("x", "another ending", "tokenizer.txt");
  test::expect_error([&] { make_tokenizer(dir_ / "none.json"); }, "none.json");
}

TEST_F(TokenizerFile, FilesOfRanks) {
  std::string bytes;
  for (auto const& line : test::lines_of(tokenizer_file("ranks.tiktoken"))) bytes += line + "\n";
  auto const path = dir_.write("ranks.tiktoken", bytes);
  auto const count = std::count(bytes.begin(), bytes.end(), '\n');
  auto const gpt2 = make_tokenizer(path, "gpt2"), llama3 = make_tokenizer(path, "llama3");
  EXPECT_EQ(gpt2->vocab_size(), count + 1);
  EXPECT_EQ(gpt2->end_of_document(), count);
  EXPECT_EQ(gpt2->find("<|endoftext|>"), count);
  EXPECT_EQ(llama3->vocab_size(), count + 256);
  EXPECT_EQ(llama3->find("<|end_of_text|>"), count + 1);
  EXPECT_EQ(llama3->find("<|eot_id|>"), count + 9);
  EXPECT_EQ(llama3->find("<|reserved_special_token_250|>"), count + 255);
  EXPECT_NE(gpt2->encode("DON'T"), llama3->encode("DON'T"));
  EXPECT_NE(gpt2->hash(), llama3->hash());  // the same file, other tokens
  refused(bytes, "nothing: the file does not say it", "ranks.tiktoken");
  refused(bytes, "\"gpt3\"", "ranks.tiktoken", "gpt3");
  refused(bytes + "YQ==\n", "ranks.tiktoken:" + std::to_string(count + 1), "ranks.tiktoken", "gpt2");
  refused(bytes + "Y?== 9999\n", "\"Y?== 9999\"", "ranks.tiktoken", "gpt2");
  refused(bytes + "YQ== 9999\n", "there twice", "ranks.tiktoken", "gpt2");
  refused(bytes + "enp6eg== 2000000000\n", "the rank 2000000000", "ranks.tiktoken", "gpt2");
  refused("YQ== 0\n", "each of the 256 bytes", "ranks.tiktoken", "gpt2");
}

TEST_F(TokenizerFile, TheVocabularyOfTheModel) {
  auto const tokenizer = make_tokenizer(tokenizer_file("gpt2.json"));  // of 1300
  EXPECT_EQ(text::require_vocabulary(*tokenizer, 1300), "");
  EXPECT_NE(text::require_vocabulary(*tokenizer, 1408).find("has 108 more than"), std::string::npos);
  for (int size : {1299, 1300 + 1025})
    test::expect_error([&] { text::require_vocabulary(*tokenizer, size); }, "a model of 1300 to 2324 tokens");
  auto const bytes = make_tokenizer("bytes");
  EXPECT_EQ(text::require_vocabulary(*bytes, 60), "");
  test::expect_error([&] { text::require_vocabulary(*bytes, 257); }, "a token of each byte");
}

}  // namespace
