// SPDX-License-Identifier: Apache-2.0
#pragma once
// The texts of tokenizers/, and the long text that make_tokenizers.py draws from the same pieces.

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::test {

inline std::string tokenizer_file(std::string_view name) {
  return std::string(P3D_SOURCE_DIR) + "/tests/unit/text/tokenizers/" + std::string(name);
}

inline std::vector<std::string> lines_of(std::string const& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

inline std::vector<std::string> hex_lines(std::string_view name) {
  auto out = lines_of(tokenizer_file(name));
  for (auto& line : out) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < line.size(); i += 2)
      bytes.push_back(static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16)));
    line = bytes;
  }
  return out;
}

/// The numbers of Draw in make_tokenizers.py.
class Draw {
public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t n) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::size_t>(state_ >> 33) % n;
  }

private:
  std::uint64_t state_;
};

/// draw_text of make_tokenizers.py.
inline std::string draw_text(std::uint64_t seed, std::size_t size) {
  auto const pieces = hex_lines("fragments.hex");
  Draw draw(seed);
  std::string out;
  while (out.size() < size) out += pieces[draw.below(pieces.size())];
  return out;
}

}  // namespace p3d::test
