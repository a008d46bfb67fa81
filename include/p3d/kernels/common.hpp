// SPDX-License-Identifier: Apache-2.0
#pragma once
// The types and descriptions that all kernels share: views, types of numbers, dropout, the tokens of rows, and whether
// a result overwrites or adds.
//
// A kernel's first template parameter is the storage type S of weights and activations: double, float, bfloat16 or
// float16. Elements become Acc<S> when they are read; arithmetic, sums along rows and statistics (mean, rstd,
// log-sum-exp) are Acc<S>; a result is rounded once, to nearest, when it is stored as S. Gradients of weights have a
// type of their own, G, by default Acc<S>.

#include <p3d/base/random.hpp>
#include <p3d/base/token_set.hpp>
#include <p3d/device/precision.hpp>
#include <p3d/device/view.hpp>

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace p3d::kernels {

using device::ExecSpace;
using device::View1;
using device::View2;
using device::bfloat16;
using device::float16;

/// Arithmetic, sums and statistics on elements of type S: float for the types of 16 bits, S otherwise.
template <class S>
using Acc = device::accumulate_t<S>;

/// A parameter of this type takes no part in template argument deduction: its element type is the one that the call
/// names or the default, and owning views convert.
template <class V>
using Given = std::type_identity_t<V>;

/// True when kernels have their form for devices: in builds for GPUs, and in tests of that form on a host.
bool have_device_form();

/// Says whether a kernel overwrites its result or adds to what is there (gradients add over microbatches and branches).
enum class Store { overwrite, add };

/// Dropout at one site. An element is kept when random_word(key, stream, index) >= threshold and is then multiplied by
/// `scale`. `stream` is the global sample number. `index` is the element's global number within that sample at that
/// site (hidden sites: position * hidden + column; attention: (head * seq + query) * seq + key), so no layout changes a
/// mask.
struct Dropout {
  base::RandomKey key{};
  std::uint32_t threshold = 0;  ///< rate * 2^32, rounded; 0: no dropout
  double scale = 1.0;           ///< multiplier / (1 - rate)
  double multiplier = 1.0;      ///< of what passes the site, with and without dropout; 1 in attention
  /// Attention numbers a sample's probabilities as if the sample had this many tokens, so that a mask does not depend
  /// on the length to which a sample is padded. With 0 it takes the tokens that the sample has.
  std::int64_t sample_tokens = 0;
  /// True when elements are dropped at all.
  KOKKOS_FUNCTION bool active() const { return threshold != 0; }
  /// True when elements are dropped or multiplied.
  KOKKOS_FUNCTION bool changes() const { return active() || scale != 1.0; }
  /// The site without dropout: its multiplier alone.
  Dropout off() const {
    Dropout out;
    out.scale = out.multiplier = multiplier;
    return out;
  }
};
/// The dropout of a site with a rate in [0, 1); `site` names the site in the random key. Throws base::Error for other
/// rates.
Dropout make_dropout(double rate, std::uint64_t seed, std::string_view site, double multiplier = 1.0);

/// The tokens that the rows of an activation matrix belong to: first_row + row = sample * seq_len + place. The matrix
/// has all rows of the samples or, where a kernel allows it, some consecutive ones.
struct TokenRows {
  std::int64_t first_sample = 0;  ///< global number of the first sample
  std::int64_t samples = 0;       ///< number of samples (the microbatch)
  std::int64_t seq_len = 0;       ///< rows of a sample: its tokens, or under context parallelism those of this rank
  std::int64_t first_row = 0;     ///< rows of the samples that lie on other ranks, before those of the matrix
  /// The position of each row of the samples, where it differs from the row's number within the sample: where positions
  /// begin anew with each document (data.reset_positions), or where the rows are the newest tokens of texts. Else
  /// empty.
  View1<int const> positions{};
  base::TokenSet tokens{};         ///< the tokens of a sample that have rows; empty: all of them
  std::int64_t sample_tokens = 0;  ///< tokens of a whole sample; 0: seq_len
  /// For each token of the whole samples, the number of the first token of its document. Tokens do not attend to
  /// other documents. Empty: a sample is one document.
  View1<int const> documents{};
  /// The number of a row's token within its sample.
  KOKKOS_FUNCTION std::int64_t index(std::int64_t row) const {
    std::int64_t const place = (first_row + row) % seq_len;
    return tokens.size() > 0 ? tokens.at(place) : place;
  }
  std::int64_t rows() const { return samples * seq_len; }
};

}  // namespace p3d::kernels
