// SPDX-License-Identifier: Apache-2.0
#pragma once
// The library that computes fp32 GEMMs on the host: the BLAS, or oneDNN where p3d was built with it. A choice is made
// before the first step and then kept: the two add up in different orders. No Kokkos.

#include <p3d/linalg/op.hpp>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace p3d::linalg {

enum class HostLibrary { blas, onednn };

/// A library for the GEMMs of each linear layer (forward, input gradient, weight gradient), and one for all others. A
/// layer's GEMM is known by its operations and the two dimensions of the weight. The number of tokens (m, or k where A
/// is transposed) is left out: it changes within a run, and hardly changes which library is quicker. Ranks that have
/// the same choice, and the same processors, get the same bits from the same operands.
///
/// Example: choice.set(Op::none, Op::transpose, 1024, 3072, 768, HostLibrary::onednn) holds for the forward GEMM of a
/// [3072, 768] weight with any number of tokens.
class GemmChoice {
public:
  explicit GemmChoice(HostLibrary others = HostLibrary::blas) : others_(others) {}
  /// Chooses the library for op_a(A) [m, k] times op_b(B) [k, n], with any number of tokens. A later choice for a layer
  /// replaces the earlier one.
  void set(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k, HostLibrary library);
  /// The library for a GEMM: the one that was chosen for its layer, or others().
  HostLibrary of(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k) const;
  /// The library for GEMMs without a choice of their own.
  HostLibrary others() const { return others_; }
  /// The number of layers' GEMMs with a choice of their own.
  std::int64_t shapes() const { return static_cast<std::int64_t>(shapes_.size()); }
  /// The number of layers' GEMMs for which this library was chosen.
  std::int64_t shapes(HostLibrary library) const;

private:
  using Shape = std::tuple<Op, Op, std::int64_t, std::int64_t>;
  static Shape shape(Op op_a, Op op_b, std::int64_t m, std::int64_t n, std::int64_t k);

  std::vector<std::pair<Shape, HostLibrary>> shapes_;  ///< some 15 entries: a search from the front is quick
  HostLibrary others_;
};

/// The choice by which GEMMs of this process go; at first the BLAS for all.
GemmChoice const& gemm_choice();
/// Replaces the choice. Called by one thread, outside parallel regions.
void set_gemm_choice(GemmChoice choice);

/// The version of oneDNN, such as "2.6.3", or "" in a build without it.
std::string onednn_version();
/// A rule for the choice that needs no clock, for runs that must repeat to the bit: true where p3d has oneDNN, the
/// processor has AVX-512, and the BLAS is not MKL, on whose kernels oneDNN's are modelled. (OpenBLAS 0.3.21 beside
/// oneDNN 2.6.3, AVX-512: oneDNN takes 0.87 to 1.06 of the time for the shapes of GPT-2 124M, and 0.78 to 0.88 for
/// those of attention's blocks.)
bool onednn_is_usual();

}  // namespace p3d::linalg
