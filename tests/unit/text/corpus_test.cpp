// SPDX-License-Identifier: Apache-2.0
// From text files to a dataset.
#include "text/corpus/documents.hpp"
#include "text/corpus/json_text.hpp"
#include "long.hpp"

#include <p3d/base/error.hpp>
#include <p3d/text/bpe_trainer.hpp>
#include <p3d/text/indexed_dataset_writer.hpp>
#include <p3d/text/tokenize.hpp>
#include <p3d/text/tokenizer.hpp>

#include <support/errors.hpp>
#include <support/temp_dir.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace {
using namespace p3d;
namespace fs = std::filesystem;

std::string bytes_of(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<char const*>(&value), sizeof value);
}

/// An index as the format is described, of documents with so many tokens.
std::string index_of(std::vector<int> const& documents, int type, int bytes) {
  std::string out("MMIDIDX\0\0", 9), lengths, offsets, starts;
  std::int64_t sequences = 0, offset = 0;
  put(starts, std::int64_t{0});
  for (int n : documents) {
    if (n > 0) {
      put(lengths, n);
      put(offsets, offset);
      ++sequences;
    }
    offset += n * bytes;
    put(starts, sequences);
  }
  put(out, std::uint64_t{1});
  put(out, static_cast<std::uint8_t>(type));
  put(out, sequences);
  put(out, static_cast<std::int64_t>(documents.size() + 1));
  return out + lengths + offsets + starts;
}

TEST(IndexedDatasetWriter, WritesTheFormat) {
  test::TempDir const dir;
  for (auto const type : {text::TokenType::u16, text::TokenType::i32}) {
    fs::remove(dir / "set.bin");
    text::IndexedDatasetWriter writer(dir / "set", type);
    writer.add_document(std::vector<std::int32_t>{1, 2, 65535});
    writer.add_document({});
    writer.add_document(std::vector<std::int32_t>{7});
    EXPECT_FALSE(fs::exists(dir / "set.bin"));
    auto const counts = writer.finish();
    EXPECT_EQ(counts.documents, 3);
    EXPECT_EQ(counts.sequences, 2);
    EXPECT_EQ(counts.tokens, 4);
    bool const narrow = type == text::TokenType::u16;
    EXPECT_EQ(bytes_of(dir / "set.idx"), index_of({3, 0, 1}, narrow ? 8 : 4, narrow ? 2 : 4));
    std::string tokens;
    for (int t : {1, 2, 65535, 7}) narrow ? put(tokens, static_cast<std::uint16_t>(t)) : put(tokens, t);
    EXPECT_EQ(bytes_of(dir / "set.bin"), tokens);
  }
  text::IndexedDatasetWriter narrow(dir / "narrow", text::TokenType::u16);
  test::expect_error([&] { narrow.add_document(std::vector<std::int32_t>{65536}); }, "65536");
  EXPECT_EQ(text::token_type(65499), text::TokenType::u16);
  EXPECT_EQ(text::token_type(65500), text::TokenType::i32);
}

TEST(Corpus, JsonTexts) {
  std::string text;
  auto const read = [&](std::string_view line) { return text::read_json_text(line, "text", text); };
  EXPECT_EQ(read(R"({"a":{"text":"no"},"text":"y\u00e9s\n","b":[1,{"text":2}]})"), "");
  EXPECT_EQ(text, "y\xc3\xa9s\n");
  EXPECT_EQ(read(R"({"Text":"x"})"), "no key \"text\"");
  EXPECT_EQ(read(std::string(R"({"text":"x"})") + std::string(1, char{}) + R"({"text":"y"})"), "a NUL at byte 13");
  EXPECT_NE(read(R"({"text":5})").find("a number instead of a string"), std::string::npos);
  EXPECT_NE(read(R"(["text"])").find("an array instead of an object"), std::string::npos);
  EXPECT_NE(read(R"({"text":"x")").find("column 12"), std::string::npos) << read(R"({"text":"x")");
  EXPECT_NE(read("{\"text\":\"\xff\"}"), "");
}

