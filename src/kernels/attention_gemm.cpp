// SPDX-License-Identifier: Apache-2.0
// Attention on devices, by batched GEMMs of the vendor's library. A block of queries of some heads takes all keys that
// one of its queries sees at once (attention_blocks.hpp):
//
//   forward    S = scale q k^T;  P = exp(S - maximum) M, the row's sum;  Y = P v;  out = Y / sum
//   backward   S = scale q k^T, D = dout v^T;  P = exp(S - lse), PM = P M, dS = P (D M - delta);
//              dv += (PM)^T dout, dk += scale dS^T q, dq = scale dS k
//
// With a cap c, S is c tanh(S / c) in both, and dS gets one factor more, 1 - (S / c)^2.
//
// M are the dropout factors. GEMMs read elements of type S and add up in Acc<S>; P, PM and dS are rounded to S for them
// and overwrite the scores. The query heads of a group are rows of one GEMM: where a group has more than one, queries
// are packed [kv heads, members, queries, head_dim]. Example: 8 query heads, 2 kv heads, blocks of 128 queries: two
// GEMMs of 512 rows in a batch. dk and dv are added up over blocks and members in one order, without atomics.

#include "attention_blocks.hpp"
#include "attention_problem.hpp"

#include <p3d/linalg/batched_gemm.hpp>

#include <cstddef>

namespace p3d::kernels {

namespace {

using linalg::BatchedMatrix;
using linalg::batched_gemm;
using linalg::Op;
using RowPolicy = Kokkos::TeamPolicy<ExecSpace>;
using RowMember = RowPolicy::member_type;

/// Four numbers that are read or written at once.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T x[4];
};

/// The rows and columns of scores that a block has: kv heads from kv0 on, `members` of each one's query heads from
/// member0 on, and the queries and keys of a ScoreBlock. Row (c * members + j) * queries + i is query query0 + i of
/// member member0 + j of kv head kv0 + c.
struct Block {
  std::int64_t sample, kv0, kv_heads, member0, members, group;
  std::int64_t query0, queries, key0, keys;
  std::int64_t length;  ///< distance from one row of scores to the next, in numbers

  std::int64_t head_rows() const { return members * queries; }
  std::int64_t rows() const { return kv_heads * members * queries; }
  /// The query head and the query that a row belongs to.
  KOKKOS_INLINE_FUNCTION void find(int row, std::int64_t& head, std::int64_t& query) const {
    int const n = static_cast<int>(queries), m = static_cast<int>(members), line = row / n;
    query = query0 + (row - line * n);
    head = (kv0 + line / m) * group + member0 + line % m;
  }
};

/// The base of kernels on rows of scores. A team has one row; a thread takes four columns at a time. With `held` > 0 a
/// thread's part of a row is `held` fours at most, and all of them are in its registers at once.
template <class S, int held = 0>
struct ScoreRows {
  using T = Acc<S>;
  static constexpr bool narrow = !std::is_same_v<S, T>;
  static constexpr int kept = held > 0 ? held : 1;  ///< the fours that a thread has at a time
  Problem<S> p;
  Block block;

  /// The head and query of a row of scores, and the columns of the keys that it sees.
  struct Row {
    std::int64_t head, query;
    int begin, end;
    KOKKOS_INLINE_FUNCTION bool sees(int column) const { return column >= begin && column < end; }
    KOKKOS_INLINE_FUNCTION bool sees_of_four(int column) const { return column + 4 > begin && column < end; }
  };
  KOKKOS_INLINE_FUNCTION Row find(int number) const {
    Row row;
    block.find(number, row.head, row.query);
    auto const seen = p.visible_in(block.sample, row.query, block.key0, static_cast<int>(block.keys));
    row.begin = static_cast<int>(seen.begin);
    row.end = static_cast<int>(seen.end);
    return row;
  }
  /// The place of a row of type S that overwrites a row of scores: both begin at the same address.
  KOKKOS_INLINE_FUNCTION static S* narrowed(T* scores) { return static_cast<S*>(static_cast<void*>(scores)); }
  /// The distance from one such row of type S to the next, in elements.
  std::int64_t narrow_length() const {
    return block.length * static_cast<std::int64_t>(sizeof(T)) / static_cast<std::int64_t>(sizeof(S));
  }
  KOKKOS_INLINE_FUNCTION static void store(S* place, T const (&x)[4]) {
    Four<S> four;
    P3D_UNROLL
    for (int i = 0; i < 4; ++i) put(four.x[i], x[i]);
    *reinterpret_cast<Four<S>*>(place) = four;
  }
  KOKKOS_INLINE_FUNCTION static Four<T> load(T const* place) { return *reinterpret_cast<Four<T> const*>(place); }
  /// The four scores from `column` on if the row sees one of them, else zeros.
  KOKKOS_INLINE_FUNCTION static Four<T> load_seen(Row const& row, T const* scores, int column) {
    return row.sees_of_four(column) ? load(scores + column) : Four<T>{};
  }

