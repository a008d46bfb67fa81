// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which library carries out fp32 GEMMs on the host: the BLAS, or oneDNN where p3d was built with it. A choice is made
// before the first step and then stays: the two add up in different orders. No Kokkos.

#include <p3d/linalg/op.hpp>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace p3d::linalg {

enum class HostLibrary { blas, onednn };

/// A library for the GEMMs of each linear layer (forward, input gradient, weight gradient), and one for all others.
/// What counts are the operations and the two dimensions of the weight: the number of tokens (m, or k where A is
/// transposed) changes within a run, and hardly changes which library is quicker. Ranks that have the same choice, and
/// the same processors, get the same bits from the same operands.
class GemmChoice {
public:
  explicit GemmChoice(HostLibrary others = HostLibrary::blas) : others_(others) {}
  /// For op_a(A) [m, k] times op_b(B) [k, n], with any number of tokens. A layer's later choice replaces the earlier.
  void set(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, HostLibrary library);
  HostLibrary of(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k) const;
  HostLibrary others() const { return others_; }
  /// Shapes with a library of their own: all, and those of one library.
  std::int64_t shapes() const { return static_cast<std::int64_t>(shapes_.size()); }
  std::int64_t shapes(HostLibrary library) const;

private:
  using Shape = std::tuple<Op, Op, std::int64_t, std::int64_t>;
  static Shape shape(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k);

  std::vector<std::pair<Shape, HostLibrary>> shapes_;  ///< some 15: a search from the front is quick
  HostLibrary others_;
};

/// What GEMMs of this process go by; the BLAS alone at first. To be set by one thread, outside parallel regions.
GemmChoice const& gemm_choice();
void set_gemm_choice(GemmChoice choice);

/// "2.6.3", or "" in a build without oneDNN.
std::string onednn_version();
/// A rule without a clock, for runs that must repeat to the bit: true where p3d has oneDNN, the processor has AVX-512,
/// and the BLAS is not MKL, whose kernels oneDNN's are modelled on. (OpenBLAS 0.3.21 beside oneDNN 2.6.3, AVX-512:
/// oneDNN takes 0.87 to 1.06 of the time for the shapes of GPT-2 124M, and 0.78 to 0.88 for those of attention's
/// blocks.)
bool onednn_is_usual();

}  // namespace p3d::linalg
