// SPDX-License-Identifier: Apache-2.0
#pragma once
// Golden values made by an independent implementation: reads what make_reference.py and make_sharded_reference.py write
// (the formats are described at the top of these scripts).

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::golden {

/// Where the run reads a global sample.
struct Sample {
  std::int64_t epoch = 0;
  std::int64_t window = 0;  ///< after the epoch's permutation
  std::int64_t start = 0;   ///< first input token; the targets start one later
};

/// One training step; steps count from 0.
struct Step {
  double lr = 0;
  double loss = 0;       ///< mean over all tokens of the global batch, before the update
  double grad_norm = 0;  ///< L2 norm over all parameters (tied ones once), before clipping
};

struct Parameter {
  std::string name;
  std::int64_t rows = 0;  ///< a vector is [1, cols]
  std::int64_t cols = 0;
  std::int64_t offset = 0;  ///< values before its own in the binary
  double initial = 0;       ///< last element before step 0
  double final_norm = 0;    ///< L2 norm after the last step (attn.k.bias: rounding only)
  std::int64_t size() const { return rows * cols; }
};

struct Reference {
  std::int64_t data_bytes = 0;      ///< size of the text that was read
  std::uint64_t data_checksum = 0;  ///< FNV-1a of its bytes
  std::vector<Sample> samples;      ///< by global sample number
  std::vector<Step> steps;
  std::vector<Parameter> parameters;  ///< table order: embedding, layers from 0, head
  std::vector<double> gradients;      ///< step 0, before clipping, row-major, in the order of `parameters`; or empty
  std::vector<double> weights;        ///< after the last step, likewise; one of the two is there

  /// Throws base::Error when the case has no such parameter.
  Parameter const& find(std::string_view name) const;
  /// Gradient of step 0 of one parameter.
  std::span<double const> gradient(std::string_view name) const;
  /// Values of one parameter after the last step.
  std::span<double const> weight(std::string_view name) const;
};

/// Reads <case>.reference.txt or <case>.sharded.txt and the binary it names, from the same folder. Throws base::Error
/// when a file is missing, truncated, altered (checksum) or inconsistent (offsets, sizes, numbering).
Reference read_reference(std::filesystem::path const& text_file);

/// FNV-1a, 64 bit.
std::uint64_t fnv1a64(std::string_view bytes);

/// All bytes of a file; throws base::Error when it cannot be read.
std::string read_bytes(std::filesystem::path const& file);

}  // namespace p3d::golden
