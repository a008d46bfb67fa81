// SPDX-License-Identifier: Apache-2.0
// Checkpoints written by 1 to 4 ranks and read by any number, in all ways of writing.
#include "support/mpi_main.hpp"
#include "support/temp_dir.hpp"

#include "checkpoint_cases.hpp"

#include <p3d/io/checkpoint_folder.hpp>
#include <p3d/io/checkpoint_writer.hpp>
#include <p3d/io/model_files.hpp>
#include <p3d/io/text_file.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace p3d::test {
namespace {

using io::Element;
using io::WriteBy;

constexpr WriteBy all_ways[] = {WriteBy::copied, WriteBy::direct, WriteBy::by_root};

comm::Communicator& world() {
  static auto* w = new comm::Communicator(comm::Communicator::world());
  return *w;
}

/// A folder that all ranks share.
class Together {
public:
  Together() {
    if (world().rank() == 0) folder_.emplace();
    char path[256] = {};
    if (folder_) std::strcpy(path, folder_->path().c_str());
    world().broadcast(path, 256, comm::Type::byte, 0).wait();
    path_ = path;
  }
  ~Together() { world().barrier().wait(); }
  std::string operator/(std::string const& name) const { return path_ + "/" + name; }

private:
  std::optional<TempDir> folder_;
  std::string path_;
};

/// The first `ranks` ranks write.
template <class T>
void write(std::string const& path, int ranks, WriteBy way, std::int64_t buffer) {
  auto sub = world().split(world().rank() < ranks ? 0 : -1, world().rank(), "sub");
  if (sub.valid()) {
    auto self = comm::Communicator::self();
    SmallParts<T> small(sub, self, true);
    io::CheckpointWriter writer(sub, {.buffer_bytes = buffer, .way = way, .verify = true});
    writer.start(path, small_header(sizeof(T) == 4 ? Element::float32 : Element::float64), small_table(),
                 test::adamw_state(), small.parts, small_model_files());
    for (auto& m : small.memory)
      std::fill(m.begin(), m.end(), T(7));  // the parts may change now: no way still needs them
    auto const result = writer.finish();
    ASSERT_FALSE(result.error) << base::format(*result.error);
    EXPECT_TRUE(result.verified);
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  }
  world().barrier().wait();
}

template <class T>
void expect_read(std::string const& path, int ranks, std::int64_t buffer) {
  auto sub = world().split(world().rank() < ranks ? 0 : -1, world().rank(), "sub");
  if (sub.valid()) {
    auto self = comm::Communicator::self();
    auto const file = io::read_checkpoint(sub, path);
    for (auto way : {io::LoadBy::place, io::LoadBy::each, io::LoadBy::rounds}) {
      SmallParts<T> small(sub, self, false), expected(sub, self, true);
      io::load_parts(sub, file, sizeof(T) == 4 ? Element::float32 : Element::float64, small.parts, buffer, way);
      for (std::size_t a = 0; a < small.memory.size(); ++a) EXPECT_EQ(small.memory[a], expected.memory[a]) << a;
    }
  }
  world().barrier().wait();
}

TEST(Checkpoint, AnyNumberOfRanksWritesTheSameBytesAndReadsThem) {
  Together folder;
  int const n = world().size();
  std::optional<std::string> first;
  for (int ranks = 1; ranks <= n; ++ranks) {
    for (auto way : all_ways) {
      auto const number = 100 + 3 * ranks + static_cast<int>(way);
      auto const path = folder / ("run-" + std::string(5, '0') + std::to_string(number) + ".h5");
      for (std::int64_t buffer : {std::int64_t{1000}, std::int64_t{1} << 20}) {
        write<double>(path, ranks, way, buffer);
        auto const bytes = io::read_text(path);
        if (!first) first = bytes;
        EXPECT_TRUE(bytes == *first) << ranks << " way " << static_cast<int>(way) << " buffer " << buffer;
      }
      for (int readers = 1; readers <= n; ++readers) expect_read<double>(path, readers, 5000);
    }
  }
}

TEST(ModelFiles, AreThoseOfAModelsFolder) {
  TempDir folder;
  folder.write("tokenizer.json", "{}");
  folder.write("config.json", "{ }");
  folder.write("merges.txt", "");
  folder.write("README.md", "a model");
  std::filesystem::create_directory(folder / "vocab.json");
  std::ofstream(folder / "tokenizer.model").put('a');
  std::filesystem::resize_file(folder / "tokenizer.model", static_cast<std::uintmax_t>(io::ModelFile::largest) + 1);
  std::vector<std::string> left_out;
  EXPECT_EQ(io::read_model_files(folder / "", left_out),
            (io::ModelFiles{{"config.json", "{ }"}, {"tokenizer.json", "{}"}}));
  ASSERT_EQ(left_out.size(), 1u);
  EXPECT_NE(left_out[0].find("tokenizer.model (32.00 MiB)"), std::string::npos) << left_out[0];
  EXPECT_FALSE(io::is_model_file("../config.json"));
  EXPECT_FALSE(io::is_tokenizer_file("generation_config.json"));
}

TEST(Checkpoint, HeaderTableAndPrecisionComeBack) {
  Together folder;
  auto const path = folder / "run-00000015.h5";
  write<float>(path, world().size(), WriteBy::direct, 1 << 20);
  auto const file = io::read_checkpoint(world(), path);
  EXPECT_EQ(file.header, small_header(Element::float32));
  EXPECT_EQ(file.table, small_table());
  EXPECT_EQ(io::stored_model_files(path), small_model_files());
  ASSERT_EQ(file.arrays.size(), 15u);
  EXPECT_EQ(file.arrays[5].name, "first_moment/embed.token.weight");
  expect_read<float>(path, world().size(), 1 << 20);
  // Into a run of the other precision: the numbers that a float can hold.
  auto self = comm::Communicator::self();
  SmallParts<double> wide(world(), self, false);
  SmallParts<float> narrow(world(), self, true);
  io::load_parts(world(), file, Element::float64, wide.parts, 3000);
  for (std::size_t a = 0; a < wide.memory.size(); ++a) {
    for (std::size_t i = 0; i < wide.memory[a].size(); ++i)
      ASSERT_EQ(wide.memory[a][i], static_cast<double>(narrow.memory[a][i]));
  }
}

TEST(Checkpoint, AChangedNumberIsNamedOnEveryRank) {
  Together folder;
  auto const path = folder / "run-00000015.h5";
  write<double>(path, world().size(), WriteBy::copied, 1 << 20);
  auto const good = io::read_checkpoint(world(), path);
  for (auto const& array : {good.arrays[0], good.arrays[6], good.arrays[13], good.arrays[14]}) {
    world().barrier().wait();
    auto const damage = [&] {
      auto bytes = io::read_text(path);
      bytes[static_cast<std::size_t>(array.offset + array.size() * 8 - 3)] ^= 4;
      io::write_text_atomically(path, bytes);
    };
    if (world().rank() == 0) damage();
    world().barrier().wait();
    auto self = comm::Communicator::self();
    for (auto way : {io::LoadBy::each, io::LoadBy::rounds}) {
      SmallParts<double> small(world(), self, false);
      try {
        io::load_parts(world(), io::read_checkpoint(world(), path), Element::float64, small.parts, 1 << 20, way);
        ADD_FAILURE() << "loaded " << array.name;
      } catch (base::Error const& e) {
        EXPECT_NE(e.text().expected.find(array.name), std::string::npos) << e.what();
        EXPECT_NE(e.text().where.find(path), std::string::npos) << e.what();
      }
    }
    world().barrier().wait();
    if (world().rank() == 0) damage();  // the same bit back
  }
}

TEST(Checkpoint, TheCopyLiesWhereItIsTold) {
  Together folder;
  auto self = comm::Communicator::self();
  std::vector<std::pair<std::shared_ptr<std::byte>, std::size_t>> given;
  auto const memory = [&given](std::size_t bytes) {
    given.emplace_back(std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>()), bytes);
    std::fill_n(given.back().first.get(), bytes, std::byte{0x5a});
    return given.back().first;
  };
  io::CheckpointWriter writer(world(),
                              {.buffer_bytes = 1 << 20, .way = WriteBy::copied, .verify = true, .memory = memory});
  SmallParts<double> small(world(), self, true);
  for (int i = 0; i < 2; ++i) {
    auto const path = folder / ("run-0000001" + std::to_string(i) + ".h5");
    writer.start(path, small_header(Element::float64), small_table(), test::adamw_state(), small.parts);
    auto const result = writer.finish();
    ASSERT_FALSE(result.error) << base::format(*result.error);
    expect_read<double>(path, world().size(), 1 << 20);
  }
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(static_cast<std::size_t>(writer.copy_bytes()), given[0].second);
  auto const* const begin = given[0].first.get();
  EXPECT_TRUE(given[0].second == 0 ||
              std::any_of(begin, begin + given[0].second, [](std::byte b) { return b != std::byte{}; }));
}