  /// Multiplies four columns of x and of y with their dropout factors. No factors are drawn beyond the last key.
  KOKKOS_INLINE_FUNCTION void drop(std::int64_t head, std::int64_t query, int column, T (&x)[4], T (&y)[4]) const {
    T factor[4] = {};
    int const left = static_cast<int>(block.keys) - column;
    p.factors(block.sample, head, query, block.key0 + column, left < 4 ? left : 4, factor);
    P3D_UNROLL
    for (int i = 0; i < 4; ++i) {
      x[i] *= factor[i];
      y[i] *= factor[i];
    }
  }
  /// Calls f(n, column) for the groups of four columns that this thread keeps, from the group `first` of the row on.
  template <class F>
  KOKKOS_INLINE_FUNCTION void each_kept(RowMember const& team, int first, F const& f) const {
    int const groups = (static_cast<int>(block.keys) + 3) / 4, threads = team.team_size();
    P3D_UNROLL
    for (int n = 0; n < kept; ++n)
      if (int const group = first + n * threads + team.team_rank(); group < groups) f(n, 4 * group);
  }
  /// Calls load_at(n, column) and f(n, column) for all groups of a row, as many at a time as its threads keep. Where S
  /// is narrower than scores, f writes over scores that other threads still read; so the whole team has called load_at
  /// before any thread calls f.
  template <class Load, class F>
  KOKKOS_INLINE_FUNCTION void each_four(RowMember const& team, Load const& load_at, F const& f) const {
    int const groups = (static_cast<int>(block.keys) + 3) / 4, step = kept * team.team_size();
    for (int first = 0; first < groups; first += step) {
      each_kept(team, first, load_at);
      if constexpr (narrow) team.team_barrier();
      each_kept(team, first, f);
    }
  }
};

/// Forward: turns the scores of a row into exp(score - maximum) for the visible keys, times their dropout factors, and
/// 0 for others. Each row leaves two numbers in `factor` for the new result: the multiplier of the old result, and that
/// of the GEMM with v.
template <class S, bool plain, int held>
struct Softmax : ScoreRows<S, held> {
  static constexpr bool holds = true;  // it would read twice
  using T = Acc<S>;
  using Base = ScoreRows<S, held>;
  using Row = typename Base::Row;
  T* scores;
  T* factor;
  View1<T> lse;
  bool adds;

  Softmax(Problem<S> const& p, Block const& b, T* s, T* f, View1<T> const& l, bool a)
      : Base{p, b}, scores(s), factor(f), lse(l), adds(a) {}

