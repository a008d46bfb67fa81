// SPDX-License-Identifier: Apache-2.0
// The norm of queries and keys: against sums written out, against finite differences, double against float, and in two
// parts of the heads whose sums meet in between.

#include "support.hpp"

#include <p3d/kernels/qk_norm.hpp>

using namespace p3d::test;
using p3d::kernels::QkNormShape;

namespace qk_norm_test {

struct Case {
  std::int64_t rows, heads, kv_heads, head_dim;
  bool whole;
};
constexpr double eps = 1e-3;

/// Whole matrices: queries, keys and values of each row, as kernels take them.
struct Data {
  Vec qkv, queries, keys, dy;  ///< weights of queries and keys
};
struct Results {
  Vec qkv, dqkv, queries, keys;
};

std::int64_t width(Case const& c) { return (c.heads + 2 * c.kv_heads) * c.head_dim; }
Data data_of(Case const& c) {
  auto const q = (c.whole ? c.heads : 1) * c.head_dim, k = (c.whole ? c.kv_heads : 1) * c.head_dim;
  return {random_values("qk x", c.rows * width(c)), random_values("qk wq", q), random_values("qk wk", k),
          random_values("qk dy", c.rows * width(c))};
}

/// y of all rows, plainly; values as they are.
Vec plain(Case const& c, Data const& d) {
  Vec y = d.qkv;
  auto const norm = [&](std::int64_t row, std::int64_t begin, std::int64_t n, Vec const& w) {
    long double squares = 0;
    auto* const x = &y[static_cast<std::size_t>(row * width(c) + begin)];
    for (std::int64_t i = 0; i < n; ++i) squares += static_cast<long double>(x[i]) * x[i];
    double const s = 1.0 / std::sqrt(static_cast<double>(squares) / static_cast<double>(n) + eps);
    for (std::int64_t i = 0; i < n; ++i) x[i] *= s * w[static_cast<std::size_t>(i)];
  };
  for (std::int64_t r = 0; r < c.rows; ++r)
    for (std::int64_t h = 0; h < c.heads + c.kv_heads; ++h) {
      bool const query = h < c.heads;
      if (!c.whole) norm(r, h * c.head_dim, c.head_dim, query ? d.queries : d.keys);
      if (c.whole && h == 0) norm(r, 0, c.heads * c.head_dim, d.queries);
      if (c.whole && h == c.heads) norm(r, h * c.head_dim, c.kv_heads * c.head_dim, d.keys);
    }
  return y;
}

/// One rank of `ranks`: its heads of the whole matrices.
template <class T>
class Rank {
public:
  Rank(Case const& c, Data const& d, int rank, int ranks) : c_(c), rank_(rank), ranks_(ranks) {
    shape_ = {.heads = c.heads / ranks,
              .kv_heads = c.kv_heads / ranks,
              .head_dim = c.head_dim,
              .full = c.whole,
              .ranks = ranks,
              .eps = eps};
    auto const part = [&](Vec const& w) {
      auto const n = static_cast<std::int64_t>(w.size()) / (c.whole ? ranks : 1);
      auto const begin = w.begin() + (c.whole ? rank * n : 0);
      return Vec(begin, begin + n);
    };
    auto const columns = width(c) / ranks, qk = (shape_.heads + shape_.kv_heads) * c.head_dim;
    qkv_ = matrix_of<T>(c.rows, columns, mine(d.qkv));
    dqkv_ = matrix_of<T>(c.rows, columns, mine(d.dy));
    before_ = Owned2<T>("p3d::test::before", c.rows, qk);
    scale_ = Owned2<Acc<T>>("p3d::test::scale", c.rows, shape_.norms());
    sums_ = Owned2<Acc<T>>("p3d::test::sums", c.rows, shape_.norms());
    queries_ = vector_of<T>(part(d.queries)), keys_ = vector_of<T>(part(d.keys));
    dqueries_ = vector_of<Acc<T>>(Vec(queries_.size(), 0.5)), dkeys_ = vector_of<Acc<T>>(Vec(keys_.size(), 0.5));
  }
  /// The elements of a whole [rows, width] matrix that the rank has.
  Vec mine(Vec const& whole) const {
    Vec out;
    for (std::int64_t r = 0; r < c_.rows; ++r)
      for (auto const& [begin, n] : blocks())
        for (std::int64_t i = 0; i < n; ++i) out.push_back(whole[static_cast<std::size_t>(r * width(c_) + begin + i)]);
    return out;
  }
  void squares() { p3d::kernels::qk_norm_squares<T>(ExecSpace(), shape_, qkv_, sums_); }
  void forward() { p3d::kernels::qk_norm_forward<T>(ExecSpace(), shape_, weights(), given(), qkv_, before_, scale_); }
  void products() { p3d::kernels::qk_norm_products<T>(ExecSpace(), shape_, weights(), dqkv_, before_, scale_, sums_); }
  void backward() {
    p3d::kernels::ColumnSums<T> sums;
    p3d::kernels::qk_norm_backward<T>(ExecSpace(), shape_, weights(), given(), dqkv_, before_, scale_,
                                      {dqueries_, dkeys_}, sums);
    sums.finish(ExecSpace());
  }
  Vec sums() const { return host(sums_); }
  void set_sums(Vec const& v) { sums_ = matrix_of<Acc<T>>(c_.rows, shape_.norms(), v); }
  Results results() const {
    Results out{host(qkv_), host(dqkv_), host(dqueries_), host(dkeys_)};
    for (auto* sums : {&out.queries, &out.keys})
      for (auto& x : *sums) x -= 0.5;
    return out;
  }

private:
  std::vector<std::pair<std::int64_t, std::int64_t>> blocks() const {
    auto const q = c_.heads / ranks_ * c_.head_dim, k = c_.kv_heads / ranks_ * c_.head_dim,
               all = c_.heads * c_.head_dim;
    return {{rank_ * q, q}, {all + rank_ * k, k}, {all + c_.kv_heads * c_.head_dim + rank_ * k, k}};
  }
  p3d::kernels::QkNormVectors<T const> weights() const { return {queries_, keys_}; }
  p3d::device::View2<Acc<T> const> given() const {
    if (!shape_.sums_over_ranks()) return {};
    return sums_;
  }

