// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parameter updates on flat ranges, one pass over memory each. Types as in device::PrecisionPolicy: Master weights p
// are updated in the arithmetic of Master; gradients and moments may have types of their own. Where layers read weights
// of another type, `storage` gets them, rounded to nearest, in the same pass; an empty one gets nothing.

#include <p3d/kernels/common.hpp>

#include <vector>

namespace p3d::kernels {

/// Elements [begin, begin + count) of all views, which have one decay. Those in no segment stay as they are.
struct DecaySegment {
  std::int64_t begin = 0, count = 0;
  double decay = 0;
};

/// Gets what an update is about to replace, so that it can be taken back: as many elements as the update has, or empty
/// (nothing is kept). SGD has no m and v.
template <class Master, class Moment = Master>
struct Replaced {
  View1<Master> p = {};
  View1<Moment> m = {}, v = {};
};

/// One AdamW step (Loshchilov, Hutter, arXiv 1711.05101, algorithm 2, decoupled weight decay):
///   g' = grad_scale g;  m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g'^2
///   p = p - lr (m / correction1 / (sqrt(v / correction2) + eps) + decay p),  correction_i = 1 - beta_i^t.
/// Reads 4 and writes 4 numbers per element: the gradient's zero for the next step is written while it is in the cache.
/// The weight is updated from the moments before they are rounded. A second moment in bfloat16 stays where it is when
/// (1 - beta2) |g'^2 / v - 1| is below its half unit (2^-9 to 2^-8): beta2 must be well below 0.996 there. `replaced`
/// costs three more writes.
struct AdamW {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, decay = 0, correction1 = 1, correction2 = 1, grad_scale = 1;
  bool clear_gradient = true;
};
/// Master, Gradient: float or double, the same. Moment: Master, or bfloat16 beside float. Storage: Master (then nothing
/// is copied), or bfloat16 or float16 beside float.
template <class Master, class Gradient = Master, class Moment = Master, class Storage = Master>
void adamw(ExecSpace const& exec, AdamW const& step, Given<View1<Master>> p, Given<View1<Gradient>> g,
           Given<View1<Moment>> m, Given<View1<Moment>> v, Given<View1<Storage>> storage = {});
/// The same with the decay of each segment instead of step.decay: one launch for up to 64 of them.
template <class Master, class Gradient = Master, class Moment = Master, class Storage = Master>
void adamw(ExecSpace const& exec, AdamW const& step, std::vector<DecaySegment> const& segments, Given<View1<Master>> p,
           Given<View1<Gradient>> g, Given<View1<Moment>> m, Given<View1<Moment>> v, Given<View1<Storage>> storage = {},
           Replaced<Master, Moment> const& replaced = {});

/// p = p - lr (grad_scale g + decay p). Reads 2 and writes 2 numbers per element.
struct Sgd {
  double lr = 0, decay = 0, grad_scale = 1;
  bool clear_gradient = true;
};
template <class Master, class Gradient = Master, class Storage = Master>
void sgd(ExecSpace const& exec, Sgd const& step, Given<View1<Master>> p, Given<View1<Gradient>> g,
         Given<View1<Storage>> storage = {});
/// The same with the decay of each segment instead of step.decay: one launch for up to 64 of them.
template <class Master, class Gradient = Master, class Storage = Master>
void sgd(ExecSpace const& exec, Sgd const& step, std::vector<DecaySegment> const& segments, Given<View1<Master>> p,
         Given<View1<Gradient>> g, Given<View1<Storage>> storage = {}, Replaced<Master> const& replaced = {});

/// storage = master, rounded stochastically (device::round_stochastically): up with the probability of what is cut off.
/// Views: one block [rows, cols] of a global matrix of global_cols columns (a vector is a matrix of one row) that
/// starts at (row_begin, col_begin). Element e, counted in the global matrix row by row, takes half e % 2 (0: the low
/// one) of random_word(key, step, e / 2): the same rounding in every layout. key: of (seed, "round." and the
/// parameter's name).
void round_weights_stochastically(ExecSpace const& exec, base::RandomKey key, std::uint64_t step,
                                  std::int64_t row_begin, std::int64_t col_begin, std::int64_t global_cols,
                                  View2<float const> master, View2<bfloat16> storage);

}  // namespace p3d::kernels