  KOKKOS_INLINE_FUNCTION static void raise(T& top, Row const& row, int column, Four<T> const& four) {
    P3D_UNROLL
    for (int i = 0; i < 4; ++i)
      if (row.sees(column + i) && four.x[i] > top) top = four.x[i];
  }
  KOKKOS_INLINE_FUNCTION void operator()(RowMember const& team) const {
    auto const& b = this->block;
    int const number = team.league_rank();
    auto const row = this->find(number);
    T* const s = scores + number * b.length;
    // First pass over the row: its maximum among the visible keys.
    Four<T> four[Base::kept];
    T top = -infinity<T>;
    if constexpr (held > 0) {
      this->each_kept(team, 0, [&](int n, int column) { four[n] = Base::load_seen(row, s, column); });
      this->each_kept(team, 0, [&](int n, int column) { raise(top, row, column, four[n]); });
    } else {
      for (int j = row.begin / 4 + team.team_rank(); 4 * j < row.end; j += team.team_size())
        raise(top, row, 4 * j, Base::load(s + 4 * j));
    }
    team.team_reduce(Kokkos::Max<T>(top));
    T const cap = static_cast<T>(this->p.shape.softcap);
    // soft_cap ascends: the cap of the largest score is the largest capped score.
    if (!plain && cap > T(0) && top > -infinity<T>) top = soft_cap(top, cap);
    // Second pass: exponentials, their sum (before dropout, as the softmax is defined), and the narrowed row in place.
    T sum = 0;
    auto const finish = [&](int n, int column) {
      T e[4];
      P3D_UNROLL
      for (int i = 0; i < 4; ++i) {
        T const score = !plain && cap > T(0) ? soft_cap(four[n].x[i], cap) : four[n].x[i];
        e[i] = row.sees(column + i) ? exp_of(score - top) : T(0);
        sum += e[i];
      }
      if (!plain && this->p.dropout.active()) this->drop(row.head, row.query, column, e, four[n].x);
      Base::store(Base::narrowed(s) + column, e);
    };
    if constexpr (held > 0)
      this->each_kept(team, 0, finish);  // the maximum of the team has waited for all loads
    else
      this->each_four(
          team, [&](int n, int column) { four[n] = Base::load_seen(row, s, column); }, finish);
    team.team_reduce(Kokkos::Sum<T>(sum));
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      // One thread merges the block's maximum and sum with the result over other keys, and leaves the factors of both.
      T& norm = lse(this->p.statistic(b.sample, row.head, row.query));
      T const before = adds ? norm : -infinity<T>, most = before > top ? before : top;
      T const old_part = before > -infinity<T> ? exp_of(before - most) : T(0);
      T const new_part = sum == T(0) ? T(0) : exp_of(top - most);
      T const total = old_part + new_part * sum;
      factor[2 * number] = total == T(0) ? T(0) : old_part / total;
      factor[2 * number + 1] = total == T(0) ? T(0) : new_part / total;
      norm = total == T(0) ? -infinity<T> : most + std::log(total);
    });
  }
};

/// Backward: turns the scores of a row into probabilities times their dropout factors, and the gradients of those into
/// gradients of scores.
template <class S, bool plain, int held>
struct ScoreGradients : ScoreRows<S, held> {
  static constexpr bool holds = false;
  using T = Acc<S>;
  using Base = ScoreRows<S, held>;
  T *scores, *gradients;
  View1<T const> lse, delta;

  ScoreGradients(Problem<S> const& p, Block const& b, T* s, T* g, View1<T const> const& l, View1<T const> const& d)
      : Base{p, b}, scores(s), gradients(g), lse(l), delta(d) {}

  KOKKOS_INLINE_FUNCTION void operator()(RowMember const& team) const {
    auto const& b = this->block;
    int const number = team.league_rank();
    auto const row = this->find(number);
    T *const s = scores + number * b.length, *const d = gradients + number * b.length;
    auto const at = this->p.statistic(b.sample, row.head, row.query);
    T const norm = lse(at), shift = delta(at), cap = static_cast<T>(this->p.shape.softcap);
    Four<T> score[Base::kept], gradient[Base::kept];
    this->each_four(
        team,
        [&](int n, int column) {
          score[n] = Base::load_seen(row, s, column);
          gradient[n] = Base::load_seen(row, d, column);
        },
        [&](int n, int column) {
          T pm[4], ds[4], prob[4];
          P3D_UNROLL
          for (int i = 0; i < 4; ++i) {
            if (!plain && cap > T(0)) score[n].x[i] = soft_cap(score[n].x[i], cap);
            pm[i] = prob[i] = row.sees(column + i) ? exp_of(score[n].x[i] - norm) : T(0);
            ds[i] = gradient[n].x[i];
          }
          if (!plain && this->p.dropout.active()) this->drop(row.head, row.query, column, pm, ds);
          P3D_UNROLL
          for (int i = 0; i < 4; ++i) {
            if (!plain && cap > T(0)) prob[i] *= soft_cap_slope(score[n].x[i], cap);
            // An entry that is not seen may be anything, NaN included.
            ds[i] = row.sees(column + i) ? prob[i] * (ds[i] - shift) : T(0);
          }
          Base::store(Base::narrowed(s) + column, pm);
          Base::store(Base::narrowed(d) + column, ds);
        });
  }
};

