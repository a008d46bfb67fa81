// SPDX-License-Identifier: Apache-2.0
// AdamW and SGD on flat ranges, and stochastic rounding of weights. An update reads and writes each array once:
// weights, moments, the gradient (which is cleared on the way) and, where layers read another type, the rounded
// weights. The range is a list of segments with a weight decay each; up to 64 of them take one launch.
//
// Example: where matrices with decay 0.1 and vectors with decay 0 alternate in the range, all of them take one launch.
#include <p3d/kernels/update.hpp>

#include "random_words.hpp"
#include "segment_table.hpp"
#include "wide.hpp"

namespace p3d::kernels {

namespace {

/// True when layers read weights of a type of their own, which `storage` takes.
template <class Master, class Storage>
bool has_storage(View1<Master> p, View1<Storage> storage) {
  bool const has = storage.extent(0) != 0;
  P3D_REQUIRE(!has || (!std::is_same_v<Master, Storage> && storage.extent(0) == p.extent(0)),
              "the weights that layers read are of another type than the master weights, and as many");
  return has;
}

/// True when an update copies the numbers that it replaces to `there`.
template <class T>
bool keeps(View1<T> there, View1<T> replaced) {
  P3D_REQUIRE(there.extent(0) == 0 || there.extent(0) == replaced.extent(0), "as much is kept as is replaced");
  return there.extent(0) != 0;
}

/// The elements that one call of an update's body gets: on devices a 128-bit load of the master weights.
template <class Master>
inline constexpr int update_width = wide_flat<Master>;

/// Writes n weights to where layers read them, rounded to nearest.
template <int W, class Weights, class Storage>
KOKKOS_FORCEINLINE_FUNCTION void round_weights(Weights& weights, Storage* to, int n) {
  auto rounded = write<W>(to, n);
  P3D_SIMD
  for (int i = 0; i < lanes<W>(n); ++i) put(rounded[i], weights[i]);
  rounded.store();
}

/// Calls body(first element, number of elements <= Width, decay) for all elements of the segments, up to 64 segments in
/// one launch.
template <int Width, class Body>
void for_segments(std::string const& label, ExecSpace const& exec, std::vector<DecaySegment> const& segments,
                  std::int64_t length, Body const& body) {
  SegmentTable<double> table;
  table.clear();
  auto const launch_all = [&] {
    auto const all = table;
    launch_kernel(
        label, FlatRange(exec, 0, all.blocks()), KOKKOS_LAMBDA(std::int64_t block) {
          int const at = all.of_block(block);
          std::int64_t const c = all.begin_of(at, block), left = all.end[at] - c;
          body(c, static_cast<int>(left < Width ? left : Width), all.value[at]);
        });
    table.clear();
  };
  for (auto const& segment : segments) {
    P3D_REQUIRE(segment.begin >= 0 && segment.begin + segment.count <= length, "a segment lies in its vector");
    if (segment.count == 0) continue;
    table.add(segment.begin, segment.count, Width, segment.decay);
    if (table.full()) launch_all();
  }
  if (table.count > 0) launch_all();
}

}  // namespace

template <class Master, class Gradient, class Moment, class Storage>
void adamw(ExecSpace const& exec, AdamW const& step, std::vector<DecaySegment> const& segments, Given<View1<Master>> p,
           Given<View1<Gradient>> g, Given<View1<Moment>> m, Given<View1<Moment>> v, Given<View1<Storage>> storage,
           Replaced<Master, Moment> const& replaced) {
  using T = Master;
  bool const clear = step.clear_gradient;
  bool const store = has_storage(p, storage);
  auto const old = replaced;
  bool const keep = keeps(old.p, p);
  bool const keep_moments = keeps(old.m, m);
  P3D_REQUIRE(keep_moments == keeps(old.v, v) && (keep || !keep_moments), "both moments are kept, beside the weights");
  bool const store_replaced = step.store_replaced;
  auto const scale = static_cast<T>(step.grad_scale);
  auto const beta1 = static_cast<T>(step.beta1), rest1 = static_cast<T>(1.0 - step.beta1);
  auto const beta2 = static_cast<T>(step.beta2), rest2 = static_cast<T>(1.0 - step.beta2);
  auto const inverse1 = static_cast<T>(1.0 / step.correction1), inverse2 = static_cast<T>(1.0 / step.correction2);
  auto const lr = static_cast<T>(step.lr), eps = static_cast<T>(step.eps);
  constexpr int W = update_width<Master>;
  for_segments<W>(
      "p3d::kernels::adamw", exec, segments, static_cast<std::int64_t>(p.extent(0)),
      KOKKOS_LAMBDA(std::int64_t c, int n, double decay_of) {
        auto const decay = static_cast<T>(decay_of);
        auto const weight = read<W>(&p(c), n);
        auto const first = read<W>(&m(c), n), second = read<W>(&v(c), n);
        auto const gradient = read<W>(&g(c), n);
        // On the host `weight` shows the memory that the update overwrites.
        if (store && store_replaced) round_weights<W>(weight, storage.data() + c, n);
        if (keep) {
          auto old_weight = write<W>(&old.p(c), n);
          P3D_SIMD
          for (int i = 0; i < lanes<W>(n); ++i) old_weight[i] = weight[i];
          old_weight.store();
        }
        if (keep_moments) {
          auto old_first = write<W>(&old.m(c), n), old_second = write<W>(&old.v(c), n);
          P3D_SIMD
          for (int i = 0; i < lanes<W>(n); ++i) {
            old_first[i] = first[i];
            old_second[i] = second[i];
          }
          old_first.store();
          old_second.store();
        }
        auto new_weight = write<W>(&p(c), n);
        auto new_first = write<W>(&m(c), n), new_second = write<W>(&v(c), n);
        auto new_gradient = write<W>(&g(c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<W>(n); ++i) {
          // The moments are used before they are rounded to Moment, so that narrow moments cost the weight less.
          T const d = scale * gradient[i];
          T const a = beta1 * first[i] + rest1 * d;
          T const b = beta2 * second[i] + rest2 * d * d;
          put(new_first[i], a);
          put(new_second[i], b);
          new_weight[i] = weight[i] - lr * (a * inverse1 / (std::sqrt(b * inverse2) + eps) + decay * weight[i]);
          new_gradient[i] = clear ? Gradient(0) : gradient[i];
        }
        new_weight.store();
        new_first.store();
        new_second.store();
        if (clear) new_gradient.store();
        if (store && !store_replaced) round_weights<W>(new_weight, storage.data() + c, n);
      });
}

template <class Master, class Gradient, class Storage>
void sgd(ExecSpace const& exec, Sgd const& step, std::vector<DecaySegment> const& segments, Given<View1<Master>> p,
         Given<View1<Gradient>> g, Given<View1<Storage>> storage, Replaced<Master> const& replaced) {
  using T = Master;
  auto const rate = static_cast<T>(step.lr), scale = static_cast<T>(step.grad_scale);
  bool const clear = step.clear_gradient;
  bool const store = has_storage(p, storage);
  auto const old = replaced.p;
  bool const keep = keeps(old, p);
  bool const store_replaced = step.store_replaced;
  constexpr int W = update_width<Master>;
  for_segments<W>(
      "p3d::kernels::sgd", exec, segments, static_cast<std::int64_t>(p.extent(0)),
      KOKKOS_LAMBDA(std::int64_t c, int n, double decay) {
        auto const shrink = static_cast<T>(decay);
        auto const weight = read<W>(&p(c), n);
        auto const gradient = read<W>(&g(c), n);
        // On the host `weight` shows the memory that the update overwrites.
        if (store && store_replaced) round_weights<W>(weight, storage.data() + c, n);
        if (keep) {
          auto old_weight = write<W>(&old(c), n);
          P3D_SIMD
          for (int i = 0; i < lanes<W>(n); ++i) old_weight[i] = weight[i];
          old_weight.store();
        }
        auto new_weight = write<W>(&p(c), n);
        auto new_gradient = write<W>(&g(c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<W>(n); ++i) {
          new_weight[i] = weight[i] - rate * (scale * gradient[i] + shrink * weight[i]);
          new_gradient[i] = clear ? Gradient(0) : gradient[i];
        }
        new_weight.store();
        if (clear) new_gradient.store();
        if (store && !store_replaced) round_weights<W>(new_weight, storage.data() + c, n);
      });
}

template <class Master, class Gradient, class Moment, class Storage>
void adamw(ExecSpace const& exec, AdamW const& step, Given<View1<Master>> p, Given<View1<Gradient>> g,
           Given<View1<Moment>> m, Given<View1<Moment>> v, Given<View1<Storage>> storage) {
  adamw<Master, Gradient, Moment, Storage>(exec, step, {{0, static_cast<std::int64_t>(p.extent(0)), step.decay}}, p, g,
                                           m, v, storage);
}

template <class Master, class Gradient, class Storage>
void sgd(ExecSpace const& exec, Sgd const& step, Given<View1<Master>> p, Given<View1<Gradient>> g,
         Given<View1<Storage>> storage) {
  sgd<Master, Gradient, Storage>(exec, step, {{0, static_cast<std::int64_t>(p.extent(0)), step.decay}}, p, g, storage);
}

template <class T>
void exchange(ExecSpace const& exec, Given<View1<T>> a, Given<View1<T>> b) {
  P3D_REQUIRE(a.extent(0) == b.extent(0), "both have one length");
  constexpr int W = wide_flat<T>;
  for_vector<W>(
      "p3d::kernels::exchange", exec, a.extent(0), KOKKOS_LAMBDA(std::int64_t c, int n) {
        auto const x = read<W>(&a(c), n), y = read<W>(&b(c), n);
        auto to_a = write<W>(&a(c), n), to_b = write<W>(&b(c), n);
        P3D_SIMD
        for (int i = 0; i < lanes<W>(n); ++i) {
          T const held = x[i];
          to_a[i] = y[i];
          to_b[i] = held;
        }
        to_a.store();
        to_b.store();
      });
}

void round_weights_stochastically(ExecSpace const& exec, base::RandomKey key, std::uint64_t step,
                                  std::int64_t row_begin, std::int64_t col_begin, std::int64_t global_cols,
                                  View2<float const> master, View2<bfloat16> storage) {
  P3D_REQUIRE(master.extent(0) == storage.extent(0) && master.extent(1) == storage.extent(1), "both have one shape");
  constexpr int W = on_host ? 128 : 8;
  for_chunks<W>(
      "p3d::kernels::round_weights_stochastically", exec, master.extent(0), master.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        auto const in = read<W>(&master(r, c), n);
        auto out = write<W>(&storage(r, c), n);
        auto const first = static_cast<std::uint64_t>((row_begin + r) * global_cols + col_begin + c);
        // One random word serves two elements. An element takes the half that its number in the global matrix says.
        std::uint32_t words[W / 2 + 1];
        int const odd = static_cast<int>(first % 2);
        random_words(key, step, first / 2, on_host ? (odd + n + 1) / 2 : W / 2 + 1, words);
        P3D_SIMD
        for (int k = 0; k < lanes<W>(n); ++k)
          put(out[k], device::round_stochastically(in[k], words[(odd + k) / 2] >> ((odd + k) % 2 * 16)));
        out.store();
      });
}

#define P3D_INSTANTIATE(Master, Gradient, Moment, Storage)                                                             \
  template void adamw<Master, Gradient, Moment, Storage>(                                                              \
      ExecSpace const&, AdamW const&, View1<Master>, View1<Gradient>, View1<Moment>, View1<Moment>, View1<Storage>);   \
  template void adamw<Master, Gradient, Moment, Storage>(                                                              \
      ExecSpace const&, AdamW const&, std::vector<DecaySegment> const&, View1<Master>, View1<Gradient>, View1<Moment>, \
      View1<Moment>, View1<Storage>, Replaced<Master, Moment> const&);
P3D_INSTANTIATE(float, float, float, float)
P3D_INSTANTIATE(double, double, double, double)
P3D_INSTANTIATE(float, float, float, bfloat16)
P3D_INSTANTIATE(float, float, float, float16)
P3D_INSTANTIATE(float, float, bfloat16, float)
P3D_INSTANTIATE(float, float, bfloat16, bfloat16)
P3D_INSTANTIATE(float, float, bfloat16, float16)
P3D_INSTANTIATE(float, bfloat16, float, bfloat16)
P3D_INSTANTIATE(float, bfloat16, bfloat16, bfloat16)
#undef P3D_INSTANTIATE

#define P3D_INSTANTIATE(Master, Gradient, Storage)                                                             \
  template void sgd<Master, Gradient, Storage>(ExecSpace const&, Sgd const&, View1<Master>, View1<Gradient>,   \
                                               View1<Storage>);                                                \
  template void sgd<Master, Gradient, Storage>(ExecSpace const&, Sgd const&, std::vector<DecaySegment> const&, \
                                               View1<Master>, View1<Gradient>, View1<Storage>,                 \
                                               Replaced<Master> const&);
P3D_INSTANTIATE(float, float, float)
P3D_INSTANTIATE(double, double, double)
P3D_INSTANTIATE(float, float, bfloat16)
P3D_INSTANTIATE(float, float, float16)
P3D_INSTANTIATE(float, bfloat16, bfloat16)
#undef P3D_INSTANTIATE

template void exchange<float>(ExecSpace const&, View1<float>, View1<float>);
template void exchange<double>(ExecSpace const&, View1<double>, View1<double>);

}  // namespace p3d::kernels