/// The pieces of all segments of a file that is divided at the given places.
std::vector<std::string> pieces(text::CorpusFile const& file, std::vector<std::int64_t> const& cuts, bool whole) {
  std::vector<std::string> out;
  int open = 0;
  std::int64_t begin = 0;
  for (auto end : cuts) {
    text::read_documents(
        file, {0, begin, end}, {.cuts = !whole},
        [&](text::DocumentPiece const& p) {
          EXPECT_EQ(p.first, open == 0);
          open += p.first ? 1 : 0;
          open -= p.last ? 1 : 0;
          p.first ? out.emplace_back(p.text) : out.back().append(p.text);
        },
        [](std::int64_t) {});
    begin = end;
  }
  EXPECT_EQ(open, 0);
  return out;
}

TEST(Corpus, EverySegmentationHasTheSameDocuments) {
  test::TempDir const dir;
  std::string const lines = "{\"text\":\"one\"}\n\n{\"text\":\"\"}\r\n{\"text\":\"three\"}";
  auto const json = dir.write("a.jsonl", lines);
  auto const size = std::ssize(lines);
  for (std::int64_t a = 1; a < size; ++a) {
    for (std::int64_t b = a; b < size; b += 3)
      EXPECT_EQ(pieces({json, size, 0, true}, {a, b, size}, false), (std::vector<std::string>{"one", "", "three"}));
  }
  std::string const text = "a line\nB is next \nno cut\n\nhere\nand\nthere";
  auto const path = dir.write("b.txt", text);
  auto const length = std::ssize(text);
  for (std::int64_t a = 1; a < length; ++a) {
    for (std::int64_t b = a; b <= length; ++b)
      EXPECT_EQ(pieces({path, length, 0, false}, {a, b, length}, false), std::vector<std::string>{text})
          << a << " " << b;
  }
  EXPECT_EQ(text::first_cut(text, 0), 7u);
  EXPECT_EQ(text::first_cut(text, 8), 35u - 4u) << "not after white space";
}