// The kernels around the GEMMs take chunks of rows (for_chunks). Where a kernel works on two matrices of different
// widths, its rows are those of the wider one.

/// The number of a chunk's columns, n from `column` on, that a matrix of `width` columns has; 0 or less for none.
KOKKOS_INLINE_FUNCTION int within(std::int64_t width, std::int64_t column, int n) {
  return width - column < n ? static_cast<int>(width - column) : n;
}

/// Copies rows of queries, and of the output's gradients where they are given, into the order of the block's rows.
template <class S>
struct PackRows {
  Problem<S> p;
  Block block;
  StridedMatrix<S const> dout;
  S *queries, *gradients;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, int n) const {
    std::int64_t head, query;
    block.find(static_cast<int>(row), head, query);
    std::int64_t const dim = p.shape.head_dim, values = p.shape.values();
    S const* const x = p.of_query(p.q, block.sample, query, head).data + column;
    S* const to = queries + row * dim + column;
    for (int i = 0; i < within(dim, column, n); ++i) to[i] = x[i];
    if (gradients == nullptr) return;
    S const* const y = p.of_output(dout, block.sample, query, head).data + column;
    S* const to_gradient = gradients + row * values + column;
    for (int i = 0; i < within(values, column, n); ++i) to_gradient[i] = y[i];
  }
};

/// out = old factor * out + new factor * y, from the rows of a block to their places.
template <class S, class O>
struct StoreOutput {
  using T = Acc<S>;
  Problem<S> p;
  Block block;
  T const *y, *factor;
  StridedMatrix<O> out;
  bool adds;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, int n) const {
    std::int64_t head, query;
    block.find(static_cast<int>(row), head, query);
    O* const place = p.of_output(out, block.sample, query, head).data + column;
    T const* const x = y + row * p.shape.values() + column;
    T const of_old = factor[2 * row], of_new = factor[2 * row + 1];
    for (int i = 0; i < n; ++i) {
      T const fresh = of_new == T(0) ? T(0) : x[i] * of_new;
      put(place[i], adds && of_old != T(0) ? static_cast<T>(place[i]) * of_old + fresh : fresh);
    }
  }
};

/// dq = y or dq += y, from the rows of a block to their places.
template <class S, class D>
struct StoreQueryGradient {
  using T = Acc<S>;
  Problem<S> p;
  Block block;
  T const* y;
  StridedMatrix<D> dq;
  bool adds;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, int n) const {
    std::int64_t head, query;
    block.find(static_cast<int>(row), head, query);
    D* const place = p.of_query(dq, block.sample, query, head).data + column;
    T const* const x = y + row * p.shape.head_dim + column;
    for (int i = 0; i < n; ++i) put(place[i], adds ? static_cast<T>(place[i]) + x[i] : x[i]);
  }
};

/// Clears two matrices.
template <class T>
struct ClearBoth {
  StridedMatrix<T> a, b;
  std::int64_t a_width, b_width;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, int n) const {
    for (int i = 0; i < within(a_width, column, n); ++i) a.row(row)[column + i] = T(0);
    for (int i = 0; i < within(b_width, column, n); ++i) b.row(row)[column + i] = T(0);
  }
};

/// Rounds two matrices of sums into their places.
template <class T, class D>
struct StoreBoth {
  StridedMatrix<T> a, b;
  StridedMatrix<D> to_a, to_b;
  std::int64_t a_width, b_width;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, int n) const {
    for (int i = 0; i < within(a_width, column, n); ++i) put(to_a.row(row)[column + i], a.row(row)[column + i]);
    for (int i = 0; i < within(b_width, column, n); ++i) put(to_b.row(row)[column + i], b.row(row)[column + i]);
  }
};