  Case c_;
  int rank_, ranks_;
  QkNormShape shape_;
  Owned2<T> qkv_, dqkv_, before_;
  Owned2<Acc<T>> scale_, sums_;
  Owned1<T> queries_, keys_;
  Owned1<Acc<T>> dqueries_, dkeys_;
};

template <class T>
Results one(Case const& c, Data const& d) {
  Rank<T> rank(c, d, 0, 1);
  rank.forward();
  rank.backward();
  return rank.results();
}

class QkNorm : public ::testing::TestWithParam<Case> {
protected:
  Case const c = GetParam();
  Data const d = data_of(c);
};

TEST_P(QkNorm, ForwardMatchesPlainSums) {
  auto const expected = plain(c, d);
  expect_close(one<double>(c, d).qkv, expected, tolerance_of<double>(), "y");
  expect_close(one<float>(c, d).qkv, expected, tolerance_of<float>(), "y");
}

TEST_P(QkNorm, BackwardMatchesFiniteDifferences) {
  auto const found = one<double>(c, d), single = one<float>(c, d);
  auto const slope = [&](Vec& x, std::size_t i) {
    auto const at = [&](double h) {
      auto const old = x[i];
      x[i] = old + h;
      auto const y = plain(c, d);
      x[i] = old;
      double sum = 0;
      for (std::size_t k = 0; k < y.size(); ++k) sum += y[k] * d.dy[k];
      return sum;
    };
    constexpr double h = 1e-5;
    return (at(h) - at(-h)) / (2 * h);
  };
  auto& changed = const_cast<Data&>(d);
  auto const check = [&](Vec& x, Vec const& of_double, Vec const& of_float, char const* what) {
    ASSERT_EQ(of_double.size(), x.size());
    for (std::size_t i = 0; i < x.size(); i += 1 + x.size() / 40) {
      double const expected = slope(x, i);
      EXPECT_NEAR(of_double[i], expected, 1e-7 * (1 + std::abs(expected))) << what << ' ' << i;
      EXPECT_NEAR(of_float[i], expected, 1e-4 * (1 + std::abs(expected))) << what << ' ' << i;
    }
  };
  check(changed.qkv, found.dqkv, single.dqkv, "x");
  check(changed.queries, found.queries, single.queries, "weights of queries");
  check(changed.keys, found.keys, single.keys, "weights of keys");
}

TEST_P(QkNorm, PartsOfTheHeadsMakeTheWhole) {
  int const parts = c.kv_heads % 2 == 0 ? 2 : 1;
  std::vector<Rank<double>> ranks;
  for (int r = 0; r < parts; ++r) ranks.emplace_back(c, d, r, parts);
  auto const meet = [&] {
    if (!c.whole) return;
    auto sum = ranks[0].sums();
    for (int r = 1; r < parts; ++r)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += ranks[static_cast<std::size_t>(r)].sums()[i];
    for (auto& r : ranks) r.set_sums(sum);
  };
  for (auto& r : ranks) r.squares();
  meet();
  for (auto& r : ranks) r.forward();
  for (auto& r : ranks) r.products();
  meet();
  for (auto& r : ranks) r.backward();
  auto const expected = one<double>(c, d);
  Vec queries, keys;
  for (auto const& r : ranks) {
    auto const found = r.results();
    expect_close(found.qkv, r.mine(expected.qkv), tolerance_of<double>(), "y");
    expect_close(found.dqkv, r.mine(expected.dqkv), tolerance_of<double>(), "dx");
    auto const join = [&](Vec& all, Vec const& part) {
      if (c.whole || all.empty()) return all.insert(all.end(), part.begin(), part.end()), void();
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += part[i];
    };
    join(queries, found.queries);
    join(keys, found.keys);
  }
  expect_close(queries, expected.queries, 1e-12, "weights of queries");
  expect_close(keys, expected.keys, 1e-12, "weights of keys");
}

INSTANTIATE_TEST_SUITE_P(Shapes, QkNorm,
                         ::testing::Values(Case{1, 1, 1, 1, false}, Case{5, 4, 2, 6, false}, Case{5, 4, 2, 6, true},
                                           Case{70, 2, 2, 33, false}, Case{70, 2, 2, 130, true},
                                           Case{9, 6, 2, 128, false}),
                         [](auto const& info) {
                           auto const& c = info.param;
                           return "rows" + std::to_string(c.rows) + "_heads" + std::to_string(c.heads) + "_" +
                                  std::to_string(c.kv_heads) + "_of" + std::to_string(c.head_dim) +
                                  (c.whole ? "_whole" : "");
                         });

}  // namespace qk_norm_test
