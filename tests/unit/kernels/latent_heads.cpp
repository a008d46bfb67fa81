// SPDX-License-Identifier: Apache-2.0
// Heads of latent attention: keys and values from what a linear gives and what heads share, and back, with the sum over
// heads of what they share.

#include "support.hpp"

#include <p3d/kernels/latent_heads.hpp>

using namespace p3d::test;
namespace kernels = p3d::kernels;

namespace latent_heads_test {

struct Case {
  std::int64_t rows, heads, nope, rope, value;
  kernels::LatentHeadShape shape() const { return {heads, nope, rope, value}; }
};
/// Odd widths, one head, and rows that are longer than what one thread of a device takes.
std::vector<Case> cases() { return {{5, 3, 3, 2, 4}, {1, 1, 7, 4, 1}, {4, 2, 130, 64, 128}, {3, 4, 1, 2, 9}}; }

/// Columns of wider matrices, as in a row of queries, keys and values: `ahead` columns in front.
template <class T>
struct Matrices {
  static constexpr std::int64_t ahead = 3;
  Case c;
  Owned2<T> both, shared, all;
  Matrices(Case const& of, Vec const& b, Vec const& s, Vec const& a)
      : c(of),
        both(matrix_of<T>(c.rows, c.heads * (c.nope + c.value), b)),
        shared(matrix_of<T>(c.rows, ahead + c.rope, s)),
        all(matrix_of<T>(c.rows, ahead + c.heads * (c.nope + c.rope + c.value), a)) {}
  View2<T> shared_part() const { return p3d::device::columns(View2<T>(shared), ahead, ahead + c.rope); }
  View2<T> keys() const { return p3d::device::columns(View2<T>(all), ahead, ahead + c.heads * (c.nope + c.rope)); }
  View2<T> values() const {
    auto const begin = ahead + c.heads * (c.nope + c.rope);
    return p3d::device::columns(View2<T>(all), begin, begin + c.heads * c.value);
  }
};

template <class T>
void check(Case const& c) {
  auto const wide = c.heads * (c.nope + c.rope + c.value) + Matrices<T>::ahead, near = c.rope + Matrices<T>::ahead,
             both = c.heads * (c.nope + c.value);
  auto const b = rounded<T>(random_values("both", c.rows * both)),
             s = rounded<T>(random_values("shared", c.rows * near)),
             a = rounded<T>(random_values("all", c.rows * wide));
  Matrices<T> const m(c, b, s, a), back(c, b, s, a);
  kernels::join_latent_heads<T>(ExecSpace(), c.shape(), View2<T>(m.both), m.shared_part(), m.keys(), m.values());
  kernels::split_latent_heads<T>(ExecSpace(), c.shape(), back.keys(), back.values(), View2<T>(back.both),
                                 back.shared_part());
  Vec joined = a, split = b, sums = s;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    auto const at = [&](auto& v, std::int64_t width, std::int64_t column) -> auto& { return v[r * width + column]; };
    auto const ahead = Matrices<T>::ahead;
    for (std::int64_t i = 0; i < c.rope; ++i) at(sums, near, ahead + i) = 0;
    for (std::int64_t h = 0; h < c.heads; ++h) {
      auto const key = ahead + h * (c.nope + c.rope), value = ahead + c.heads * (c.nope + c.rope) + h * c.value;
      for (std::int64_t i = 0; i < c.nope; ++i) {
        at(joined, wide, key + i) = at(b, both, h * (c.nope + c.value) + i);
        at(split, both, h * (c.nope + c.value) + i) = at(a, wide, key + i);
      }
      for (std::int64_t i = 0; i < c.rope; ++i) {
        at(joined, wide, key + c.nope + i) = at(s, near, ahead + i);
        at(sums, near, ahead + i) += at(a, wide, key + c.nope + i);
      }
      for (std::int64_t i = 0; i < c.value; ++i) {
        at(joined, wide, value + i) = at(b, both, h * (c.nope + c.value) + c.nope + i);
        at(split, both, h * (c.nope + c.value) + c.nope + i) = at(a, wide, value + i);
      }
    }
  }
  EXPECT_EQ(host(m.all), joined);
  EXPECT_EQ(host(back.both), split);
  if constexpr (sizeof(T) == 2) {
    expect_rounded<T>(host(back.shared), sums, "sums over heads");
    auto const wide_sums = matrix_of<float>(c.rows, near, s);
    kernels::split_latent_heads<T, float>(
        ExecSpace(), c.shape(), back.keys(), back.values(), View2<T>(back.both),
        p3d::device::columns(View2<float>(wide_sums), Matrices<T>::ahead, Matrices<T>::ahead + c.rope));
    expect_close(host(wide_sums), sums, tolerance_of<float>(), "sums over heads in float");
  } else {
    expect_close(host(back.shared), sums, tolerance_of<T>(), "sums over heads");
  }
}

TEST(LatentHeads, AreJoinedAndSplit) {
  for (auto const& c : cases()) {
    SCOPED_TRACE(c.nope);
    check<double>(c);
    check<float>(c);
    check<bfloat16>(c);
    check<float16>(c);
  }
}

TEST(LatentHeads, RotatingPartsStandBehindLatents) {
  Case const c{3, 2, 3, 4, 1};
  std::int64_t const latent = 5, key = c.nope + c.rope, width = latent + c.rope;
  auto const q = random_values("queries", c.rows * c.heads * key);
  Vec expected = random_values("absorbed", c.rows * c.heads * width);
  auto const absorbed = matrix_of<double>(c.rows, c.heads * width, expected);
  kernels::place_rotating_parts<double>(ExecSpace(), c.shape(), latent, matrix_of<double>(c.rows, c.heads * key, q),
                                        absorbed);
  for (std::int64_t i = 0; i < c.rows * c.heads; ++i)
    for (std::int64_t d = 0; d < c.rope; ++d) expected[i * width + latent + d] = q[i * key + c.nope + d];
  EXPECT_EQ(host(absorbed), expected);
}

}  // namespace latent_heads_test
