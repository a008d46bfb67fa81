// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of compressed gradients, on the lines of one parameter (base/coded_lines.hpp). `gradients` is the flat buffer
// that the lines lie in. Acc<G> is the type of numbers that are not rounded to 8 bits. A message is bytes; those of
// worker v begin v * each bytes behind those of worker 0.
//
// int8: with s = max |x| / 127 over a block, x becomes q = floor(x / s) or that plus 1, at random with the probability
// of the part that is cut off, so the mean of s q is x (QSGD, arXiv 1610.02132, section 3.1). A block with a number
// that is not finite has s = NaN. Element e of line l takes word (first_line + l) length + e of the random stream.

#include <p3d/base/coded_lines.hpp>
#include <p3d/base/random.hpp>
#include <p3d/kernels/common.hpp>

#include <cstddef>
#include <cstdint>

namespace p3d::kernels {

/// The place of the bytes of units: those of unit `first`, of worker 0, begin at `bytes`.
template <class Byte>
struct CodedBytes {
  Byte* bytes = nullptr;
  std::int64_t first = 0, last = 0;  ///< units [first, last)
  std::int64_t each = 0;             ///< bytes between the units of one worker and the next
};

/// Writes units of kind plain or int8.
template <class G>
void encode(ExecSpace const& exec, base::CodedLines const& lines, base::RandomKey key, std::uint64_t stream,
            View1<G const> gradients, CodedBytes<std::byte> const& out);
/// Adds up the units of all workers in their order, in Acc<G>, and writes the sums as units, rounded once more.
template <class G>
void add_coded(ExecSpace const& exec, base::CodedLines const& lines, base::RandomKey key, std::uint64_t stream,
               int workers, CodedBytes<std::byte const> const& in, CodedBytes<std::byte> const& out);
/// Reads units of kind plain or int8 into gradients.
template <class G>
void decode(ExecSpace const& exec, base::CodedLines const& lines, CodedBytes<std::byte const> const& in,
            View1<G> gradients);

/// EF21 on the side of a worker, on lines of kind topk: chooses the `chosen` numbers of factor * gradient - share that
/// are largest (of equal ones those that come first), writes them, and adds them to the share. Of a line with a number
/// that is not finite it writes NaN, and leaves the share alone. Lines of kind plain are written as encode() does.
template <class G>
void encode_topk(ExecSpace const& exec, base::CodedLines const& lines, Acc<G> factor, View1<G const> gradients,
                 View1<Acc<G>> share, CodedBytes<std::byte> const& out);
/// EF21 on the side of all: adds what all workers chose to `applied`, in the order of workers, and writes gradients =
/// factor * applied; NaN for lines of which a worker sent NaN, whose numbers are not added. Lines of kind plain become
/// the sum of all workers.
template <class G>
void add_topk(ExecSpace const& exec, base::CodedLines const& lines, Acc<G> factor, int workers,
              CodedBytes<std::byte const> const& in, View1<Acc<G>> applied, View1<G> gradients);

}  // namespace p3d::kernels
