// SPDX-License-Identifier: Apache-2.0
// The readers. reference/ was written by make_megatron_order.py.

#include <p3d/data/token_files.hpp>

#include "index_writer.hpp"

#include <support/errors.hpp>

#include <gtest/gtest.h>
#include <fmt/format.h>

#include <filesystem>

namespace {
using namespace p3d;
using config::DataFormat;
using data::TokenFiles;
using test::expect_error;
using test::reference;

std::vector<int> const ids{0, 1, 2, 100, 127, 5, 6, 7, 8, 9, 10, 11};

std::vector<int> all(data::TokenSource const& source) {
  std::vector<int> out(static_cast<std::size_t>(source.size()));
  source.read(0, out);
  return out;
}

TEST(TokenFiles, EveryTypeOfMegatron) {
  for (std::string type : {"uint8", "int8", "int16", "int32", "int64", "uint16"}) {
    for (std::string end : {"", ".bin", ".idx"}) {
      TokenFiles const files(DataFormat::megatron, {reference + "megatron-" + type + end}, 128);
      EXPECT_EQ(all(files), ids) << type;
      EXPECT_EQ(files.files().at(0).type, type);
      ASSERT_EQ(files.documents(), 3);
      EXPECT_EQ(files.document(0), (layout::Range{0, 4}));
      EXPECT_EQ(files.document(1), (layout::Range{4, 7}));  // an empty sequence and one of three
      EXPECT_EQ(files.document(2), (layout::Range{7, 12}));
      ASSERT_EQ(files.sequences(), 4);
      EXPECT_EQ(files.sequence(1), (layout::Range{4, 4}));
      expect_error([&] { files.document(3); }, "the document exists");
    }
    EXPECT_EQ(data::guess_format(reference + "megatron-" + type), DataFormat::megatron);
  }
}

TEST(TokenFiles, EveryTypeOfNumpyAndLlmc) {
  for (std::string type : {"uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"}) {
    TokenFiles const files(DataFormat::npy, {reference + type + ".npy"}, 128);
    EXPECT_EQ(all(files), ids) << type;
    EXPECT_EQ(files.files().at(0).type, type);
  }
  for (std::string version : {"1", "7"}) {
    auto const path = reference + "llmc-" + version + ".bin";
    TokenFiles const files(DataFormat::llmc, {path}, 128);
    EXPECT_EQ(all(files), ids) << version;
    EXPECT_EQ(files.files().at(0).type, std::string(version == "1" ? "uint16" : "uint32"));
    EXPECT_EQ(data::guess_format(path), DataFormat::llmc);
  }
  EXPECT_EQ(data::guess_format(reference + "int8.npy"), DataFormat::npy);
  EXPECT_EQ(data::guess_format(reference + "order.dat"), DataFormat::text);
}

TEST(TokenFiles, SeveralFilesAreOneArray) {
  TokenFiles const files(DataFormat::npy, {reference + "int8.npy", reference + "uint64.npy"}, 128);
  ASSERT_EQ(files.size(), 24);
  std::vector<int> part(4);
  files.read(10, part);
  EXPECT_EQ(part, (std::vector<int>{10, 11, 0, 1}));
  TokenFiles const folder(DataFormat::megatron, {reference}, 30000);
  EXPECT_EQ(folder.files().size(), 9u);
  EXPECT_EQ(folder.document(4), (layout::Range{16, 19}));  // of the second file
  auto const last = folder.document(folder.documents() - 1);
  EXPECT_EQ(last.end, folder.size());
  EXPECT_NE(folder.hash(), files.hash());
}

TEST(TokenFiles, RefusesOtherArrays) {
  auto const open = [](std::string const& name) { TokenFiles(DataFormat::npy, {reference + name}); };
  expect_error([&] { open("big-endian.npy"); }, "'>i4'");
  expect_error([&] { open("float.npy"); }, "'<f4'");
  expect_error([&] { open("fortran.npy"); }, "an array in C order");
  expect_error([&] { open("llmc-1.bin"); }, "an array of numpy");
  expect_error([&] { open("order"); }, "order: No such file");
  expect_error([] { TokenFiles(DataFormat::llmc, {reference + "int8.npy"}); }, "header of 1024 bytes");
}

TEST(TokenFiles, HeadersThatLie) {
  test::TempDir const dir;
  auto const npy = [&](std::string const& dictionary, std::size_t tokens) {
    auto const file = dir.write("x.npy", std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(dictionary.size()) +
                                             '\0' + dictionary + std::string(tokens, 'a'));
    return all(TokenFiles(DataFormat::npy, {file})).size();
  };
  EXPECT_EQ(npy("{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }", 12), 6u);
  EXPECT_EQ(npy("{'shape':(3,),'fortran_order':True,'descr':'|u1'}", 3), 3u);
  auto const refuses = [&](std::string const& dictionary, std::string_view words) {
    expect_error([&] { npy(dictionary, 12); }, words);
  };
  refuses("{'descr': '<u2', 'fortran_order': False, 'shape': (7,), }",
          "12 bytes after the header: the file is cut off");
  refuses("{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }", "more than that");
  refuses("{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2, 3), }", "one or two dimensions");
  refuses("{'descr': '<u2', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", "one or two dimensions");
  refuses("{'descr': '<u2', 'fortran_order': False, 'shape': (-6,), }", "one or two dimensions");
  refuses("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (6,), }", "integers as tokens");
  refuses("{}", "integers as tokens");
  auto const llmc = [&](std::int32_t magic, std::int32_t version, std::int32_t count, std::size_t bytes) {
    std::string file;
    for (auto n : {magic, version, count}) test::append(file, n);
    file.resize(1024 + bytes, 'a');
    return [path = dir.write("x.bin", file)] { TokenFiles(DataFormat::llmc, {path}); };
  };
  EXPECT_NO_THROW(llmc(20240520, 1, 3, 6)());
  expect_error(llmc(20240520, 1, 3, 5), "5 bytes after the header: the file is cut off");
  expect_error(llmc(20240520, 1, -1, 0), "a number of tokens, at least 0");
  expect_error(llmc(20240520, 2, 3, 6), "version 1 (uint16)");
  expect_error(llmc(20240522, 1, 3, 6), "an evaluation file of llm.c");
  expect_error(llmc(7, 1, 3, 6), "x.bin, byte 0");
}

TEST(TokenFiles, NamesTheTokenOutsideTheVocabulary) {
  TokenFiles const small(DataFormat::megatron, {reference + "megatron-int16"}, 127);
  std::vector<int> out(3);
  EXPECT_NO_THROW(small.read(0, out));
  expect_error([&] { small.read(2, out); },
               "found:    127\nwhere:    " + reference + "megatron-int16.bin, token 4, byte 8, document 1");
  test::TempDir const dir;
  auto const pair = test::write_pair(dir, "negative", {3}, -1);
  TokenFiles const files(DataFormat::megatron, {pair});
  expect_error([&] { files.read(0, out); }, "token 0, byte 0, document 0");
}

TEST(TokenFiles, AFileThatShrinksIsAnError) {
  test::TempDir const dir;
  auto const pair = test::write_pair(dir, "x", {5000});
  TokenFiles const files(DataFormat::megatron, {pair});
  std::vector<int> out(3);
  files.read(4990, out);
  std::filesystem::resize_file(pair + ".bin", 400);
  expect_error([&] { files.read(4990, out); }, "20000 bytes, as when the file was opened");
}

TEST(TokenFiles, HashIsOfAllBytesOfSmallFiles) {
  test::TempDir const dir;
  auto const a = test::write_pair(dir, "a", {3, 4}), b = test::write_pair(dir, "b", {4, 3}),
             c = test::write_pair(dir, "c", {3, 4}), d = test::write_pair(dir, "d", {3, 4}, 1);
  auto const hash = [](std::string const& prefix) { return TokenFiles(DataFormat::megatron, {prefix}).hash(); };
  EXPECT_EQ(hash(a), hash(c));
  EXPECT_NE(hash(a), hash(b));  // other documents
  EXPECT_NE(hash(a), hash(d));
}

}  // namespace
