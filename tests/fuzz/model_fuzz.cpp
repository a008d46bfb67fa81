// SPDX-License-Identifier: Apache-2.0
// Reads damaged and hostile models in Hugging Face form. Each must be refused with the file and what is wrong, or else
// give the numbers of the good one.
//
// usage: model_fuzz FILES [SEED [FIRST]]      FIRST: number of the first file, to look at one again

#include "allocations.hpp"
#include "hostile.hpp"
#include "model_mutations.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/hash.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/io/model_weights.hpp>

#include <fmt/format.h>
#include <support/temp_dir.hpp>

#include <array>
#include <cstdio>
#include <map>
#include <optional>

namespace p3d::fuzz {
namespace {

/// Hash of all numbers, or nothing where the model is refused as it should be.
std::optional<std::uint64_t> read(std::string const& folder, std::string& text) {
  try {
    io::ModelWeights weights(folder);
    std::uint64_t hash = base::fnv1a_start;
    std::vector<double> numbers;
    for (auto const& spec : weights.table().specs()) {
      numbers.resize(static_cast<std::size_t>(spec.size()));
      weights.read(spec.name, {0, spec.rows}, {0, spec.cols}, io::Element::float64, numbers.data());
      hash = base::fnv1a({reinterpret_cast<char const*>(numbers.data()), numbers.size() * sizeof(double)}, hash);
    }
    return hash;
  } catch (base::Error const& e) {
    auto const& t = e.text();
    text = fmt::format("expected {}; found {}; where {}", t.expected, t.found, t.where);
    if (t.expected.empty() || t.found.empty() || t.fix.empty() || t.where.find(folder) == std::string::npos)
      throw std::runtime_error("an error without its four parts: " + text);
    if (text.size() > 8000) throw std::runtime_error(fmt::format("an error of {} characters", text.size()));
    if (e.code() != base::ExitCode::bad_input) throw std::runtime_error("not the exit code of bad input: " + text);
    return {};
  }
}

/// An input with model.load is right, or a list of errors.
void parse(std::string const& folder) {
  auto const result =
      config::parse_text("[data]\nformat = \"synthetic\"\n", "t.toml", "/", {"model.load=" + folder}, 0);
  if (!result.config && result.errors.empty()) throw std::runtime_error("no config and no error");
}

int fuzz(std::uint64_t files, std::uint64_t seed, std::uint64_t first) {
  test::TempDir const folder;
  auto const good = make_good_models(folder / "");
  std::vector<std::uint64_t> hashes;
  for (auto const& model : good) {
    std::string text;
    auto const hash = read(model.folder, text);
    if (!hash) throw std::runtime_error("a good model is refused: " + text);
    hashes.push_back(*hash);
  }
  std::map<std::string, std::array<int, 3>> counts;  // refused, other numbers, the same numbers
  std::size_t largest = 0, most = 0;
  int failures = 0;
  for (auto n = first; n < first + files; ++n) {
    Draw draw(seed, n);
    auto const which = draw.below(good.size());
    current = fmt::format("model {} of seed {} (in the fuzzer itself)\n", n, seed);
    auto const m = mutate_model(good[which], folder / "changed", draw);
    current = fmt::format("model {} of seed {}: {}: {}\n", n, seed, m.kind, m.detail);
    std::string wrong, text;
    std::optional<std::uint64_t> hash;
    count_allocations();
    try {
      hash = read(folder / "changed", text);
      parse(folder / "changed");
    } catch (std::exception const& e) {
      wrong = e.what();
    }
    auto const used = stop_counting();
    largest = std::max(largest, used.largest), most = std::max(most, used.most);
    if (used.largest > m.bytes + (1 << 20)) wrong += fmt::format(" an allocation of {} bytes", used.largest);
    // A value of JSON takes 16 bytes in memory and may take 2 in a file; one more for the text.
    if (used.most > 10 * m.bytes + (4 << 20)) wrong += fmt::format(" {} bytes held", used.most);
    bool const same = hash == hashes[which];
    if (wrong.empty() && m.expect == ModelMutation::Expect::refusal && hash) wrong = "it was not refused";
    if (wrong.empty() && m.expect == ModelMutation::Expect::same && !same)
      wrong = "it was refused, or changed: " + text;
    if (wrong.empty() && hash && !same && m.expect != ModelMutation::Expect::any_numbers)
      wrong = "other numbers, without a word";
    if (wrong.empty() && !hash && text.find(m.named) == std::string::npos)
      wrong = fmt::format("the refusal does not name {}: {}", m.named, text);
    ++counts[m.kind][!hash ? 0 : same ? 2 : 1];
    if (wrong.empty()) continue;
    ++failures;
    std::printf("WRONG: %s       %s\n", current.c_str(), wrong.c_str());
  }
  fmt::print("{:<20} {:>8} {:>8} {:>8}\n", "change", "refused", "numbers", "accepted");
  for (auto const& [kind, c] : counts) fmt::print("{:<20} {:>8} {:>8} {:>8}\n", kind, c[0], c[1], c[2]);
  fmt::print("{} models of seed {}: {} wrong; largest allocation {} bytes, {} held\n", files, seed, failures, largest,
             most);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace p3d::fuzz

int main(int argc, char** argv) { return p3d::fuzz::run_fuzz(argc, argv, 200, p3d::fuzz::fuzz); }
