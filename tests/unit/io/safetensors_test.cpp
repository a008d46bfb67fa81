// SPDX-License-Identifier: Apache-2.0
// safetensors files: what is read, what is refused and how it is named, and the exact bytes that are written.

#include <p3d/io/safetensors.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/float16.hpp>
#include <p3d/io/text_file.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <support/temp_dir.hpp>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

namespace p3d::io::test {
namespace {

std::string bytes_of(std::uint64_t n) { return {reinterpret_cast<char const*>(&n), sizeof n}; }
template <class T>
std::string bytes_of(std::vector<T> const& numbers) {
  return {reinterpret_cast<char const*>(numbers.data()), numbers.size() * sizeof(T)};
}
std::string file_of(std::string const& header, std::string const& data) {
  return bytes_of(header.size()) + header + data;
}

class SafetensorsTest : public ::testing::Test {
protected:
  Safetensors read(std::string const& bytes) { return read_safetensors(folder.write("model.safetensors", bytes)); }
  /// The file must be refused, with this text in expected, found or where.
  void refused(std::string const& bytes, std::string const& part) {
    try {
      read(bytes);
      ADD_FAILURE() << "not refused: " << part;
    } catch (base::Error const& e) {
      EXPECT_EQ(e.code(), base::ExitCode::bad_input);
      EXPECT_NE(e.text().where.find("model.safetensors"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      EXPECT_FALSE(e.text().fix.empty());
    }
  }
  p3d::test::TempDir folder;
};

TEST_F(SafetensorsTest, DescribesTensorsOfAnyTypeInAnyOrder) {
  auto const file = read(file_of(R"({"b":{"dtype":"I64","shape":[],"data_offsets":[4,12]},"__metadata__":{"a":"b"},)"
                                 R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
                                 R"("c":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]}}   )",
                                 std::string(12, 'x')));
  ASSERT_EQ(file.tensors.size(), 3u);
  auto const& a = *file.find("a");
  EXPECT_EQ(a.dtype, "BF16");
  EXPECT_EQ(a.type, TensorType::bf16);
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(a.bytes, 4);
  EXPECT_FALSE(file.find("b")->type);
  EXPECT_EQ(file.find("b")->elements(), 1);
  EXPECT_EQ(file.find("b")->offset, a.offset + 4);
  EXPECT_EQ(file.find("c")->elements(), 0);
  EXPECT_EQ(file.find("d"), nullptr);
}

TEST_F(SafetensorsTest, ReadsNumbersOfEveryType) {
  std::vector<double> const values{1.0, -2.5, 0.15625};
  auto const header = R"({"a":{"dtype":"F64","shape":[3],"data_offsets":[0,24]},)"
                      R"("b":{"dtype":"F32","shape":[3],"data_offsets":[24,36]},)"
                      R"("c":{"dtype":"F16","shape":[3],"data_offsets":[36,42]},)"
                      R"("d":{"dtype":"BF16","shape":[3],"data_offsets":[42,48]}})";
  auto const file = read(file_of(header, bytes_of(values) + bytes_of(std::vector<float>{1.0f, -2.5f, 0.15625f}) +
                                             bytes_of(std::vector<std::uint16_t>{0x3c00, 0xc100, 0x3100}) +
                                             bytes_of(std::vector<std::uint16_t>{0x3f80, 0xc020, 0x3e20})));
  TensorReader reader(file);
  for (auto const* name : {"a", "b", "c", "d"}) {
    double wide[2] = {};
    reader.read(*file.find(name), 1, 2, Element::float64, wide);
    EXPECT_EQ(wide[0], values[1]) << name;
    EXPECT_EQ(wide[1], values[2]) << name;
    float narrow[3] = {};
    reader.read(*file.find(name), 0, 3, Element::float32, narrow);
    EXPECT_EQ(narrow[0], 1.0f) << name;
    EXPECT_EQ(narrow[2], 0.15625f) << name;
  }
}

TEST_F(SafetensorsTest, RefusesWhatIsNoHeader) {
  refused("1234567", "7 bytes");
  refused(bytes_of(100) + "{}", "a header of at most 2 bytes");
  refused(bytes_of(~std::uint64_t{0}) + "{}", "18446744073709551615");
  refused(file_of("[]", ""), "another byte at byte 8");
  refused(file_of(R"({"a":})", ""), "another text at byte 6");
  refused(file_of(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":1})", "1234"), "the key \"a\" twice");
  refused(file_of(R"({"__metadata__":{"a":1}})", ""), "an object of strings");
  refused(file_of("{\"a\":" + std::string(40, '['), ""), "nested");
  refused(file_of("{}", "1"), "data of 0 bytes");
}

TEST_F(SafetensorsTest, RefusesTensorsByName) {
  auto const one = [](std::string const& body) { return file_of("{\"w.1\":" + body + "}", std::string(8, 'x')); };
  for (auto const& [body, part] : std::vector<std::pair<char const*, char const*>>{
           {"3", "the number 3"},
           {R"({"shape":[2],"data_offsets":[0,8]})", "the key dtype"},
           {R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1})", "the key \"more\""},
           {R"({"dtype":"F12","shape":[2],"data_offsets":[0,8]})", "the string \"F12\""},
           {R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})", "the number 7"},
           {R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "the number -2"},
           {R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "the number 2.0"},
           {R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "a list of whole numbers"},
           {R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", "data_offsets of F32 [3]: 12 bytes"},
           {R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", "63 bits"},
           {R"({"dtype":"F32","shape":[2],"data_offsets":[0,9]})", "[0,9]"},
           {R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "[8,0]"},
           {R"({"dtype":"F32","shape":[2],"data_offsets":[8]})", "[8]"},
           {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "data of 4 bytes"}}) {
    refused(one(body), part);
    if (std::string(part) != "data of 4 bytes") refused(one(body), "tensor \"w.1\"");
  }
}

TEST_F(SafetensorsTest, RefusesHolesAndOverlaps) {
  auto const two = [](int a, int b) {
    return file_of(fmt::format(R"({{"a":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}},)"
                               R"("b":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}}}})",
                               a, a + 4, b, b + 4),
                   std::string(8, 'x'));
  };
  EXPECT_EQ(read(two(4, 0)).find("b")->bytes, 4);
  refused(two(0, 0), "tensor \"b\"");
  refused(two(0, 2), "at byte 2 of the data, where 4 was expected");
  refused(two(4, 4), "tensor \"a\"");
}

/// By the definition: the number of 16 bits that is nearest to x, of two the one whose bits are even.
template <class Value>
std::uint16_t nearest(double x, Value&& value) {
  std::uint32_t best = 0;
  auto const distance = [&](std::uint32_t bits) { return std::fabs(static_cast<double>(value(bits)) - std::fabs(x)); };
  for (std::uint32_t bits = 1; std::isfinite(value(bits)); ++bits)
    if (distance(bits) < distance(best) || (distance(bits) == distance(best) && bits % 2 == 0)) best = bits;
  return static_cast<std::uint16_t>(best | (std::signbit(x) ? 0x8000u : 0u));
}

TEST_F(SafetensorsTest, RoundsADoubleOnceTo16Bits) {
  auto const bfloat16 = [](std::uint32_t bits) { return base::bfloat16_value(static_cast<std::uint16_t>(bits)); };
  auto const float16 = [](std::uint32_t bits) { return base::float16_value(static_cast<std::uint16_t>(bits)); };
  // Just beside the middle between two numbers, nearer than a float can say; below the normal ranges; and tiny.
  std::vector<double> numbers;
  for (double const middle : {1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-11, 1 + 0x3p-11, 0x1p-25, 0x3p-25, 0x1p-134, 0x3p-134,
                              65519.0, 1e-300, 0x1.fdp127})
    for (double const side : {0.0, -0x1p-40, 0x1p-40, -0x1p-30, 0x1p-30})
      for (double const sign : {1.0, -1.0}) numbers.push_back(sign * middle * (1 + side));
  std::vector<float> const floats(numbers.begin(), numbers.end());
  for (auto const type : {TensorType::bf16, TensorType::f16}) {
    auto const count = std::ssize(numbers);
    SafetensorsWriter writer(folder / "", {{"wide", {count}}, {"narrow", {count}}}, type, 1000);
    writer.create();
    writer.write(0, 0, count, Element::float64, numbers.data());
    writer.write(1, 0, count, Element::float32, floats.data());
    writer.flush();
    writer.commit();
    auto const text = read_text(folder / "model.safetensors");
    std::vector<std::uint16_t> bits(2 * numbers.size());
    std::memcpy(bits.data(), text.data() + text.size() - 2 * bits.size(), 2 * bits.size());
    int differ = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      auto const round = [&](double x) {
        return type == TensorType::bf16 ? nearest(x, bfloat16) : nearest(x, float16);
      };
      if (type == TensorType::f16 && std::fabs(numbers[i]) > 65520) continue;  // infinite: the export refuses those
      EXPECT_EQ(bits[i], round(numbers[i])) << fmt::format("{:a} as {}", numbers[i], type == TensorType::bf16);
      EXPECT_EQ(bits[numbers.size() + i], round(floats[i])) << fmt::format("{:a}", floats[i]);
      differ += bits[i] != bits[numbers.size() + i] ? 1 : 0;
    }
    EXPECT_GE(differ, 8) << "numbers that rounding twice gets wrong";
  }
}

TEST_F(SafetensorsTest, WritesTheseBytes) {
  SafetensorsWriter writer(folder / "", {{"w", {1, 2}}, {"v\"", {}}}, TensorType::f32, 100);
  writer.create();
  double const numbers[] = {1.5, -2.0, 0.25};
  writer.write(1, 0, 1, Element::float64, numbers + 2);
  writer.write(0, 1, 1, Element::float64, numbers + 1);
  writer.write(0, 0, 1, Element::float64, numbers);
  writer.flush();
  EXPECT_THROW(read_safetensors_folder(folder / ""), base::Error);  // not there before commit()
  writer.commit();
  std::string header = R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                       R"("v\"":{"dtype":"F32","shape":[],"data_offsets":[8,12]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  ASSERT_EQ(writer.files(), std::vector<std::string>{folder / "model.safetensors"});
  EXPECT_EQ(read_text(folder / "model.safetensors"), file_of(header, bytes_of(std::vector<float>{1.5f, -2.0f, 0.25f})));
}

TEST_F(SafetensorsTest, ALostWriteIsFoundByReadingBack) {
  SafetensorsWriter writer(folder / "", {{"w", {4}}, {"v", {3}, true}}, TensorType::bf16, 100);
  writer.create();
  float const numbers[] = {1.0f, 2.0f, 3.0f, 4.0f};
  writer.write(0, 2, 2, Element::float32, numbers + 2);
  writer.write(1, 0, 3, Element::float32, numbers);
  writer.flush();
  SafetensorsWriter other(folder / "", {{"w", {4}}, {"v", {3}, true}}, TensorType::bf16, 100);
  auto const all_written = [&] {
    return std::vector{writer.written()[0] + other.written()[0], writer.written()[1] + other.written()[1]};
  };
  EXPECT_NE(writer.read_back(0, 1)[0], all_written()[0]) << "two numbers are missing";
  other.write(0, 0, 2, Element::float32, numbers);
  other.flush();
  EXPECT_EQ(writer.read_back(0, 1), all_written());
  auto const first = writer.read_back(0, 2), second = writer.read_back(1, 2);
  EXPECT_EQ((std::vector{first[0] + second[0], first[1] + second[1]}), all_written());
  auto text = read_text(folder / "model.safetensors.part");
  text.back() = static_cast<char>(text.back() ^ 1);  // a lost write leaves other bytes
  std::ofstream(folder / "model.safetensors.part", std::ios::binary) << text;
  EXPECT_EQ(writer.read_back(0, 1)[0], all_written()[0]);
  EXPECT_NE(writer.read_back(0, 1)[1], all_written()[1]);
}

TEST_F(SafetensorsTest, RoundsToNearestTiesToEven) {
  double const inf = std::numeric_limits<double>::infinity();
  std::vector<float> const numbers{1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 0x1p-130f, -static_cast<float>(inf)};
  SafetensorsWriter writer(folder / "", {{"w", {4}}}, TensorType::bf16, 100);
  writer.create();
  writer.write(0, 0, 4, Element::float32, numbers.data());
  writer.flush(), writer.commit();
  auto const file = read_safetensors_folder(folder / "");
  TensorReader reader(file);
  float back[4] = {};
  reader.read(*file.find("w"), 0, 4, Element::float32, back);
  EXPECT_EQ(back[0], 1.0f);
  EXPECT_EQ(back[1], 1.0f + 0x1p-6f);
  EXPECT_EQ(back[2], 0x1p-130f);
  EXPECT_EQ(back[3], numbers[3]);
}

TEST_F(SafetensorsTest, WideItemsHaveAtLeast32Bits) {
  for (auto const& [type, wide] : {std::pair{TensorType::bf16, "F32"},
                                   {TensorType::f16, "F32"},
                                   {TensorType::f32, "F32"},
                                   {TensorType::f64, "F64"}}) {
    p3d::test::TempDir own;
    double const numbers[] = {1.0 + 0x1p-20, -2.0};
    SafetensorsWriter writer(own / "", {{"a", {2}}, {"b", {2}, true}, {"c", {1}}}, type, 100);
    writer.create();
    writer.write(0, 0, 2, Element::float64, numbers);
    writer.write(1, 1, 1, Element::float64, numbers + 1);
    writer.write(1, 0, 1, Element::float64, numbers);
    writer.write(2, 0, 1, Element::float64, numbers + 1);
    writer.flush(), writer.commit();
    auto const file = read_safetensors_folder(own / "");
    EXPECT_EQ(file.find("b")->dtype, wide);
    TensorReader reader(file);
    double back[2] = {};
    reader.read(*file.find("b"), 0, 2, Element::float64, back);
    EXPECT_EQ(back[0], numbers[0]);
    EXPECT_EQ(back[1], numbers[1]);
    reader.read(*file.find("c"), 0, 1, Element::float64, back);
    EXPECT_EQ(back[0], -2.0);
  }
}

class ShardsTest : public SafetensorsTest {
protected:
  ShardsTest() {
    SafetensorsWriter writer(folder / "", {{"a", {2}}, {"b", {1}}, {"c", {5}}, {"d", {1}}}, TensorType::f64, 24);
    writer.create();
    for (std::size_t i = 0; i < 4; ++i) {
      std::vector<double> const numbers(5, static_cast<double>(i));
      writer.write(i, 0, i == 0 ? 2 : i == 2 ? 5 : 1, Element::float64, numbers.data());
    }
    writer.flush(), writer.commit();
    files = writer.files();
  }
  void index_refused(std::string const& from, std::string const& to, std::string const& part) {
    auto text = read_text(folder / "model.safetensors.index.json");
    auto const at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    folder.write("model.safetensors.index.json", text.replace(at, from.size(), to));
    try {
      read_safetensors_folder(folder / "");
      ADD_FAILURE() << "not refused: " << part;
    } catch (base::Error const& e) {
      EXPECT_EQ(e.code(), base::ExitCode::bad_input);
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
  std::vector<std::string> files;
};

TEST_F(ShardsTest, BeginANewFileBeforeTheLimit) {
  ASSERT_EQ(files.size(), 4u);
  EXPECT_EQ(files[2], folder / "model-00003-of-00003.safetensors");
  auto const all = read_safetensors_folder(folder / "");
  EXPECT_EQ(all.files.size(), 3u);
  EXPECT_EQ(all.find("a")->file, 0u);
  EXPECT_EQ(all.find("b")->file, 0u);  // 24 bytes together
  EXPECT_EQ(all.find("c")->file, 1u);  // larger than the limit: alone
  EXPECT_EQ(all.find("d")->file, 2u);
  TensorReader reader(all);
  double back[5] = {};
  reader.read(*all.find("c"), 0, 5, Element::float64, back);
  EXPECT_EQ(back[4], 2.0);
}

TEST_F(ShardsTest, AMissingFileIsNamed) {
  std::filesystem::remove(files[1]);
  index_refused("total_size", "total_size", "no model-00002-of-00003.safetensors");
}
TEST_F(ShardsTest, ATensorThatTheIndexDoesNotNameIsRefused) {
  index_refused(",\n    \"b\": \"model-00001-of-00003.safetensors\"", "", "tensor \"b\"");
}
TEST_F(ShardsTest, ATensorThatIsNotInItsFileIsRefused) {
  index_refused("\"b\": \"model-00001-of-00003.safetensors\"",
                "\"b\": \"model-00001-of-00003.safetensors\", \"e\": \"model-00001-of-00003.safetensors\"",
                "tensor \"e\"");
}
TEST_F(ShardsTest, ATensorInAnotherFileIsRefused) {
  index_refused("\"b\": \"model-00001", "\"b\": \"model-00002", "this tensor in model-00002-of-00003.safetensors");
}
TEST_F(ShardsTest, FilesOfOtherFoldersAreRefused) {
  index_refused("\"b\": \"model-00001", "\"b\": \"../model-00001", "a file in this folder");
}
TEST_F(ShardsTest, AnIndexWithoutAMapIsRefused) { index_refused("weight_map", "weight_mop", "weight_map"); }

}  // namespace
}  // namespace p3d::io::test
