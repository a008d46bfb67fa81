// SPDX-License-Identifier: Apache-2.0
#pragma once
// A transformer layer as plain loops over complex numbers in fp64, with whole tensors by their global names. It has a
// forward only: the imaginary part of f(x + i h) is h f'(x), exact to rounding for h = 1e-30, so gradients need no
// backward that could repeat a mistake of the program's.

#include <p3d/config/config.hpp>
#include <p3d/kernels/common.hpp>

#include <complex>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace p3d::test {

using Complex = std::complex<double>;

/// A matrix, or a vector of one row.
struct Plain {
  std::int64_t rows = 0, cols = 0;
  std::vector<Complex> data;
  Plain() = default;
  Plain(std::int64_t r, std::int64_t c) : rows(r), cols(c), data(static_cast<std::size_t>(r * c)) {}
  Complex& operator()(std::int64_t r, std::int64_t c) { return data[static_cast<std::size_t>(r * cols + c)]; }
  Complex operator()(std::int64_t r, std::int64_t c) const { return data[static_cast<std::size_t>(r * cols + c)]; }
};

/// Layer 0 of a model, for whole samples that are one document each.
class PlainLayer {
public:
  PlainLayer(config::Config const& config, std::int64_t first_sample) : c_(config), first_sample_(first_sample) {}

  /// Whole parameters by global name.
  std::map<std::string, Plain> params;

  Plain norm(std::string const& name, Plain const& x) const;
  /// The branches, from what a sub-layer reads, without the bias behind the last linear.
  Plain attention(Plain const& normed) const;
  Plain feed_forward(Plain const& normed) const;
  /// x + multiplier dropout(branch + bias), with the norm behind a sub-layer, if there is one, in front of dropout.
  Plain add(Plain const& x, Plain branch, std::string const& bias, std::string const& norm_behind,
            std::string const& site) const;
  Plain layer(Plain const& x) const;

private:
  Plain const* find(std::string const& name) const;
  Plain linear(Plain const& x, std::string const& name, bool bias = true) const;
  Plain mlp(Plain const& normed, std::string const& prefix) const;
  Plain experts(Plain const& normed) const;
  /// The number that norms add to their weights.
  double offset() const { return static_cast<double>(c_.model.norm_offset); }
  Complex activation(Complex gate, Complex up) const;
  void xielu(Plain& x, std::string const& prefix) const;
  /// The norm of queries or keys (model.qk_norm), if the model has one.
  void qk_norm(Plain& x, std::string const& name) const;
  /// The RMS norm of each n neighbouring columns, by one weight for all of them.
  void rms_norm(Plain& x, std::string const& name, std::int64_t n, double eps) const;
  /// Rotates dimensions from `first` on of each head.
  void rotate(Plain& x, std::int64_t first) const;
  Plain latent_attention(Plain const& normed) const;
  /// The outputs of all heads.
  Plain attend(Plain const& q, Plain const& k, Plain const& v) const;
  /// The factors of dropout at a site, by sample and by index within the sample.
  using Kept = std::function<double(std::int64_t, std::int64_t)>;
  Kept kept(std::string const& site) const;

  config::Config c_;
  std::int64_t first_sample_;
};

/// Every stride-th element from `first` on.
struct Share {
  std::size_t first = 0, stride = 1;
};

/// The derivatives of the sum of `gradient` times `result()` by the elements of `x`, which result() reads: those of a
/// share, and 0 for the others.
Plain derivative(Plain& x, Plain const& gradient, std::function<Plain()> const& result, Share share);

}  // namespace p3d::test
