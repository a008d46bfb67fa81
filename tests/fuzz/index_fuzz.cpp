// SPDX-License-Identifier: Apache-2.0
// Reads pairs of token files whose index is damaged or hostile with everything that reads them. Each must be refused
// with its four parts, the file's name and the exit code of bad input, at the start or when the place is read; or else
// must read like a good one: the tokens are those of the .bin file, and the documents cover them.
//
// usage: index_fuzz FILES [SEED [FIRST]]      FIRST: number of the first file, to look at one again

#include "allocations.hpp"
#include "hostile.hpp"

#include "unit/data/index_writer.hpp"

#include <p3d/base/error.hpp>
#include <p3d/config/config.hpp>
#include <p3d/data/sampler.hpp>
#include <p3d/data/token_files.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>

#include <unistd.h>

namespace p3d::fuzz {
namespace {

class Random {
public:
  Random(std::uint64_t seed, std::uint64_t number) : engine_(seed * 0x9e3779b97f4a7c15ULL + number) {}
  std::uint64_t below(std::uint64_t n) { return engine_() % n; }
  /// Numbers that break sums, products and casts, and small ones.
  std::int64_t extreme() {
    constexpr std::uint64_t one = 1;
    auto const power = one << below(64);
    switch (below(5)) {
      case 0: return static_cast<std::int64_t>(power);
      case 1: return static_cast<std::int64_t>(power - 1);
      case 2: return static_cast<std::int64_t>(~power);
      case 3: return static_cast<std::int64_t>(below(200)) - 100;
      default: return static_cast<std::int64_t>(engine_());
    }
  }

private:
  std::mt19937_64 engine_;
};

constexpr int tokens = 12000;  // in more sequences than an open file looks at

std::vector<std::int32_t> sizes_of(Random& random) {
  std::vector<std::int32_t> out;
  for (int left = tokens; left > 0;) {
    out.push_back(std::min(left, static_cast<int>(random.below(8))));
    left -= out.back();
  }
  return out;
}

/// Changes the index, or its bytes; returns what was done.
std::string mutate(test::IndexFile index, std::string& bytes, Random& random) {
  auto const any = [&](auto& list) -> auto& { return list[random.below(list.size())]; };
  switch (random.below(8)) {
    case 0: any(index.sizes) = static_cast<std::int32_t>(random.extreme()); break;
    case 1: any(index.pointers) = random.extreme(); break;
    case 2: any(index.documents) = random.extreme(); break;
    case 3: std::swap(any(index.pointers), any(index.pointers)); break;
    case 4: std::swap(any(index.documents), any(index.documents)); break;
    case 5:
      index.type = static_cast<std::uint8_t>(random.below(10));
      bytes = index.bytes();
      return fmt::format("type {}", index.type);
    case 6: {
      bytes = index.bytes();
      auto const n = 1 + random.below(4);
      for (std::uint64_t k = 0; k < n; ++k) any(bytes) = static_cast<char>(random.below(256));
      auto const field = random.below(3) == 0 ? 18 + 8 * random.below(2) : bytes.size();
      if (field < bytes.size()) {
        auto const number = random.extreme();
        std::memcpy(bytes.data() + field, &number, 8);
      }
      return "bytes";
    }
    default:
      bytes = index.bytes();
      bytes.resize(random.below(2) == 0 ? random.below(bytes.size()) : bytes.size() + random.below(64), '\7');
      return fmt::format("{} bytes", bytes.size());
  }
  bytes = index.bytes();
  return "a number";
}

/// Calls `read`; what it refuses must be told as it should be. Returns whether it did.
template <class Read>
bool refuses(std::string const& prefix, Read&& read) {
  try {
    read();
    return false;
  } catch (base::Error const& e) {
    auto const& t = e.text();
    if (t.expected.empty() || t.found.empty() || t.fix.empty() || t.where.find(prefix) == std::string::npos)
      throw std::runtime_error(std::string("an error without its four parts: ") + e.what());
    if (e.code() != base::ExitCode::bad_input)
      throw std::runtime_error(std::string("not the exit code of bad input: ") + e.what());
    return true;
  }
}

config::Config settings(std::string const& prefix, config::Shuffle shuffle) {
  config::Config c;
  c.model.seq_len = 16;
  c.model.vocab_size = tokens;
  c.batch.global = 2;
  c.data.format = config::DataFormat::megatron;
  c.data.path = {prefix};
  c.data.shuffle = shuffle;
  c.data.split = 0.2;
  return c;
}

enum class Verdict { refused, refused_later, read };

Verdict read_all(std::string const& prefix) {
  bool later = false;
  std::int64_t errors = 0;
  bool const refused = refuses(prefix, [&] {
    data::TokenFiles const files(config::DataFormat::megatron, {prefix}, tokens, prefix);
    files.walk([&](base::ErrorText const&) { return ++errors < 1000; });
    std::int64_t end = 0;
    for (std::int64_t d = 0; d < files.documents(); ++d) {
      later |= refuses(prefix, [&] {
        auto const r = files.document(d);
        if (r.begin < 0 || r.end < r.begin || r.end > files.size()) throw std::runtime_error("tokens that are none");
        if (errors == 0 && r.begin != end) throw std::runtime_error("a gap between documents");
        end = r.end;
      });
    }
    if (errors == 0 && end != files.size()) throw std::runtime_error("documents do not cover the tokens");
    if (later && errors == 0) throw std::runtime_error("the walk found nothing");
  });
  if (refused) return Verdict::refused;
  std::vector<int> in(16), out(16);
  for (auto shuffle : {config::Shuffle::windows, config::Shuffle::documents, config::Shuffle::whole_documents,
                       config::Shuffle::megatron}) {
    auto const c = settings(prefix, shuffle);
    later |= refuses(prefix, [&] {
      auto const source = data::make_token_source(c);
      data::Sampler const sampler(*source, c);
      for (std::int64_t g = 0; g < 150; ++g) {
        sampler.train(g, in, out);
        sampler.eval(g, 1, in, out);
      }
    });
  }
  return later ? Verdict::refused_later : Verdict::read;
}

int fuzz(std::uint64_t files, std::uint64_t seed, std::uint64_t first) {
  test::TempDir const folder;
  std::map<std::string, std::array<int, 3>> counts;
  std::size_t largest = 0;
  int failures = 0;
  for (auto n = first; n < first + files; ++n) {
    Random random(seed, n);
    auto const sizes = sizes_of(random);
    auto const prefix = test::write_pair(folder, "x", sizes);
    std::string bytes;
    auto const kind = mutate(test::IndexFile(sizes), bytes, random);
    folder.write("x.idx", bytes);
    if (random.below(10) == 0) std::filesystem::resize_file(prefix + ".bin", random.below(4 * tokens));
    current = fmt::format("file {} of seed {}: {}\n", n, seed, kind);
    std::string wrong;
    count_allocations();
    auto verdict = Verdict::read;
    try {
      verdict = read_all(prefix);
    } catch (std::exception const& e) {
      wrong = e.what();
    }
    auto const used = stop_counting();
    largest = std::max(largest, used.largest);
    if (used.largest > bytes.size() + (1 << 18)) wrong += fmt::format(" an allocation of {} bytes", used.largest);
    ++counts[kind.substr(0, kind.find(' ')) == "a" || kind == "bytes" ? kind : "type or length"]
            [static_cast<std::size_t>(verdict)];
    if (wrong.empty()) continue;
    ++failures;
    std::printf("WRONG: %s       %s\n", current.c_str(), wrong.c_str());
  }
  fmt::print("{:<20} {:>8} {:>8} {:>8}\n", "change", "refused", "later", "read");
  for (auto const& [kind, c] : counts) fmt::print("{:<20} {:>8} {:>8} {:>8}\n", kind, c[0], c[1], c[2]);
  fmt::print("{} files of seed {}: {} wrong; largest allocation {} bytes\n", files, seed, failures, largest);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace p3d::fuzz

int main(int argc, char** argv) { return p3d::fuzz::run_fuzz(argc, argv, 500, p3d::fuzz::fuzz); }
