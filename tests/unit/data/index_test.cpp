// SPDX-License-Identifier: Apache-2.0
// Index files that say impossible things.

#include <p3d/data/token_files.hpp>

#include "index_writer.hpp"

#include <support/errors.hpp>

#include <gtest/gtest.h>
#include <fmt/format.h>

#include <filesystem>
#include <functional>

namespace {
using namespace p3d;
using config::DataFormat;
using data::TokenFiles;
using test::expect_error;
using test::IndexFile;

/// Three documents of 2, 3 and 5 tokens; the index changed.
class Index : public ::testing::Test {
protected:
  void refuses(std::function<void(IndexFile&)> const& change, std::string_view words) {
    test::write_pair(dir_, "x", {2, 3, 5});
    IndexFile index({2, 3, 5});
    change(index);
    refuses_bytes(index.bytes(), words);
  }
  void refuses_bytes(std::string const& bytes, std::string_view words) {
    auto const path = dir_.write("x.idx", bytes);
    try {
      TokenFiles const files(DataFormat::megatron, {dir_ / "x"});
      ADD_FAILURE() << "accepted, though " << words;
    } catch (base::Error const& e) {
      EXPECT_EQ(e.code(), base::ExitCode::bad_input);
      EXPECT_NE(e.text().where.find(dir_ / "x"), std::string::npos) << e.what();
      EXPECT_NE(std::string_view(e.what()).find(words), std::string_view::npos) << words << '\n' << e.what();
    }
  }
  test::TempDir dir_;
};

TEST_F(Index, Headers) {
  refuses([](auto& i) { i.magic[3] = 'X'; }, "x.idx, byte 0");
  refuses([](auto& i) { i.version = 2; }, "version 2");
  refuses([](auto& i) { i.type = 7; }, "type 7 (float32)");
  refuses([](auto& i) { i.type = 6; }, "type 6 (float64)");
  refuses([](auto& i) { i.type = 0; }, "type 0");
  refuses([](auto& i) { i.type = 9; }, "x.idx, byte 17");
  refuses([](auto& i) { i.type = 5; }, "a byte offset that 8 divides (int64)");
  auto bytes = IndexFile({2, 3, 5}).bytes();
  refuses_bytes(bytes.substr(0, 20), "an index of at least 34 bytes");
  refuses_bytes("", "0 bytes");
  refuses_bytes(bytes.substr(0, bytes.size() - 1), "101 bytes: the file is cut off");
  refuses_bytes(bytes + "xxx", "of several modes");
  refuses_bytes(bytes + "x", "102 bytes for 3 sequences and 3 documents");
  auto many = bytes;
  many[18 + 7] = '\x7f';
  refuses_bytes(many, "as many sequences as 102 bytes can describe");
  many = bytes;
  many[26 + 7] = '\xff';
  refuses_bytes(many, "a document array that 102 bytes can hold");
  many[26 + 7] = 0;
  many[26] = 0;
  refuses_bytes(many, "0 entries");
}

TEST_F(Index, Sequences) {
  refuses([](auto& i) { i.sizes[1] = -1; }, "byte 38: sequence 1 of 3");
  refuses([](auto& i) { i.sizes[1] = 4; }, "sequences without gaps");
  refuses([](auto& i) { i.sizes[2] = 4; }, "the last sequence to end with");
  refuses([](auto& i) { i.sizes[2] = 2147483647; }, "2147483647 tokens within the 40 bytes");
  refuses([](auto& i) { i.pointers[0] = -8; }, "a byte offset, at least 0");
  refuses([](auto& i) { i.pointers[1] = 9; }, "byte 46: sequence 0 of 3");
  refuses([](auto& i) { i.pointers[2] = 10; }, "a byte offset that 4 divides (int32)");
  refuses([](auto& i) { i.pointers[2] = 0x7ffffffffffffffc; }, "within the 40 bytes");
  refuses([](auto& i) { i.pointers[0] = 4; }, "byte 0 as the first of the first sequence");
}

TEST_F(Index, Documents) {
  refuses([](auto& i) { i.documents[0] = 1; }, "sequence 0 as the first of the first document");
  refuses([](auto& i) { i.documents[3] = 2; }, "an end at sequence 2");
  refuses([](auto& i) { i.documents[3] = 4; }, "an end at sequence 4");
  refuses([](auto& i) { i.documents[2] = 0; }, "documents in ascending order");
  refuses([](auto& i) { i.documents[1] = -1; }, "document 0 of 3");
  refuses([](auto& i) { i.documents[1] = 77; }, "byte 78: document 0 of 3");
  refuses([](auto& i) { i.documents = {3}; }, "documents for 3 sequences");
}

TEST_F(Index, MissingFiles) {
  auto const prefix = test::write_pair(dir_, "x", {2});
  auto const open = [&] { TokenFiles(DataFormat::megatron, {prefix}); };
  std::filesystem::resize_file(prefix + ".bin", 4);
  expect_error(open, "2 tokens within the 4 bytes");
  std::filesystem::resize_file(prefix + ".bin", 7);
  expect_error(open, "whole tokens of 4 bytes (int32)");
  std::filesystem::remove(prefix + ".bin");
  expect_error(open, "x.bin: No such file");
  std::filesystem::remove(prefix + ".idx");
  expect_error(open, "neither of them");
  dir_.write("x.bin", "abcd");
  expect_error(open, "x.bin without its index");
}

// An error in the middle of a long index is met when its document is read, and by the walk.
TEST_F(Index, ErrorsBetweenTheSamplesAreFoundWhenTheyAreRead) {
  std::vector<std::int32_t> const sizes(5000, 2);
  auto const prefix = test::write_pair(dir_, "x", sizes);
  IndexFile index(sizes);
  index.sizes[1001] = 1;
  index.documents[3002] = 5;
  dir_.write("x.idx", index.bytes());
  TokenFiles const files(DataFormat::megatron, {prefix});
  EXPECT_EQ(files.document(1000), (layout::Range{2000, 2002}));
  expect_error([&] { files.document(1001); }, "sequence 1001 of 5000");
  expect_error([&] { files.document(3001); }, "document 3001 of 5000");
  std::vector<std::string> places;
  files.walk([&](base::ErrorText const& e) {
    places.push_back(e.where.substr(e.where.rfind(": ") + 2));
    return true;
  });
  EXPECT_EQ(places, (std::vector<std::string>{"sequence 1001 of 5000", "document 3001 of 5000"}));
  int calls = 0;
  TokenFiles(DataFormat::megatron, {prefix}, 3).walk([&](base::ErrorText const&) { return ++calls < 5; });
  EXPECT_EQ(calls, 5);  // the two of above, then three tokens
}

}  // namespace
