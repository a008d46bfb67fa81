// SPDX-License-Identifier: Apache-2.0
#pragma once
// The speed that a training step could have on this machine: the model's own GEMMs, alone, on all ranks at once. It is
// the denominator of the MFU (model FLOP/s over the ceiling; arXiv 2204.02311, appendix B, has the data sheet's peak
// there).

#include <p3d/comm/communicator.hpp>
#include <p3d/config/config.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>
#include <p3d/linalg/gemm.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace p3d::report {

/// One kind of GEMM of a microbatch on one rank: C (+)= op(A) op(B), with the shapes of linalg::gemm.
struct Product {
  std::string name;
  linalg::Op op_a, op_b;
  std::int64_t m, n, k;
  bool adds = false;  ///< C += (a weight gradient), else C =
  double work = 0.0;  ///< FLOPs of all GEMMs of this kind in a microbatch, at full size
  /// The FLOPs of one call.
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

/// The GEMMs of forward, input gradient and weight gradient of every linear layer and of the head, as one rank of the
/// layout computes them. GEMMs above `most_flops` get fewer tokens, then (the head) fewer columns; 0 means full size.
std::vector<Product> model_products(config::Config const& config, double most_flops = 0.0);

/// Times GEMMs in three buffers of its own, which are large enough for the largest of them. P is a policy of
/// device/precision.hpp.
template <class P>
class CeilingMeter {
public:
  /// Allocates the buffers. Collective.
  CeilingMeter(std::vector<Product> products, comm::Communicator& world);
  /// The seconds of one call of each GEMM, mean over the ranks, which work at the same time. Collective.
  std::vector<double> measure();
  /// The FLOP/s of one rank when calls take the `seconds` that measure() gave, each kind weighted with its share of the
  /// model's work.
  double speed(std::vector<double> const& seconds) const;
  std::vector<Product> const& products() const { return products_; }
  /// Computes one GEMM and waits for it.
  void run(Product const& product) const;

private:
  std::vector<Product> products_;
  comm::Communicator* world_;
  using Storage = typename P::Storage;
  using Wide = typename P::Gradient;  ///< type of weight gradients
  device::Owned1<Storage> a_, b_;
  device::Owned1<Wide> c_;
};

/// The line about the MFU for the end of a run: "MFU 0.85: ...". `step_seconds` is the time of a usual step; `ceiling`
/// is what choose_gemms returned. `recomputed` are the FLOPs of a step that recomputation adds; above 0, the HFU, which
/// counts them, stands beside the MFU, which does not.
std::string describe_mfu(config::Config const& config, int ranks, double step_seconds, double ceiling,
                         double recomputed = 0.0);

}  // namespace p3d::report