/// Launches Rows<S, plain, held> on the rows of scores of a block, one team to each. `plain` rows have neither a cap
/// nor dropout. `held` > 0 is for attention in 16 bits where Rows::holds and a thread has 16 fours of a row at most.
template <template <class, bool, int> class Rows, class S, class... Args>
void launch_rows(std::string const& label, ExecSpace const& exec, Problem<S> const& p, Block const& b,
                 Args const&... args) {
  std::int64_t const fours = (b.keys + 3) / 4;
  constexpr bool holds = ScoreRows<S>::narrow && Rows<S, true, 0>::holds;
  bool const plain = p.shape.softcap == 0 && !p.dropout.active();
  // A plain row that one warp keeps waits for nobody: on an H200 forward takes 5.3 ms instead of 6.3 (32 heads, 16,384
  // tokens in samples of 2,048). Other rows gain nothing by other teams than 128 threads. The registers of the kernels
  // allow no more than 384.
  int threads = holds && plain ? 32 : 128;
  while (holds && plain && 16 * threads < fours && threads < 256) threads *= 2;
  auto const policy =
      on_cores ? team_policy<RowPolicy>(exec, b.rows()) : RowPolicy(exec, team_count(b.rows()), threads);
  if (on_cores) threads = std::max(1, team_threads);
  auto const launch = [&](auto held) {
    if (plain)
      launch_kernel(label, policy, Rows<S, true, held()>(p, b, args...));
    else
      launch_kernel(label, policy, Rows<S, false, held()>(p, b, args...));
  };
  if constexpr (holds) {
    if (fours <= 4 * threads) return launch(std::integral_constant<int, 4>());
    if (fours <= 8 * threads) return launch(std::integral_constant<int, 8>());
    if (fours <= 16 * threads) return launch(std::integral_constant<int, 16>());
  }
  launch(std::integral_constant<int, 0>());
}

/// One call of attention: its matrices, its scratch memory, and the steps of a block.
template <class S>
class Attention {
public:
  using T = Acc<S>;
  using Matrix = BatchedMatrix<S const>;
  /// The heads of a block in a matrix of queries, keys, values or outputs, `dim` columns each.
  struct Heads {
    Matrix matrix;
    std::int64_t dim;
  };

  Attention(char const* name, ExecSpace const& exec, Problem<S> const& p, AttentionScratch const& scratch)
      : label_(name), exec_(exec), p_(p), blocks_(p.shape), next_(static_cast<std::byte*>(scratch.data)) {
    P3D_REQUIRE(scratch.bytes >= AttentionBlocks<S>::scratch_bytes(p.shape),
                "the scratch memory of attention is large enough for its shape");
  }
  AttentionBlocks<S> const& blocks() const { return blocks_; }
  std::int64_t group() const { return p_.shape.heads / p_.shape.kv_heads; }
  std::int64_t dim() const { return p_.shape.head_dim; }
  std::int64_t values() const { return p_.shape.values(); }

  /// Takes memory for n numbers from the call's scratch memory. each_block gives back at each block what the block
  /// before took.
  template <class U>
  U* take(std::int64_t n) {
    auto* const piece = static_cast<void*>(next_);
    constexpr auto alignment = base::AttentionScores::alignment;
    next_ += (n * static_cast<std::int64_t>(sizeof(U)) + alignment - 1) / alignment * alignment;
    return static_cast<U*>(piece);
  }
  /// Calls f(block) for the blocks of some kv heads of a sample, in a fixed order.
  template <class F>
  void each_block(std::int64_t sample, std::int64_t kv0, std::int64_t kv_heads, F const& f) {
    auto* const kept = next_;
    for (std::int64_t member0 = 0; member0 < group(); member0 += blocks_.members()) {
      auto const members = std::min(blocks_.members(), group() - member0);
      for (std::int64_t query0 = 0; query0 < p_.queries;) {
        auto const b = blocks_.at(query0);
        next_ = kept;
        f(Block{sample, kv0, kv_heads, member0, members, group(), query0, b.queries, b.key0, b.keys,
                base::AttentionScores::row_length(b.keys)});
        query0 += b.queries;
      }
    }
    next_ = kept;
  }
  /// Calls f(sample, first kv head, kv heads) for the kv heads that blocks take at a time.
  template <class F>
  void each_heads(F const& f) {
    for (std::int64_t sample = 0; sample < p_.shape.samples; ++sample)
      for (std::int64_t kv0 = 0; kv0 < p_.shape.kv_heads; kv0 += blocks_.kv_heads())
        f(sample, kv0, std::min(blocks_.kv_heads(), p_.shape.kv_heads - kv0));
  }