TEST(Checkpoint, AnUnwritableFolderIsAnErrorOnEveryRank) {
  auto self = comm::Communicator::self();
  SmallParts<double> small(world(), self, true);
  for (auto way : all_ways) {
    io::CheckpointWriter writer(world(), {.buffer_bytes = 1 << 20, .way = way, .verify = true});
    writer.start("/proc/nowhere/run-00000015.h5", small_header(Element::float64), small_table(), test::adamw_state(),
                 small.parts);
    auto const result = writer.finish();
    ASSERT_TRUE(result.error);
    EXPECT_NE(result.error->where.find("/proc/nowhere/run-00000015.h5.part"), std::string::npos);
    EXPECT_FALSE(writer.busy());
  }
}

TEST(CheckpointFolder, OnlyOlderValidFilesOfTheRunGo) {
  if (world().size() > 1) GTEST_SKIP() << "one rank is enough";
  TempDir folder;
  auto self = comm::Communicator::self();
  SmallParts<double> small(world(), self, true);
  auto const make = [&](std::string const& name, std::int64_t step) {
    auto header = small_header(Element::float64);
    header.step = step;
    io::CheckpointWriter writer(world(), {});
    writer.start(io::checkpoint_path(folder.path().string(), name, step), header, small_table(), test::adamw_state(),
                 small.parts);
    ASSERT_FALSE(writer.finish().error);
  };
  for (std::int64_t step : {10, 20, 30, 40, 50}) make("run", step);
  make("other", 5);
  folder.write("run-00000015.h5", "not a checkpoint");
  folder.write("run-00000060.h5.part", "half");
  folder.write("run-1.h5", "not even a name");
  auto const dir = folder.path().string();
  EXPECT_EQ(io::find_checkpoints(dir, "").size(), 7u);
  EXPECT_EQ(io::find_checkpoints(dir, "run").size(), 6u);
  // 40 is not there to be trusted: nothing goes when the newest is missing.
  EXPECT_TRUE(io::prune_checkpoints(dir, "run", 45, 1).empty());
  EXPECT_TRUE(io::prune_checkpoints(dir, "run", 40, 0).empty());
  EXPECT_TRUE(io::prune_checkpoints(dir, "run", 40, 3, dir + "/./run-00000010.h5").empty());  // 20, 30 and 40
  auto const gone = io::prune_checkpoints(dir, "run", 40, 2);
  EXPECT_EQ(gone, (std::vector<std::string>{io::checkpoint_path(dir, "run", 10), io::checkpoint_path(dir, "run", 20)}));
  auto const left = io::find_checkpoints(dir, "run");
  ASSERT_EQ(left.size(), 4u);
  EXPECT_FALSE(left[0].valid);
  EXPECT_EQ(left[0].step, 15);
  EXPECT_EQ(left[3].step, 50);
  EXPECT_EQ(io::remove_unfinished(dir, "run").size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(folder / "run-1.h5"));
  EXPECT_TRUE(io::find_checkpoints(dir + "/missing", "run").empty());
}

}  // namespace
}  // namespace p3d::test
