// SPDX-License-Identifier: Apache-2.0
// The committed golden files: whole, consistent with themselves, with the text they were made from, and with p3d's own
// random numbers. The comparison with a training run is golden_test.cpp.
#include "reference.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/random.hpp>

#include <support/errors.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <set>

namespace p3d::golden {
namespace {

namespace fs = std::filesystem;
fs::path const folder = fs::path(P3D_SOURCE_DIR) / "tests" / "golden";

struct Case {
  char const* name;
  std::int64_t vocab;
  int layers;
  double grad_clip;
};

class Golden : public ::testing::TestWithParam<Case> {
protected:
  Reference const reference = read_reference(folder / (std::string(GetParam().name) + ".reference.txt"));
};

TEST_P(Golden, HoldsTheWholeRun) {
  EXPECT_EQ(reference.steps.size(), 10u);
  EXPECT_EQ(reference.samples.size(), 40u);
  std::set<std::string> names;
  std::int64_t size = 0;
  for (Parameter const& p : reference.parameters) {
    names.insert(p.name);
    size += p.size();
  }
  EXPECT_EQ(names.size(), reference.parameters.size()) << "a name occurs twice";
  EXPECT_EQ(size, static_cast<std::int64_t>(reference.gradients.size()));
  EXPECT_EQ(reference.find("embed.token.weight").rows, GetParam().vocab);
  EXPECT_EQ(reference.parameters.front().name, "embed.token.weight");
}

TEST_P(Golden, WasMadeFromTheLicenseOfThisTree) {
  std::string const text = read_bytes(fs::path(P3D_SOURCE_DIR) / "LICENSE");
  std::string const advice =
      "LICENSE changed: make the golden values again, tests/golden/make_reference.py, then make_sharded_reference.py";
  EXPECT_EQ(static_cast<std::int64_t>(text.size()), reference.data_bytes) << advice;
  EXPECT_EQ(fnv1a64(text), reference.data_checksum) << advice;
}

TEST_P(Golden, GradientsHaveTheNormOfStepZero) {
  double sum = 0;
  for (double g : reference.gradients) sum += g * g;
  EXPECT_NEAR(std::sqrt(sum), reference.steps[0].grad_norm, 1e-12 * reference.steps[0].grad_norm);
}

// What FSDP2 has trained, with divided state, is the run of the undivided implementation.
TEST_P(Golden, ShardedStateTrainsTheSameRun) {
  Reference const sharded = read_reference(folder / (std::string(GetParam().name) + ".sharded.txt"));
  EXPECT_EQ(sharded.data_checksum, reference.data_checksum);
  ASSERT_EQ(sharded.samples.size(), reference.samples.size());
  for (std::size_t g = 0; g < reference.samples.size(); ++g)
    EXPECT_EQ(sharded.samples[g].start, reference.samples[g].start) << "sample " << g;
  ASSERT_EQ(sharded.steps.size(), reference.steps.size());
  for (std::size_t s = 0; s < reference.steps.size(); ++s) {
    EXPECT_EQ(sharded.steps[s].lr, reference.steps[s].lr);
    EXPECT_NEAR(sharded.steps[s].loss / reference.steps[s].loss, 1.0, 1e-13) << "step " << s;
    EXPECT_NEAR(sharded.steps[s].grad_norm / reference.steps[s].grad_norm, 1.0, 1e-13) << "step " << s;
  }
  ASSERT_EQ(sharded.parameters.size(), reference.parameters.size());
  for (Parameter const& p : reference.parameters) {
    auto const w = sharded.weight(p.name);
    double const norm = std::sqrt(std::inner_product(w.begin(), w.end(), w.begin(), 0.0));
    EXPECT_NEAR(norm, sharded.find(p.name).final_norm, 1e-14 * norm) << p.name;
    EXPECT_NEAR(norm, p.final_norm, 1e-13) << p.name;
  }
}

TEST_P(Golden, StartsNearTheUniformGuess) {
  // Logits of the fresh model are small, so the first loss is close to log(vocab); it then falls.
  EXPECT_NEAR(reference.steps[0].loss, std::log(static_cast<double>(GetParam().vocab)), 0.1);
  EXPECT_LT(reference.steps[9].loss, reference.steps[0].loss);
}

TEST_P(Golden, ClipsSomeStepsAndNotOthers) {
  int clipped = 0;
  for (Step const& step : reference.steps) clipped += step.grad_norm > GetParam().grad_clip ? 1 : 0;
  EXPECT_GE(clipped, 2);
  EXPECT_LE(clipped, 8);
}

TEST_P(Golden, SoftmaxIgnoresTheKeyBias) {
  for (Parameter const& p : reference.parameters) {
    auto const g = reference.gradient(p.name);
    double const norm = std::sqrt(std::inner_product(g.begin(), g.end(), g.begin(), 0.0));
    if (p.name.ends_with("attn.k.bias")) {
      EXPECT_LT(norm, 1e-14) << p.name;
    } else {
      EXPECT_GT(norm, 1e-9) << p.name;
    }
  }
}

TEST_P(Golden, InitialValuesAreOurRandomNumbers) {
  for (Parameter const& p : reference.parameters) {
    if (p.rows == 1) {
      EXPECT_EQ(p.initial, p.name.ends_with(".bias") ? 0.0 : 1.0) << p.name;
      continue;
    }
    bool const residual = p.name.ends_with("attn.out.weight") || p.name.ends_with("mlp.down.weight");
    double const std = residual ? 0.02 / std::sqrt(2.0 * GetParam().layers) : 0.02;
    auto const key = base::random_key(1234, "init." + p.name);
    EXPECT_NEAR(p.initial, std * base::random_normal(key, 0, static_cast<std::uint64_t>(p.size() - 1)), 1e-15)
        << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, ::testing::Values(Case{"gpt2", 259, 3, 2.0}, Case{"llama", 257, 3, 1.2}),
                         [](auto const& info) { return info.param.name; });

/// A folder that goes away again.
struct Scratch {
  fs::path path = fs::temp_directory_path() / ("p3d_golden_" + std::to_string(::getpid()));
  Scratch() {
    fs::remove_all(path);
    fs::create_directories(path);
    for (char const* file : {"gpt2.reference.txt", "gpt2.gradients.bin"}) fs::copy_file(folder / file, path / file);
  }
  ~Scratch() { fs::remove_all(path); }
  fs::path text() const { return path / "gpt2.reference.txt"; }
  fs::path binary() const { return path / "gpt2.gradients.bin"; }
};

void write(fs::path const& file, std::string const& bytes) {
  std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Replaces the first occurrence of `from`, which must exist.
void replace(fs::path const& file, std::string const& from, std::string const& to) {
  std::string bytes = read_bytes(file);
  auto const at = bytes.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  write(file, bytes.replace(at, from.size(), to));
}

TEST(GoldenReader, ReadsAFaithfulCopy) {
  Scratch const copy;
  EXPECT_NO_THROW(read_reference(copy.text()));
}

TEST(GoldenReader, RefusesAnAlteredBinary) {
  Scratch const copy;
  std::string bytes = read_bytes(copy.binary());
  bytes[1001] = static_cast<char>(bytes[1001] ^ 1);
  write(copy.binary(), bytes);
  test::expect_error([&] { read_reference(copy.text()); }, "the checksum in gpt2.reference.txt");
}

TEST(GoldenReader, RefusesATruncatedOrMissingBinary) {
  Scratch const copy;
  fs::resize_file(copy.binary(), 4096);
  test::expect_error([&] { read_reference(copy.text()); }, "found:    4096\n");
  fs::remove(copy.binary());
  test::expect_error([&] { read_reference(copy.text()); }, "a readable file");
}

TEST(GoldenReader, RefusesAnInconsistentText) {
  for (auto const& [from, to] :
       {std::pair{"p3d-reference 1", "p3d-reference 2"}, std::pair{"step 4 ", "step 5 "},
        std::pair{"embed.position.weight 16 24", "embed.position.weight 16 25"}, std::pair{"sample 7 ", "sampled 7 "},
        std::pair{"final_norm.bias 1 24", "final_norm.bias 1 x"},
        std::pair{"sample 0 ", "weights x.bin 1 0\nsample 0 "}}) {
    Scratch const copy;
    replace(copy.text(), from, to);
    SCOPED_TRACE(std::string(from) + " -> " + to);
    bool const first_line = std::string(to) == "p3d-reference 2";
    test::expect_error([&] { read_reference(copy.text()); },
                       first_line ? "expected: \"p3d-reference 1\"" : "a record of format 1, numbered in order");
  }
}

TEST(GoldenReader, ChecksumIsFnv1a) {
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171f73967e8ULL);
}

TEST(GoldenReader, NamesAnUnknownParameter) {
  Reference const reference = read_reference(folder / "gpt2.reference.txt");
  test::expect_error([&] { reference.find("layers.3.norm1.weight"); }, "found:    layers.3.norm1.weight");
}

}  // namespace
}  // namespace p3d::golden
