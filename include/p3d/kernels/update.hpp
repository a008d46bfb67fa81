// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parameter updates on flat ranges, one pass over memory each. The types are those of device::PrecisionPolicy: master
// weights p are updated in the arithmetic of Master; gradients and moments may have types of their own. Where layers
// read weights of another type, `storage` gets them, rounded to nearest, in the same pass; an empty `storage` gets
// nothing.

#include <p3d/kernels/common.hpp>

#include <vector>

namespace p3d::kernels {

/// Elements [begin, begin + count) of all views, which have one decay. An update leaves elements in no segment alone.
struct DecaySegment {
  std::int64_t begin = 0, count = 0;
  double decay = 0;
};

/// Copies of the numbers that an update replaces: so that it can be undone, or because layers go on reading the older
/// weights. Each view has as many elements as the update, or is empty: then nothing is kept. The views m and v are both
/// empty, or none is. SGD has no m and v.
template <class Master, class Moment = Master>
struct Replaced {
  View1<Master> p = {};
  View1<Moment> m = {}, v = {};
};

/// One AdamW step (Loshchilov, Hutter, arXiv 1711.05101, algorithm 2, decoupled weight decay):
///   g' = grad_scale g;  m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g'^2
///   p = p - lr (m / correction1 / (sqrt(v / correction2) + eps) + decay p),  correction_i = 1 - beta_i^t.
/// An update reads 4 and writes 4 numbers per element: the gradient's zero for the next step is written while it is in
/// the cache. The weight is updated from the moments before they are rounded. A second moment in bfloat16 does not
/// change when (1 - beta2) |g'^2 / v - 1| is below half of its unit in the last place (2^-9 to 2^-8): beta2 must be
/// well below 0.996 there. `replaced` costs up to three more writes.
struct AdamW {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, decay = 0, correction1 = 1, correction2 = 1, grad_scale = 1;
  bool clear_gradient = true;   ///< write zero to the gradient
  bool store_replaced = false;  ///< `storage` gets the weights before the update, and not those after it
};
/// Updates all elements with step.decay. Master and Gradient are float or double and the same, or Gradient is bfloat16
/// beside float. Moment is Master, or bfloat16 beside float. Storage is Master (then nothing is copied), or bfloat16 or
/// float16 beside float.
template <class Master, class Gradient = Master, class Moment = Master, class Storage = Master>
void adamw(ExecSpace const& exec, AdamW const& step, Given<View1<Master>> p, Given<View1<Gradient>> g,
           Given<View1<Moment>> m, Given<View1<Moment>> v, Given<View1<Storage>> storage = {});
/// Updates the elements of the segments with the decay of each segment instead of step.decay, in one launch for up to
/// 64 segments.
template <class Master, class Gradient = Master, class Moment = Master, class Storage = Master>
void adamw(ExecSpace const& exec, AdamW const& step, std::vector<DecaySegment> const& segments, Given<View1<Master>> p,
           Given<View1<Gradient>> g, Given<View1<Moment>> m, Given<View1<Moment>> v, Given<View1<Storage>> storage = {},
           Replaced<Master, Moment> const& replaced = {});

/// One SGD step: p = p - lr (grad_scale g + decay p). An update reads 2 and writes 2 numbers per element.
struct Sgd {
  double lr = 0, decay = 0, grad_scale = 1;
  bool clear_gradient = true;   ///< write zero to the gradient
  bool store_replaced = false;  ///< `storage` gets the weights before the update, and not those after it
};
/// Updates all elements with step.decay.
template <class Master, class Gradient = Master, class Storage = Master>
void sgd(ExecSpace const& exec, Sgd const& step, Given<View1<Master>> p, Given<View1<Gradient>> g,
         Given<View1<Storage>> storage = {});
/// Updates the elements of the segments with the decay of each segment instead of step.decay, in one launch for up to
/// 64 segments.
template <class Master, class Gradient = Master, class Storage = Master>
void sgd(ExecSpace const& exec, Sgd const& step, std::vector<DecaySegment> const& segments, Given<View1<Master>> p,
         Given<View1<Gradient>> g, Given<View1<Storage>> storage = {}, Replaced<Master> const& replaced = {});

/// a and b get each other's numbers. An exchange reads 2 and writes 2 numbers per element. T is float or double.
template <class T>
void exchange(ExecSpace const& exec, Given<View1<T>> a, Given<View1<T>> b);

/// storage = master, rounded stochastically (device::round_stochastically): up with a probability equal to the part
/// that is cut off. The views are one block [rows, cols] of a global matrix of global_cols columns (a vector is a
/// matrix of one row) that starts at (row_begin, col_begin). Element e, counted in the global matrix row by row, takes
/// half e % 2 (0 is the low one) of random_word(key, step, e / 2), so the rounding is the same in every layout. key
/// belongs to (seed, "round." and the parameter's name).
void round_weights_stochastically(ExecSpace const& exec, base::RandomKey key, std::uint64_t step,
                                  std::int64_t row_begin, std::int64_t col_begin, std::int64_t global_cols,
                                  View2<float const> master, View2<bfloat16> storage);

}  // namespace p3d::kernels
