// SPDX-License-Identifier: Apache-2.0
// Files that are larger than memory: holes, of which only what is read exists.

#include <p3d/config/config.hpp>
#include <p3d/data/sampler.hpp>
#include <p3d/data/token_files.hpp>

#include "index_writer.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace {
using namespace p3d;

/// A line of /proc/self/status, in KiB; 0 where there is none.
std::int64_t status(std::string const& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
  }
  return 0;
}

/// Tokens of zeros, as int32, in one document of 2^30 tokens after the other.
std::string write_sparse(test::TempDir const& dir, std::string const& name, std::int64_t gigabytes) {
  dir.write(name + ".idx",
            test::IndexFile(std::vector<std::int32_t>(static_cast<std::size_t>(gigabytes), 1 << 28)).bytes());
  auto const bin = dir.write(name + ".bin", "");
  std::filesystem::resize_file(bin, static_cast<std::uintmax_t>(gigabytes) << 30);
  return dir / name;
}

struct Growth {
  std::int64_t anonymous, mapped;
};

/// What 2,000 samples need.
Growth read_samples(std::string const& prefix) {
  config::Config c;
  c.model.seq_len = 1024;
  c.data.format = config::DataFormat::megatron;
  c.data.path = {prefix};
  c.data.split = 0.0;
  auto const anonymous = status("RssAnon"), mapped = status("RssFile");
  auto const source = data::make_token_source(c);
  data::Sampler const sampler(*source, c);
  std::vector<int> in(1024, 1), out(1024, 1);
  for (std::int64_t g = 0; g < 2000; ++g) {
    sampler.train(g, in, out);
    EXPECT_EQ(in[1023] + out[1023], 0);
  }
  return {status("RssAnon") - anonymous, status("RssFile") - mapped};
}

TEST(Sparse, AHundredGigabytesNeedNoMoreMemoryThanOne) {
  test::TempDir const dir;
  std::string small, large;
  try {
    small = write_sparse(dir, "small", 1);
    large = write_sparse(dir, "large", 100);
  } catch (std::filesystem::filesystem_error const& e) {
    GTEST_SKIP() << "no such files here: " << e.what();
  }
  if (status("RssAnon") == 0) GTEST_SKIP() << "the system does not tell the memory of a process";
  read_samples(small);  // what the program needs in any case
  auto const one = read_samples(small), hundred = read_samples(large);
  EXPECT_LT(hundred.anonymous, one.anonymous + 1024);  // KiB
  // A window lies on two pages of 4 KiB; the hash takes some more. Read ahead would be 128 KiB each.
  EXPECT_LT(hundred.mapped, 3 * 4 * 2000 + 8 * 1000 + 16384);
  RecordProperty("anonymous_kib", static_cast<int>(hundred.anonymous));
  RecordProperty("mapped_kib", static_cast<int>(hundred.mapped));
}

}  // namespace
