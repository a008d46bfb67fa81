// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <p3d/base/error.hpp>

#include <algorithm>
#include <bit>
#include <fstream>
#include <iterator>
#include <sstream>

namespace p3d::golden {

namespace {

/// An error of the committed files; regenerating them is the only repair.
[[noreturn]] void reject(std::string expected, std::string found, std::string where) {
  throw base::Error(
      {std::move(expected), std::move(found), std::move(where),
       "restore the file, or make it again: the second line of the text names its script in tests/golden"});
}

/// Little-endian on every machine.
std::vector<double> decode(std::string_view bytes) {
  std::vector<double> values(bytes.size() / 8);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint64_t word = 0;
    for (std::size_t b = 8; b-- > 0;) word = (word << 8) | static_cast<unsigned char>(bytes[8 * i + b]);
    values[i] = std::bit_cast<double>(word);
  }
  return values;
}

/// What the `gradients` or `weights` record says about the binary.
struct Binary {
  std::string kind;
  std::string file;
  std::int64_t count = 0;
  std::uint64_t checksum = 0;
};

std::span<double const> part(std::vector<double> const& values, Parameter const& p) {
  return std::span(values).subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.size()));
}

/// Reads one record into `reference` or `binary`; false when it is not what the format says.
bool read_record(std::istringstream& words, Reference& reference, Binary& binary) {
  std::string kind;
  words >> kind;
  if (kind == "data") {
    words >> reference.data_bytes >> std::hex >> reference.data_checksum;
  } else if (kind == "gradients" || kind == "weights") {
    if (!binary.kind.empty()) return false;
    binary.kind = kind;
    words >> binary.file >> binary.count >> std::hex >> binary.checksum;
  } else if (kind == "sample") {
    std::size_t number = 0;
    Sample sample;
    words >> number >> sample.epoch >> sample.window >> sample.start;
    if (number != reference.samples.size()) return false;
    reference.samples.push_back(sample);
  } else if (kind == "step") {
    std::size_t number = 0;
    Step step;
    words >> number >> step.lr >> step.loss >> step.grad_norm;
    if (number != reference.steps.size()) return false;
    reference.steps.push_back(step);
  } else if (kind == "parameter") {
    Parameter parameter;
    words >> parameter.name >> parameter.rows >> parameter.cols >> parameter.offset >> parameter.initial >>
        parameter.final_norm;
    std::int64_t const expected =
        reference.parameters.empty() ? 0 : reference.parameters.back().offset + reference.parameters.back().size();
    if (parameter.rows <= 0 || parameter.cols <= 0 || parameter.offset != expected) return false;
    reference.parameters.push_back(parameter);
  } else {
    return false;
  }
  std::string rest;
  return !words.fail() && !(words >> rest);
}

}  // namespace

std::uint64_t fnv1a64(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

std::string read_bytes(std::filesystem::path const& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) reject("a readable file", "none", file.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Reference read_reference(std::filesystem::path const& text_file) {
  std::istringstream text(read_bytes(text_file));
  Reference reference;
  Binary binary;
  std::string line;
  for (int number = 1; std::getline(text, line); ++number) {
    std::istringstream words(line);
    bool const good =
        number == 1 ? line == "p3d-reference 1" : line.starts_with('#') || read_record(words, reference, binary);
    if (!good) {
      reject(number == 1 ? "\"p3d-reference 1\"" : "a record of format 1, numbered in order, offsets without gaps",
             "\"" + line + "\"", text_file.string() + ":" + std::to_string(number));
    }
  }
  if (reference.steps.empty() || reference.samples.empty() || reference.parameters.empty() || binary.file.empty() ||
      reference.data_bytes == 0) {
    reject("data, gradients or weights, sample, step and parameter records", "at least one kind is missing",
           text_file.string());
  }

  auto const binary_file = text_file.parent_path() / binary.file;
  std::string const bytes = read_bytes(binary_file);
  Parameter const& last = reference.parameters.back();
  if (last.offset + last.size() != binary.count) {
    reject(std::to_string(last.offset + last.size()) + " values (sum of the parameters' sizes)",
           std::to_string(binary.count) + " in the " + binary.kind + " record", text_file.string());
  }
  if (bytes.size() != static_cast<std::size_t>(binary.count) * 8) {
    reject(std::to_string(binary.count * 8) + " bytes", std::to_string(bytes.size()), binary_file.string());
  }
  if (fnv1a64(bytes) != binary.checksum) {
    reject("the checksum in " + text_file.filename().string(), "another one: the file was altered",
           binary_file.string());
  }
  (binary.kind == "weights" ? reference.weights : reference.gradients) = decode(bytes);
  return reference;
}

Parameter const& Reference::find(std::string_view name) const {
  auto const it =
      std::find_if(parameters.begin(), parameters.end(), [&](Parameter const& p) { return p.name == name; });
  if (it == parameters.end()) {
    throw base::Error(
        {"a parameter of the reference case", std::string(name), "", "compare with the parameter records"});
  }
  return *it;
}

std::span<double const> Reference::gradient(std::string_view name) const {
  P3D_REQUIRE(!gradients.empty(), "a reference with gradients");
  return part(gradients, find(name));
}

std::span<double const> Reference::weight(std::string_view name) const {
  P3D_REQUIRE(!weights.empty(), "a reference with weights");
  return part(weights, find(name));
}

}  // namespace p3d::golden