TEST(Corpus, TextIsCutOnlyWhereNoTokenSeesIt) {
  auto const text = test::draw_text(5, 200'000) + "\nx\nA\n\nB c\n d!\nE\r\nF\nG";
  for (auto const& [file, pattern] : std::vector<std::pair<char const*, char const*>>{{"gpt2.json", ""},
                                                                                      {"llama3.json", ""},
                                                                                      {"qwen2.json", ""},
                                                                                      {"ranks.tiktoken", "cl100k"},
                                                                                      {"ranks.tiktoken", "o200k"},
                                                                                      {"ranks.tiktoken", "llama3"}}) {
    auto const tokenizer = text::make_tokenizer(test::tokenizer_file(file), pattern);
    ASSERT_TRUE(tokenizer->cuts_at_lines()) << file;
    std::vector<std::int32_t> ids;
    int cuts = 0;
    for (std::size_t at = 0; at < text.size(); ++cuts) {
      auto const end = std::min(text::first_cut(text, at + 2), text.size());
      tokenizer->encode(std::string_view(text).substr(at, end - at), ids);
      at = end;
    }
    EXPECT_GT(cuts, 20);
    EXPECT_EQ(ids, tokenizer->encode(text)) << file << " " << pattern;
  }
  EXPECT_FALSE(text::make_tokenizer(test::tokenizer_file("llama2.json"))->cuts_at_lines());
}

text::TokenizeSummary tokenize(text::TokenizeOptions const& options, int ranks, int threads) {
  std::vector<std::unique_ptr<text::TokenizeJob>> jobs;
  for (int r = 0; r < ranks; ++r) jobs.push_back(std::make_unique<text::TokenizeJob>(options));
  jobs[0]->prepare();
  for (int r = 0; r < ranks; ++r) jobs[static_cast<std::size_t>(r)]->start(r, ranks, threads);
  for (auto const& job : jobs) {
    while (!job->wait(10.0)) {
    }
    job->finish_parts();
  }
  return jobs[0]->join();
}

/// Text without control characters, with which it would pass for a binary file, and be left out of a folder.
std::string draw_plain_text(std::uint64_t seed, std::size_t size) {
  auto text = test::draw_text(seed, size);
  auto const control = [](unsigned char c) { return c < 0x20 && c != '\n'; };
  std::replace_if(text.begin(), text.end(), control, ' ');
  return text;
}

TEST(Tokenize, TheSameBytesForAnyRanksAndThreads) {
  test::TempDir const dir;
  std::string lines;
  auto const text = draw_plain_text(21, 3'000'000);
  for (int i = 0; i < 400; ++i) lines += "{\"text\":\"line " + std::to_string(i) + "\"}\n";
  dir.write("in/a.jsonl", lines);
  dir.write("in/b.txt", text);
  dir.write("in/c.txt", "");
  dir.write("in/d.txt", "last");
  text::TokenizeOptions options{.inputs = {dir / "in"}, .tokenizer = test::tokenizer_file("gpt2.json")};
  // What one thread makes of one document after the other.
  auto const tokenizer = text::make_tokenizer(options.tokenizer);
  text::IndexedDatasetWriter expected(dir / "expected", text::TokenType::u16);
  auto const add = [&](std::string const& document) {
    auto ids = tokenizer->encode(document);
    if (!ids.empty()) ids.push_back(0);
    expected.add_document(ids);
  };
  for (int i = 0; i < 400; ++i) add("line " + std::to_string(i));
  add(text);
  add("");
  add("last");
  expected.finish();
  for (auto const& [ranks, threads] : std::vector<std::pair<int, int>>{{1, 1}, {1, 4}, {3, 2}}) {
    options.prefix = dir / ("out" + std::to_string(ranks) + std::to_string(threads));
    auto const summary = tokenize(options, ranks, threads);
    EXPECT_EQ(summary.documents, 403);
    EXPECT_EQ(summary.empty, 1);
    EXPECT_EQ(bytes_of(options.prefix + ".bin"), bytes_of(dir / "expected.bin")) << ranks << " " << threads;
    EXPECT_EQ(bytes_of(options.prefix + ".idx"), bytes_of(dir / "expected.idx")) << ranks << " " << threads;
    EXPECT_FALSE(fs::exists(options.prefix + ".parts"));
  }
}

TEST(Tokenize, WhatIsDoneStaysDone) {
  test::TempDir const dir;
  auto const text = draw_plain_text(22, 2'500'000);
  auto const input = dir.write("a.txt", text);
  text::TokenizeOptions const options{
      .inputs = {input}, .prefix = dir / "out", .tokenizer = test::tokenizer_file("llama3.json")};
  {
    text::TokenizeJob job(options);
    EXPECT_EQ(job.parts(), 3);
    EXPECT_EQ(job.prepare(), "");
    job.start(1, 2, 1);  // as the second of two ranks: part 1 alone
    while (!job.wait(10.0)) {
    }
    test::expect_error([&] { text::TokenizeJob(options).prepare(); }, "no other process");
    test::expect_error([&] { job.join(); }, "no whole part 0");
  }
  EXPECT_FALSE(fs::exists(dir / "out.bin"));
  auto const time = fs::last_write_time(dir / "out.parts/000001.bin");
  {
    text::TokenizeJob job(options);
    EXPECT_EQ(job.prepare(), "going on: 1 of 3 parts are done");
    job.start(0, 1, 2);
    EXPECT_EQ(job.done_before(), 1 << 20);
    while (!job.wait(10.0)) {
    }
    job.finish_parts();
    EXPECT_EQ(fs::last_write_time(dir / "out.parts/000001.bin"), time);
    job.join();
  }
  std::vector<std::int32_t> const ids = text::make_tokenizer(options.tokenizer)->encode(text);
  EXPECT_EQ(fs::file_size(dir / "out.bin"), 2 * (ids.size() + 1));
  test::expect_error([&] { text::TokenizeJob(options).prepare(); }, "a dataset that is not there yet");
  // Another tokenizer, and half of the work of an older one.
  auto other = options;
  other.prefix = dir / "other";
  text::TokenizeJob(other).prepare();
  other.tokenizer = "bytes";
  EXPECT_NE(text::TokenizeJob(other).prepare().find("starting over"), std::string::npos);
}

TEST(Tokenize, RefusesWhatIsWrong) {
  test::TempDir const dir;
  text::TokenizeOptions options{.inputs = {dir.write("a.jsonl", "{\"text\":\"x\"}\n{\"txt\":\"y\"}\n")},
                                .prefix = dir / "out"};
  test::expect_error([&] { tokenize(options, 1, 1); }, "a.jsonl:2");
  options.inputs = {dir.write("b.txt.gz", "this is no gzip")};
  test::expect_error([&] { tokenize(options, 1, 1); }, "b.txt.gz");
  options.inputs = {dir.write("c.txt.zst", "this is no zstd")};
  test::expect_error([&] { tokenize(options, 1, 1); }, "c.txt.zst");
  options.inputs = {dir.write("empty.txt", "")};
  test::expect_error([&] { tokenize(options, 1, 1); }, "none in 1 file");
  options.end_of_document = true;
  test::expect_error([&] { text::TokenizeJob job(options); }, "leave out --append-eod");
  options.end_of_document = {};
  options.inputs = {dir / "nothing"};
  test::expect_error([&] { text::TokenizeJob job(options); }, "command line");
}

TEST(BpeTrainer, LearnsTheMostFrequentPairs) {
  test::TempDir const dir;
  text::BpeTraining training{
      .inputs = {dir.write("a.txt", "abab abab abab cd cd x")}, .out = dir / "t.json", .vocab_size = 256 + 1 + 4};
  auto const trained = text::train_bpe(training);
  EXPECT_EQ(trained.tokens, 261);
  EXPECT_EQ(trained.merges, 4);
  EXPECT_EQ(trained.words, 6);
  auto const tokenizer = text::make_tokenizer(training.out);
  EXPECT_EQ(tokenizer->end_of_document(), 0);
  // a b occurs 6 times, ab ab 3 times; then c d, which has smaller ids than the space before; then " abab".
  EXPECT_EQ(tokenizer->encode("abab"), std::vector<std::int32_t>{258});
  EXPECT_EQ(tokenizer->encode(" abab"), std::vector<std::int32_t>{260});
  EXPECT_EQ(tokenizer->encode("cd"), std::vector<std::int32_t>{259});
  training.min_frequency = 4;
  EXPECT_EQ(text::train_bpe(training).merges, 1);
  training.vocab_size = 256;
  test::expect_error([&] { text::train_bpe(training); }, "at least 257");
  training.vocab_size = 300;
  training.pattern = "gpt5";
  test::expect_error([&] { text::train_bpe(training); }, "\"gpt5\"");
}

// The merges of gpt2.json and llama3.json are those of Hugging Face's trainer, on the same text.
TEST(BpeTrainer, LearnsWhatTheReferenceLearns) {
  test::TempDir const dir;
  auto const text = test::draw_text(3, 400'000);
  std::string lines;
  std::size_t at = 0;
  // Pieces of 2000 characters, as make_tokenizers.py takes them.
  while (at < text.size()) {
    auto end = at;
    for (int n = 0; n < 2000 && end < text.size(); ++n) {
      ++end;
      while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) ++end;
    }
    std::string json;
    for (auto const c : text.substr(at, end - at)) {
      auto const u = static_cast<unsigned char>(c);
      constexpr char const* digits = "0123456789abcdef";
      if (u < 0x20 || c == '"' || c == '\\')
        json += std::string("\\u00") + digits[u >> 4] + digits[u & 15];
      else
        json += c;
    }
    lines += "{\"text\":\"" + json + "\"}\n";
    at = end;
  }
  auto const input = dir.write("text.jsonl", lines);
  auto const model = [](std::string const& file) {
    auto const json = bytes_of(file);
    auto const vocab = json.find("\"vocab\"");
    return json.substr(vocab, json.find("]]", vocab) - vocab);
  };
  for (std::string const name : {"gpt2", "llama3"}) {
    text::train_bpe(
        {.inputs = {input}, .out = dir / "t.json", .vocab_size = 1300, .pattern = name, .min_frequency = 0});
    EXPECT_EQ(model(dir / "t.json"), model(test::tokenizer_file(name + ".json"))) << name;
  }
}

}  // namespace
