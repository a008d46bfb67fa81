// SPDX-License-Identifier: Apache-2.0
#pragma once
// Compressed gradients on their way over dp (comm.compress): what travels, in which bytes, and to whom. Nothing here
// depends on the layout but sizes of local parts: what is compressed together is never cut by an axis.
//
// With int8 and topk a parameter is a set of lines: rows of a matrix, or columns where tp divides its rows' elements.
// No axis cuts a line, and units of lines (base/coded_lines.hpp) are compressed by themselves. Vectors (norms, biases)
// are few numbers, and travel as they are.
//
// Workers: comm.workers cuts the global batch into V equal parts of neighbouring samples. Replica r of d has the V / d
// workers from r V / d on and compresses the gradient of each by itself. The answer so depends on V and not on d.
//
// Traffic of a step on the d ranks along dp, with W bytes of a worker:
//   int8  each replica adds up its part of the units of all workers, in their order, rounds the sums to 8 bits again
//         (another part of the key) and gives them to all: (d - 1) (V / d) W + (d - 1) W
//   topk  everybody gets what all workers chose: (d - 1) V W
//   powersgd  two all-reduces, of the factors P and of Q: 2 (d - 1) numbers of the factors and of what is plain
// Two roundings with blocks are those of ZeRO++ (arXiv 2306.10209, section 3.3), at random here, so that the mean is
// right; topk is EF21 (arXiv 2106.05203, algorithm 2) with a choice in each line. PowerSGD (arXiv 1905.13727, algorithm
// 1) multiplies an m x n matrix by factors of rank r, of which m r and n r numbers travel (parallel/low_rank.cpp).

#include <p3d/base/coded_lines.hpp>
#include <p3d/config/config.hpp>
#include <p3d/layout/params.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace p3d::layout {

/// A parameter of a stage, as lines.
struct CodedTensor {
  std::size_t item = 0;  ///< index in StageParams::items
  base::CodedLines lines;
};

/// Neighbouring units of one tensor, and where their bytes begin.
struct CodedPiece {
  std::size_t tensor = 0;
  std::int64_t first = 0, last = 0;  ///< units [first, last)
  std::int64_t at = 0;               ///< bytes from the begin of the part
};

/// A matrix in two factors: the places of P [rows, rank] and of Q [rank, columns] among those of all matrices.
struct LowRankTensor {
  std::size_t item = 0;  ///< index in StageParams::items
  std::int64_t left = 0, right = 0;
};

/// The axes that divide this dimension of a parameter (0: rows).
AxisSet cutting_axes(ParamSpec const& spec, int dimension);
/// True when a matrix is so large that two factors of this rank are at most half of it.
bool is_low_rank(ParamSpec const& spec, std::int64_t rank);

/// The compressed gradients of one stage.
struct Compression {
  int workers = 1, replicas = 1;
  config::Compress kind = config::Compress::int8;
  /// Plain ones first, so that their numbers are aligned. With powersgd only plain ones, without lines.
  std::vector<CodedTensor> tensors;
  /// The parts of a worker's bytes: one for each replica, which adds it up, or, with topk, one for all. A part begins
  /// at a multiple of 8 bytes.
  std::vector<std::vector<CodedPiece>> parts;
  std::vector<std::int64_t> bounds;  ///< part p is bytes [bounds[p], bounds[p + 1]) of a worker
  std::int64_t rank = 0;
  std::vector<LowRankTensor> low_rank;
  std::int64_t left_numbers = 0, right_numbers = 0;  ///< of all P, with all plain numbers behind them, and of all Q
  std::int64_t plain_numbers = 0;                    ///< numbers that are not compressed, behind those of P
  std::int64_t state_elements = 0;  ///< elements of an array of state: the flat size, or 0 without state
  std::int64_t number_bytes = 4;    ///< bytes of one number of an array of state

  int workers_of_replica() const { return workers / replicas; }
  /// Bytes of one worker.
  std::int64_t bytes() const { return bounds.back(); }
  std::int64_t part_bytes(std::size_t part) const { return bounds[part + 1] - bounds[part]; }
  /// Bytes of the longest part.
  std::int64_t longest_part() const;
  /// Bytes of the buffers in which a replica sends and receives.
  std::int64_t buffer_bytes() const;
  /// Bytes of what a replica remembers from step to step.
  std::int64_t state_bytes() const;
  /// Bytes that the ranks along dp give to each other in a step.
  std::int64_t traffic() const;
};

/// How the gradients of a stage are compressed; `number_bytes`: of a number that is not rounded (4, or 8 in fp64). The
/// input must compress.
Compression make_compression(config::Config const& config, StageParams const& params, std::int64_t number_bytes);

}  // namespace p3d::layout