  /// The queries of a block where they lie; only for groups of one member.
  Heads of_queries(Block const& b) const {
    return {{p_.of_query(p_.q, b.sample, b.query0, b.kv0).data, p_.q.stride, dim()}, dim()};
  }
  /// The gradients of a block's outputs where they lie; only for groups of one member.
  Heads of_outputs(Block const& b, StridedMatrix<S const> dout) const {
    return {{p_.of_output(dout, b.sample, b.query0, b.kv0).data, dout.stride, values()}, values()};
  }
  /// The rows of a block that were packed into `memory`, with heads of `width` columns.
  Heads packed(Block const& b, S const* memory, std::int64_t width) const {
    return {{memory, width, b.head_rows() * width}, width};
  }
  /// Packs the queries of a block, and the gradients of its output where dout is given.
  void pack(Block const& b, StridedMatrix<S const> dout, S* queries, S* gradients) const {
    auto const columns = gradients == nullptr ? dim() : std::max(dim(), values());
    for_chunks<element_width>(label_ + "_pack", exec_, b.rows(), columns, PackRows<S>{p_, b, dout, queries, gradients});
  }
  /// The keys of a block where they lie.
  Heads of_keys(Block const& b) const {
    return {{p_.of_key(p_.k, b.sample, b.key0, b.kv0).data, p_.k.stride, dim()}, dim()};
  }
  /// The values of a block where they lie.
  Heads of_values(Block const& b) const {
    return {{p_.of_value(p_.v, b.sample, b.key0, b.kv0).data, p_.v.stride, values()}, values()};
  }
  /// scores = alpha rows keys^T, where `keys` may be values too.
  void scores(Block const& b, double alpha, Heads const& rows, Heads const& keys, T* scores) const {
    batched_gemm<S, T>(exec_, Op::none, Op::transpose, {b.kv_heads, b.head_rows(), b.keys, rows.dim},
                       static_cast<T>(alpha), rows.matrix, keys.matrix, T(0),
                       {scores, b.length, b.head_rows() * b.length});
  }
  /// result [rows, keys.dim] = alpha probabilities keys, where `keys` may be values too.
  void over_keys(Block const& b, double alpha, Matrix probabilities, Heads const& keys, T* result) const {
    batched_gemm<S, T>(exec_, Op::none, Op::none, {b.kv_heads, b.head_rows(), keys.dim, b.keys}, static_cast<T>(alpha),
                       probabilities, keys.matrix, T(0), {result, keys.dim, b.head_rows() * keys.dim});
  }
  /// sums of the block's keys += alpha probabilities^T rows. `sums` has a row for each key of the sample, with the
  /// columns of the heads side by side.
  void over_rows(Block const& b, double alpha, Matrix probabilities, Heads const& rows, StridedMatrix<T> sums) const {
    batched_gemm<S, T>(exec_, Op::transpose, Op::none, {b.kv_heads, b.keys, rows.dim, b.head_rows()},
                       static_cast<T>(alpha), probabilities, rows.matrix, T(1),
                       {sums.row(b.key0), sums.stride, rows.dim});
  }
  std::string const& label() const { return label_; }

private:
  std::string label_;
  ExecSpace const& exec_;
  Problem<S> const& p_;
  AttentionBlocks<S> blocks_;
  std::byte* next_;
};

}  // namespace

template <class S, class O>
void gemm::attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                             AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,
                             Store store, HeadRows<O> out, View1<Acc<S>> lse) {
  if constexpr (!on_host) {  // in builds for the host nobody calls this form, and it compiles to nothing
    using T = Acc<S>;
    Problem<S> const p(shape, dropout, q, k, v);
    Attention<S> call("p3d::kernels::attention_forward", exec, p, scratch);
    auto const result = matrix(out);
    bool const adds = store == Store::add;
    std::int64_t const dim = shape.head_dim, values = shape.values();
    call.each_heads([&](std::int64_t sample, std::int64_t kv0, std::int64_t kv_heads) {
      call.each_block(sample, kv0, kv_heads, [&](Block const& b) {
        T* const scores = call.template take<T>(b.rows() * b.length);
        T* const y = call.template take<T>(b.rows() * values);
        T* const factor = call.template take<T>(2 * b.rows());
        auto queries = call.of_queries(b);
        if (b.group > 1) {
          S* const memory = call.template take<S>(b.rows() * dim);
          call.pack(b, {}, memory, nullptr);
          queries = call.packed(b, memory, dim);
        }
        call.scores(b, shape.scale, queries, call.of_keys(b), scores);
        launch_rows<Softmax>(call.label(), exec, p, b, scores, factor, lse, adds);
        auto const length = ScoreRows<S>{p, b}.narrow_length();
        call.over_keys(b, 1.0, {ScoreRows<S>::narrowed(scores), length, b.head_rows() * length}, call.of_values(b), y);
        for_chunks<element_width>(call.label() + "_store", exec, b.rows(), values,
                                  StoreOutput<S, O>{p, b, y, factor, result, adds});
      });
    });
  }
}

