// SPDX-License-Identifier: Apache-2.0
#include <p3d/kernels/update.hpp>

#include "launch.hpp"
#include "random_words.hpp"
#include "segment_table.hpp"

namespace p3d::kernels {

namespace {

/// Whether layers read weights of a type of their own, and `storage` is there to take them.
template <class Master, class Storage>
bool has_storage(View1<Master> p, View1<Storage> storage) {
  bool const has = storage.extent(0) != 0;
  P3D_REQUIRE(!has || (!std::is_same_v<Master, Storage> && storage.extent(0) == p.extent(0)),
              "the weights that layers read are of another type than the master weights, and as many");
  return has;
}

/// Whether an update keeps what it replaces in `there`.
template <class T>
bool keeps(View1<T> there, View1<T> replaced) {
  P3D_REQUIRE(there.extent(0) == 0 || there.extent(0) == replaced.extent(0), "as much is kept as is replaced");
  return there.extent(0) != 0;
}

/// body(first element, number of them <= flat_width, decay) for all elements of the segments: up to 64 in one launch.
template <class Body>
void for_segments(std::string const& label, ExecSpace const& exec, std::vector<DecaySegment> const& segments,
                  std::int64_t length, Body const& body) {
  SegmentTable<double> table;
  table.clear();
  auto const launch = [&] {
    auto const all = table;
    Kokkos::parallel_for(
        label, FlatRange(exec, 0, all.blocks()), KOKKOS_LAMBDA(std::int64_t block) {
          int const at = all.of_block(block);
          std::int64_t const c = all.begin_of(at, block), left = all.end[at] - c;
          body(c, static_cast<int>(left < flat_width ? left : flat_width), all.value[at]);
        });
    table.clear();
  };
  for (auto const& segment : segments) {
    P3D_REQUIRE(segment.begin >= 0 && segment.begin + segment.count <= length, "a segment lies in its vector");
    if (segment.count == 0) continue;
    table.add(segment.begin, segment.count, flat_width, segment.decay);
    if (table.full()) launch();
  }
  if (table.count > 0) launch();
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
  P3D_REQUIRE(keep == keeps(old.m, m) && keep == keeps(old.v, v), "weights and moments are kept together");
  auto const scale = static_cast<T>(step.grad_scale);
  auto const beta1 = static_cast<T>(step.beta1), rest1 = static_cast<T>(1.0 - step.beta1);
  auto const beta2 = static_cast<T>(step.beta2), rest2 = static_cast<T>(1.0 - step.beta2);
  auto const inverse1 = static_cast<T>(1.0 / step.correction1), inverse2 = static_cast<T>(1.0 / step.correction2);
  auto const lr = static_cast<T>(step.lr), eps = static_cast<T>(step.eps);
  for_segments(
      "p3d::kernels::adamw", exec, segments, static_cast<std::int64_t>(p.extent(0)),
      KOKKOS_LAMBDA(std::int64_t c, int n, double decay_of) {
        auto const decay = static_cast<T>(decay_of);
        T* const weight = &p(c);
        Moment* const first = &m(c);
        Moment* const second = &v(c);
        Gradient* const gradient = &g(c);
        [[maybe_unused]] Storage* const rounded = store ? &storage(c) : nullptr;
        if (keep) {
          T* const old_weight = &old.p(c);
          Moment* const old_first = &old.m(c);
          Moment* const old_second = &old.v(c);
          P3D_SIMD
          for (int i = 0; i < n; ++i) {
            old_weight[i] = weight[i];
            old_first[i] = first[i];
            old_second[i] = second[i];
          }
        }
        P3D_SIMD
        for (int i = 0; i < n; ++i) {
          T const d = scale * gradient[i];
          T const a = beta1 * first[i] + rest1 * d;
          T const b = beta2 * second[i] + rest2 * d * d;
          put(first[i], a);
          put(second[i], b);
          weight[i] -= lr * (a * inverse1 / (std::sqrt(b * inverse2) + eps) + decay * weight[i]);
          gradient[i] = clear ? Gradient(0) : gradient[i];
        }
        if constexpr (!std::is_same_v<Master, Storage>) {
          if (rounded == nullptr) return;
          P3D_SIMD
          for (int i = 0; i < n; ++i) put(rounded[i], weight[i]);
        }
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
  for_segments(
      "p3d::kernels::sgd", exec, segments, static_cast<std::int64_t>(p.extent(0)),
      KOKKOS_LAMBDA(std::int64_t c, int n, double decay) {
        auto const shrink = static_cast<T>(decay);
        T* const weight = &p(c);
        Gradient* const gradient = &g(c);
        [[maybe_unused]] Storage* const rounded = store ? &storage(c) : nullptr;
        if (keep) {
          T* const old_weight = &old(c);
          P3D_SIMD
          for (int i = 0; i < n; ++i) old_weight[i] = weight[i];
        }
        P3D_SIMD
        for (int i = 0; i < n; ++i) {
          weight[i] -= rate * (scale * gradient[i] + shrink * weight[i]);
          gradient[i] = clear ? Gradient(0) : gradient[i];
        }
        if constexpr (!std::is_same_v<Master, Storage>) {
          if (rounded == nullptr) return;
          P3D_SIMD
          for (int i = 0; i < n; ++i) put(rounded[i], weight[i]);
        }
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

void round_weights_stochastically(ExecSpace const& exec, base::RandomKey key, std::uint64_t step,
                                  std::int64_t row_begin, std::int64_t col_begin, std::int64_t global_cols,
                                  View2<float const> master, View2<bfloat16> storage) {
  P3D_REQUIRE(master.extent(0) == storage.extent(0) && master.extent(1) == storage.extent(1), "both have one shape");
  for_chunks<element_width>(
      "p3d::kernels::round_weights_stochastically", exec, master.extent(0), master.extent(1),
      KOKKOS_LAMBDA(std::int64_t r, std::int64_t c, int n) {
        float const* const in = &master(r, c);
        bfloat16* const out = &storage(r, c);
        auto const first = static_cast<std::uint64_t>((row_begin + r) * global_cols + col_begin + c);
        // A word serves two elements: their half of it is the one of their place in the matrix.
        std::uint32_t words[element_width / 2 + 1];
        int const odd = static_cast<int>(first % 2);
        random_words(key, step, first / 2, (odd + n + 1) / 2, words);
        P3D_SIMD
        for (int k = 0; k < n; ++k)
          put(out[k], device::round_stochastically(in[k], words[(odd + k) / 2] >> ((odd + k) % 2 * 16)));
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

}  // namespace p3d::kernels
