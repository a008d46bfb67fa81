// SPDX-License-Identifier: Apache-2.0
// Attention of some queries over some keys: documents and windows against the matrices written out, and blocks of keys,
// one after the other, against all at once.

#include "attention_case.hpp"

#include <p3d/base/token_set.hpp>

namespace attention_test {

using p3d::base::TokenSet;

std::vector<Case> cases() {
  std::vector<Case> out;
  auto const add = [&](Case c, std::int64_t window, std::vector<int> const& lengths) {
    c.window = window;
    if (!lengths.empty()) c.documents = documents_of(c.samples, c.seq, lengths);
    out.push_back(c);
  };
  add({1, 70, 2, 1, 8, 0.0}, 1, {});
  add({2, 70, 2, 2, 8, 0.3}, 3, {});
  add({1, 600, 2, 1, 8, 0.0}, 65, {});
  add({1, 530, 1, 1, 6, 0.2}, 300, {});
  add({1, 65, 2, 2, 8, 0.0}, 1000, {});
  add({2, 70, 4, 2, 8, 0.0}, 0, {1});
  add({2, 70, 4, 2, 8, 0.2}, 0, {1, 5, 70, 3, 64});
  add({1, 600, 2, 1, 8, 0.0}, 0, {257, 3, 200, 1, 1});
  add({1, 600, 1, 1, 8, 0.1}, 40, {257, 3, 200, 1, 1});
  add(with_values({2, 70, 4, 2, 6, 0.2}, 4), 40, {1, 5, 70, 3, 64});
  add(with_values({1, 600, 2, 1, 4, 0.0}, 6), 65, {});
  add(with_cap({2, 70, 4, 2, 8, 0.2}, 0.6), 40, {1, 5, 70, 3, 64});
  add(with_cap({1, 600, 2, 1, 8, 0.0}, 0.9), 65, {});
  return out;
}

class AttentionMask : public ::testing::TestWithParam<int> {
protected:
  Case const c = cases()[static_cast<std::size_t>(GetParam())];
};
TEST_P(AttentionMask, IsThatOfTheMatricesWrittenOut) {
  auto const qkv = random_values("qkv", c.rows() * c.width()), dout = random_values("dout", c.rows() * c.out_width());
  auto const expected = plain(c, qkv);
  auto const d = forward<double>(c, qkv);
  expect_close(d.out, expected.out, 1e-13, "out");
  expect_close(d.lse, expected.lse, 1e-13, "lse");
  expect_close(backward<double>(c, qkv, dout, d), plain_gradient(c, qkv, dout), 1e-13, "dqkv");
  auto const f = forward<float>(c, qkv);
  expect_close(f.out, expected.out, 4e-6, "out, float");
  expect_close(backward<float>(c, qkv, dout, f), plain_gradient(c, qkv, dout), 1e-5, "dqkv, float");
}
INSTANTIATE_TEST_SUITE_P(All, AttentionMask, ::testing::Range(0, 13));

/// Rows of the tokens of a set, of each sample.
Vec rows_of(Vec const& m, std::int64_t samples, std::int64_t seq, std::int64_t width, TokenSet const& tokens) {
  Vec out;
  for (std::int64_t s = 0; s < samples; ++s)
    for (std::int64_t i = 0; i < tokens.size(); ++i) {
      auto const row = m.begin() + (s * seq + tokens.at(i)) * width;
      out.insert(out.end(), row, row + width);
    }
  return out;
}

/// What a rank of context parallelism does: its queries, over one set of keys after the other.
template <class S>
void check_blocks(Case const& c, std::vector<TokenSet> const& sets, double tolerance) {
  using A = Acc<S>;
  auto const qkv = rounded<S>(random_values("qkv", c.rows() * c.width())),
             dout = rounded<S>(random_values("dout", c.rows() * c.out_width()));
  auto const whole = plain(c, qkv);
  auto const gradient = plain_gradient(c, qkv, dout);
  auto const documents = ints_of(c.documents);
  auto const key_columns = c.kv_heads * c.dim, columns = key_columns + c.kv_heads * c.values();
  Vec dkeys(c.rows() * columns, 0.0);
  for (auto const& mine : sets) {
    auto const n = c.samples * mine.size();
    auto const own = matrix_of<S>(n, c.width(), rows_of(qkv, c.samples, c.seq, c.width(), mine));
    auto const own_dout = matrix_of<S>(n, c.out_width(), rows_of(dout, c.samples, c.seq, c.out_width(), mine));
    Owned2<A> const out("p3d::test::out", n, c.out_width()), dq("p3d::test::dq", n, c.heads * c.dim);
    Owned1<A> const lse("p3d::test::lse", n * c.heads), delta("p3d::test::delta", n * c.heads);
    Kokkos::deep_copy(out, std::nan(""));
    Kokkos::deep_copy(dq, std::nan(""));
    auto const call = [&](TokenSet const& keys, auto const& with) {
      auto shape = c.shape();
      shape.queries = mine;
      shape.keys = keys;
      shape.documents = documents;
      auto const others =
          matrix_of<S>(c.samples * keys.size(), c.width(), rows_of(qkv, c.samples, c.seq, c.width(), keys));
      with(shape, Parts<S const>(c, View2<S const>(own)), Parts<S const>(c, View2<S const>(others)));
    };
    auto store = kernels::Store::overwrite;
    for (auto const& keys : sets) {
      call(keys, [&](auto const& shape, auto const& q, auto const& kv) {
        auto const y = kernels::heads_of(View2<A>(out));
        Scratch<S> const scratch(shape);
        kernels::attention_forward<S, A>(ExecSpace(), shape, c.dropout(), scratch, q.q, kv.k, kv.v, store, y, lse);
      });
      store = kernels::Store::add;
    }
    expect_close(host(out), rows_of(whole.out, c.samples, c.seq, c.out_width(), mine), tolerance, "out");
    // delta of the whole output
    call(mine, [&](auto const& shape, auto const&, auto const&) {
      auto const y = matrix_of<S>(n, c.out_width(), rows_of(whole.out, c.samples, c.seq, c.out_width(), mine));
      kernels::attention_delta<S>(ExecSpace(), shape, kernels::heads_of(View2<S const>(y)),
                                  kernels::heads_of(View2<S const>(own_dout)), delta);
    });
    store = kernels::Store::overwrite;
    for (auto const& keys : sets) {
      Owned2<A> const part("p3d::test::dkeys", c.samples * keys.size(), columns);
      Kokkos::deep_copy(part, std::nan(""));
      call(keys, [&](auto const& shape, auto const& q, auto const& kv) {
        auto const dk = kernels::heads_of(View2<A>(part)), dv = kernels::heads_of(View2<A>(part), key_columns);
        auto const dy = kernels::heads_of(View2<S const>(own_dout));
        auto const dqs = kernels::heads_of(View2<A>(dq));
        View1<A const> const norm = lse, shift = delta;
        auto const all = kernels::Store::overwrite;
        Scratch<S> const scratch(shape);
        kernels::attention_backward<S, A>(ExecSpace(), shape, c.dropout(), scratch, q.q, kv.k, kv.v, dy, norm, shift,
                                          store, dqs, all, dk, dv);
      });
      auto const found = host(part);
      for (std::int64_t s = 0; s < c.samples; ++s)
        for (std::int64_t i = 0; i < keys.size(); ++i)
          for (std::int64_t j = 0; j < columns; ++j)
            dkeys[(s * c.seq + keys.at(i)) * columns + j] += found[(s * keys.size() + i) * columns + j];
      store = kernels::Store::add;
    }
    expect_close(host(dq),
                 columns_of(rows_of(gradient, c.samples, c.seq, c.width(), mine), c.width(), {{0, c.heads * c.dim}}),
                 3 * tolerance, "dq");
  }
  expect_close(dkeys, columns_of(gradient, c.width(), {{c.heads * c.dim, columns}}), 3 * tolerance, "dk, dv");
}

TEST(AttentionBlocks, OneAfterTheOtherAreAllAtOnce) {
  auto const range = [](std::int64_t a, std::int64_t b) { return TokenSet::range(a, b); };
  auto const striped = [](std::int64_t first, std::int64_t count) {
    TokenSet t;
    t.stride = 3;
    t.runs[0] = {first, count};
    return t;
  };
  std::vector<std::vector<TokenSet>> const divisions{
      {range(0, 20), range(20, 21), range(21, 71)},         // one sees nothing of the last
      {{{{0, 9}, {60, 11}}, 1}, {{{9, 20}, {29, 31}}, 1}},  // zigzag
      {striped(0, 24), striped(1, 24), striped(2, 23)}};
  for (auto c : {Case{2, 71, 4, 2, 8, 0.0}, Case{1, 71, 2, 2, 6, 0.3}, with_values({1, 71, 4, 2, 6, 0.2}, 4),
                 with_values({1, 71, 2, 2, 4, 0.0}, 6)})
    for (std::int64_t window : {0, 17})
      for (bool const packed : {false, true})
        for (auto const& sets : divisions) {
          c.window = window;
          c.documents = packed ? documents_of(c.samples, c.seq, {13, 1, 30, 40}) : std::vector<int>{};
          check_blocks<double>(c, sets, 1e-13);
          check_blocks<float>(c, sets, 1e-5);
        }
}

TEST(AttentionBlocks, In16BitsAddUpInMore) {
  for (auto c :
       {Case{1, 71, 2, 1, 8, 0.2}, with_values({1, 71, 2, 1, 6, 0.2}, 4), with_values({1, 71, 2, 1, 4, 0.2}, 6)}) {
    c.documents = documents_of(1, 71, {50, 21});
    check_blocks<bfloat16>(c, {TokenSet::range(0, 30), TokenSet::range(30, 71)}, 1e-2);
    check_blocks<float16>(c, {TokenSet::range(0, 30), TokenSet::range(30, 71)}, 2e-3);
  }
}

/// A few queries at the end of a long sample, each of which looks most at one key, far from those of the others.
template <class S>
void check_long_rows(std::int64_t seq, double softcap) {
  SCOPED_TRACE("softcap " + std::to_string(softcap));
  using A = Acc<S>;
  constexpr std::int64_t count = 3, dim = 8;
  auto c = with_cap({1, seq, 1, 1, dim, 0.0}, softcap);
  c.first_query = seq - count;
  auto shape = c.shape();
  shape.queries = TokenSet::range(c.first_query, seq);
  auto qkv = rounded<S>(random_values("qkv", c.rows() * c.width()));
  auto const dout = rounded<S>(random_values("dout", c.rows() * c.out_width()));
  std::int64_t const most[] = {17, seq / 2 + 1, seq - 5};
  Head const head{c, 0, 0};
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t d = 0; d < dim; ++d) qkv[head.k(most[i], d)] = 8 * qkv[head.q(c.first_query + i, d)];
  auto const x = matrix_of<S>(seq, c.width(), qkv), dy = matrix_of<S>(seq, dim, dout);
  Owned2<S> const y("p3d::test::out", count, dim);
  Owned2<A> const dq("p3d::test::dq", count, dim), dkv("p3d::test::dkv", seq, 2 * dim);
  Owned1<A> const lse("p3d::test::lse", count), delta("p3d::test::delta", count);
  Scratch<S> const scratch(shape);
  auto const last = [&](View2<S const> m) {  // the rows of the queries
    auto rows = kernels::heads_of(m);
    rows.data += c.first_query * rows.stride;
    return rows;
  };
  Parts<S const> const in(c, View2<S const>(x));
  auto const q = last(x), d = last(dy);
  auto const all = kernels::Store::overwrite;
  kernels::attention_forward<S, S>(ExecSpace(), shape, {}, scratch, q, in.k, in.v, all, kernels::heads_of(View2<S>(y)),
                                   lse);
  kernels::attention_delta<S>(ExecSpace(), shape, kernels::heads_of(View2<S const>(y)), d, delta);
  kernels::attention_backward<S, A>(ExecSpace(), shape, {}, scratch, q, in.k, in.v, d, View1<A const>(lse),
                                    View1<A const>(delta), all, kernels::heads_of(View2<A>(dq)), all,
                                    kernels::heads_of(View2<A>(dkv)), kernels::heads_of(View2<A>(dkv), dim));
  // Delta is of the rounded output, and the keys that are seen most are large.
  double const tolerance = std::is_same_v<S, A> ? 1e-5 : 16 * roundoff<S>;
  auto const gradient = plain_gradient(c, qkv, dout);
  expect_close(host(y), rows_of(plain(c, qkv).out, 1, seq, dim, shape.queries), tolerance / 4, "out");
  expect_close(host(dq), columns_of(rows_of(gradient, 1, seq, c.width(), shape.queries), c.width(), {{0, dim}}),
               tolerance, "dq");
  expect_close(host(dkv), columns_of(gradient, c.width(), {{dim, 2 * dim}}), tolerance, "dkv");
}

// Lengths on both sides of those whose rows a team of a GPU keeps in registers.
TEST(AttentionRows, MayBeLong) {
  for (std::int64_t seq : {9000, 16384, 16390, 40000})
    for (double softcap : {0.0, 6.0}) check_long_rows<bfloat16>(seq, softcap);
  check_long_rows<float>(40000, 6.0);
  check_long_rows<double>(70000, 6.0);
}

}  // namespace attention_test