template <class S, class D>
void gemm::attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,
                              AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,
                              HeadRows<S const> dout, View1<Acc<S> const> lse, View1<Acc<S> const> delta, Store store_q,
                              HeadRows<D> dq, Store store_kv, HeadRows<D> dk, HeadRows<D> dv,
                              WholeOutput<S> const& whole) {
  if constexpr (!on_host) {
    using T = Acc<S>;
    constexpr bool beside = !std::is_same_v<D, T>;
    if (whole.out.data) kernels::attention_delta<S>(exec, shape, whole.out, dout, whole.delta);
    Problem<S> const p(shape, dropout, q, k, v);
    Attention<S> call("p3d::kernels::attention_backward", exec, p, scratch);
    auto const dy = matrix(dout);
    auto const result = matrix(dq);
    bool const adds = store_q == Store::add;
    std::int64_t const dim = shape.head_dim, values = shape.values();
    // Sums of dk and dv need a place of their own only where the results are narrower than sums.
    T* const memory = beside ? call.template take<T>(call.blocks().kv_heads() * p.keys * (dim + values)) : nullptr;
    call.each_heads([&](std::int64_t sample, std::int64_t kv0, std::int64_t kv_heads) {
      std::int64_t const k_width = kv_heads * dim, v_width = kv_heads * values, width = std::max(k_width, v_width);
      auto const place_k = p.of_key(matrix(dk), sample, 0, kv0), place_v = p.of_value(matrix(dv), sample, 0, kv0);
      StridedMatrix<T> sums_k{memory, k_width}, sums_v{memory + p.keys * k_width, v_width};
      if constexpr (!beside) {
        sums_k = place_k;
        sums_v = place_v;
      }
      if (store_kv == Store::overwrite)
        for_chunks<element_width>(call.label() + "_clear", exec, p.keys, width,
                                  ClearBoth<T>{sums_k, sums_v, k_width, v_width});
      call.each_block(sample, kv0, kv_heads, [&](Block const& b) {
        T* const scores = call.template take<T>(b.rows() * b.length);
        T* const gradients = call.template take<T>(b.rows() * b.length);
        T* const y = call.template take<T>(b.rows() * dim);
        auto queries = call.of_queries(b), of_out = call.of_outputs(b, dy);
        if (b.group > 1) {
          S* const first = call.template take<S>(b.rows() * dim);
          S* const second = call.template take<S>(b.rows() * values);
          call.pack(b, dy, first, second);
          queries = call.packed(b, first, dim);
          of_out = call.packed(b, second, values);
        }
        call.scores(b, shape.scale, queries, call.of_keys(b), scores);
        call.scores(b, 1.0, of_out, call.of_values(b), gradients);
        launch_rows<ScoreGradients>(call.label(), exec, p, b, scores, gradients, lse, delta);
        auto const length = ScoreRows<S>{p, b}.narrow_length(), all = b.head_rows() * length;
        auto* const of_scores = ScoreRows<S>::narrowed(gradients);
        call.over_rows(b, 1.0, {ScoreRows<S>::narrowed(scores), length, all}, of_out, sums_v);
        call.over_rows(b, shape.scale, {of_scores, length, all}, queries, sums_k);
        call.over_keys(b, shape.scale, {of_scores, length, all}, call.of_keys(b), y);
        for_chunks<element_width>(call.label() + "_store", exec, b.rows(), dim,
                                  StoreQueryGradient<S, D>{p, b, y, result, adds});
      });
      if constexpr (beside)
        for_chunks<element_width>(call.label() + "_store_keys", exec, p.keys, width,
                                  StoreBoth<T, D>{sums_k, sums_v, place_k, place_v, k_width, v_width});
    });
  }
}

#define P3D_INSTANTIATE(S, D) P3D_INSTANTIATE_ATTENTION(gemm::, S, D)
P3D_ATTENTION_TYPES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::kernels
