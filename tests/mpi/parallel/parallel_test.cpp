// SPDX-License-Identifier: Apache-2.0
// Tensor-parallel layers and vocabulary-parallel loss against the same thing computed whole on one rank.

#include <p3d/base/poll.hpp>
#include <p3d/base/random.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/linalg/gemm.hpp>
#include <p3d/parallel/linear.hpp>
#include <p3d/parallel/rows.hpp>
#include <p3d/parallel/vocab.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/errors.hpp>
#include <support/processor.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace p3d;
using device::View1;
using device::View2;
using Matrix = device::Owned2<double>;

constexpr std::int64_t tokens = 5;

/// Element (i, j) of a test matrix, the same on every rank.
double element(char const* name, std::int64_t i, std::int64_t j) {
  return base::random_normal(base::random_key(3, name), static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(j));
}

/// Rows [r0, r0 + rows) and columns [c0, c0 + cols) of a test matrix.
Matrix block(char const* name, std::int64_t r0, std::int64_t rows, std::int64_t c0, std::int64_t cols) {
  Matrix m("p3d::test::block", static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
  auto const host = device::host_mirror(m);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) host(i, j) = element(name, r0 + i, c0 + j);
  }
  Kokkos::deep_copy(m, host);
  return m;
}

Matrix zeros(std::int64_t rows, std::int64_t cols) {
  return Matrix("p3d::test::zeros", static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
}

/// c = a b^T or a b or a^T b, by loops on the host.
enum class Form { nt, nn, tn };
Matrix product(Form form, Matrix const& a, Matrix const& b) {
  auto const ha = device::host_copy(a);
  auto const hb = device::host_copy(b);
  auto const m = form == Form::tn ? ha.extent(1) : ha.extent(0);
  auto const k = form == Form::tn ? ha.extent(0) : ha.extent(1);
  auto const n = form == Form::nt ? hb.extent(0) : hb.extent(1);
  Matrix c("p3d::test::product", m, n);
  auto const hc = device::host_mirror(c);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (std::size_t l = 0; l < k; ++l)
        sum += (form == Form::tn ? ha(l, i) : ha(i, l)) * (form == Form::nt ? hb(j, l) : hb(l, j));
      hc(i, j) = sum;
    }
  }
  Kokkos::deep_copy(c, hc);
  return c;
}

void expect_block(Matrix const& part, Matrix const& whole, std::int64_t r0, std::int64_t c0, char const* what) {
  auto const p = device::host_copy(part);
  auto const w = device::host_copy(whole);
  for (std::size_t i = 0; i < p.extent(0); ++i) {
    for (std::size_t j = 0; j < p.extent(1); ++j) {
      ASSERT_NEAR(p(i, j), w(i + static_cast<std::size_t>(r0), j + static_cast<std::size_t>(c0)), 1e-12)
          << what << i << ',' << j;
    }
  }
}

class Parallel : public ::testing::Test {
protected:
  comm::Communicator world = comm::Communicator::world();
  parallel::TensorParallel tp{device::ExecSpace(), &world};
  std::int64_t rank = world.rank();
  std::int64_t size = world.size();
};

// Sequence parallelism, with fewer rows than ranks too; in views and through host copies.
TEST_F(Parallel, RowsAreGatheredAndSummed) {
  constexpr std::int64_t columns = 3;
  tp.sequence = true;
  for (bool const staged : {false, true}) {
    collectives::set_always_stage(staged);
    for (std::int64_t const rows : {5, 16, 17}) {
      auto const share = layout::even_share(rows, world.size(), world.rank());
      auto const all = block("x", 0, rows, 0, columns), own = block("x", share.begin, share.size(), 0, columns);
      auto const room = zeros(rows, columns), place = zeros(rows, columns);
      View2<double> const inside = own_rows(tp, View2<double>(place));
      EXPECT_EQ(inside.extent(0), static_cast<std::size_t>(share.size()));
      Kokkos::deep_copy(inside, own);
      // Two at a time, from elsewhere and from their own place.
      auto first = parallel::start_gather_rows<double>(tp, own, room);
      auto second = parallel::start_gather_rows<double>(tp, inside, place);
      EXPECT_EQ(first.wait().data(), room.data());
      EXPECT_EQ(second.wait().data(), place.data());
      expect_block(room, all, 0, 0, "gathered ");
      expect_block(place, all, 0, 0, "gathered in place ");

      auto const parts = block("parts", rank * rows, rows, 0, columns), sum = zeros(share.size(), columns);
      parallel::start_sum_rows<double>(tp, parts).wait();
      Kokkos::deep_copy(sum, own_rows(tp, View2<double>(parts)));
      auto const expected = zeros(rows, columns);
      auto const host = device::host_copy(expected);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < columns; ++j)
          for (std::int64_t r = 0; r < size; ++r) host(i, j) += element("parts", r * rows + i, j);
      Kokkos::deep_copy(expected, host);
      expect_block(sum, expected, share.begin, 0, "summed ");
    }
  }
  collectives::set_always_stage(false);
  kernels::TokenRows const rows{.first_sample = 2, .samples = 3, .seq_len = 5};
  EXPECT_EQ(own_rows(tp, rows).first_row, 15 * rank / size);
  tp.sequence = false;
  EXPECT_EQ(own_rows(tp, rows).first_row, 0);
  auto const x = block("x", 0, tokens, 0, columns);
  EXPECT_EQ(parallel::start_gather_rows<double>(tp, x, {}).wait().data(), x.data());
}

/// A matrix as block() gives it, of any type.
template <class T>
device::Owned2<T> block_of(char const* name, std::int64_t r0, std::int64_t rows, std::int64_t c0, std::int64_t cols) {
  device::Owned2<T> m("p3d::test::block", static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
  auto const host = device::host_mirror(m);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) host(i, j) = static_cast<T>(element(name, r0 + i, c0 + j));
  Kokkos::deep_copy(m, host);
  return m;
}

/// The linears of a layer of n rows, with their messages over tp.
template <class T>
class Linears {
public:
  Linears(parallel::TensorParallel& tp, std::int64_t n) : tp_(tp), n_(n) {}

  /// What the rank gets of every linear, one matrix after the other.
  std::vector<T> results() const {
    std::vector<T> out;
    auto const keep = [&](View2<T const> m) {
      device::Owned2<T> copy("p3d::test::copy", m.extent(0), m.extent(1));
      Kokkos::deep_copy(copy, m);
      auto const host = device::host_copy(copy);
      out.insert(out.end(), host.data(), host.data() + host.size());
    };
    auto const scratch = [&](std::int64_t rows, std::int64_t columns) {
      device::Owned2<T> m("p3d::test::scratch", static_cast<std::size_t>(rows), static_cast<std::size_t>(columns));
      Kokkos::deep_copy(m, T(0.3F));
      return m;
    };
    using parallel::Gather;
    auto const y = scratch(n_, hidden), all = scratch(n_, hidden), z = scratch(n_, each), latents = scratch(n_, each);
    parallel::row_linear_forward<T>(tp_, inner_, row_w_, y);
    keep(own_rows(tp_, View2<T>(y)));
    auto rows = parallel::start_gather_rows<T>(tp_, input_, all, Gather::in_chunks);
    parallel::column_linear_forward<T>(tp_, rows, column_w_, device::flat<T const>(bias_), z);
    keep(rows.view);
    keep(z);
    auto again = parallel::start_gather_rows<T>(tp_, input_, all, Gather::in_chunks);
    parallel::WholeRows<T> columns{device::columns<T const>(again.view, 3, 3 + latent), std::move(again.arrival)};
    parallel::local_linear_forward<T>(tp_, columns, latent_w_, latents);
    keep(latents);
    // Backward, in a layer's order: two gathers on their way, of which one is cut; a sum beside a weight's gradient.
    auto const branch = scratch(n_, hidden), d_outer = scratch(n_, each), dx = scratch(n_, hidden),
               dw = scratch(each, hidden);
    auto gradient = parallel::start_gather_rows<T>(tp_, d_branch_, branch, Gather::in_chunks);
    auto whole = parallel::start_gather_rows<T>(tp_, input_, all);
    parallel::row_linear_backward_input<T>(tp_, gradient, row_w_, d_outer, kernels::Store::add);
    keep(d_outer);
    auto sum = parallel::column_linear_backward_input<T>(tp_, d_inner_, column_w_, dx);
    parallel::linear_backward_weight<T, T>(tp_.exec, d_inner_, whole.wait(), dw);
    sum.wait();
    keep(own_rows(tp_, View2<T>(dx)));
    keep(dw);
    return out;
  }

private:
  static constexpr std::int64_t each = 20, hidden = 36, latent = 11;
  using Given = device::Owned2<T>;
  parallel::TensorParallel& tp_;
  std::int64_t n_, first_ = tp_.rank() * each;
  layout::Range own_ = parallel::own_range(tp_, n_);
  Given row_w_ = block_of<T>("w", 0, hidden, first_, each), column_w_ = block_of<T>("v", first_, each, 0, hidden),
        latent_w_ = block_of<T>("u", first_, each, 0, latent), bias_ = block_of<T>("bias", 0, 1, first_, each);
  Given inner_ = block_of<T>("x", 0, n_, first_, each), d_inner_ = block_of<T>("dy", 0, n_, first_, each),
        input_ = block_of<T>("input", own_.begin, own_.size(), 0, hidden),
        d_branch_ = block_of<T>("branch", own_.begin, own_.size(), 0, hidden);
};

/// Results with each way of overlap are, bit for bit, those of a rank that waits for everything.
template <class T>
void expect_overlap_changes_no_bit(parallel::TensorParallel& tp, std::int64_t n) {
  SCOPED_TRACE(std::to_string(n) + " rows, sequence " + std::to_string(tp.sequence));
  tp.overlap = {.bulk = false, .chunks = 1};
  Linears<T> const linears(tp, n);
  auto const expected = linears.results();
  auto const same = [&] { return linears.results() == expected; };
  tp.overlap = {.chunks = 1};
  EXPECT_TRUE(same()) << "bulk";
  tp.overlap = {};
  EXPECT_TRUE(same()) << "auto";
  for (int chunks = 1; chunks <= 8; ++chunks) {
    tp.overlap = {.chunks = chunks, .chunked_bytes = 1, .chunk_rows = 1};
    auto const before = tp.comm->accounting().operations;
    EXPECT_TRUE(same()) << chunks << " chunks";
    // Forward's sum and three gathers are cut, and backward's sum; the gather for a weight's gradient is whole. Without
    // sequence parallelism there are two sums, of which the first is cut.
    auto const cut = std::clamp<std::int64_t>(tp.sequence ? n / tp.size() : n, 1, chunks);
    auto const operations = tp.comm->accounting().operations - before;
    if (tp.size() > 1) {
      EXPECT_EQ(operations, tp.sequence ? 5 * cut + 1 : cut + 1) << chunks << " chunks";
    }
  }
}

// comm.overlap_tp: what travels while something is computed, in how many chunks, and that numbers stay. Among the
// numbers of rows are fewer than ranks, and none that the ranks or blocks of a GEMM divide. With messages alone the
// length of a buffer decides on the order of its sum: 389 rows are a long buffer, and their chunks are short ones.
TEST_F(Parallel, OverlapOfTpChangesNoNumber) {
  if (!device::on_host()) GTEST_SKIP() << "libraries of GPUs choose among algorithms by the number of rows";
  if (p3d::test::has_avx512()) GTEST_SKIP() << "rows of GEMMs were not looked at with AVX-512";
  comm::open_node_memory();
  for (auto const algorithm : {comm::AllReduce::shared, comm::AllReduce::automatic}) {
    comm::set_ranks_per_node(algorithm == comm::AllReduce::automatic ? 1 : 0);
    world = comm::Communicator::world();
    world.prepare({.algorithm = algorithm});
    for (bool const staged : {false, true}) {
      collectives::set_always_stage(staged);
      for (bool const sequence : {false, true}) {
        tp.sequence = sequence && size > 1;
        for (std::int64_t const n : {3, 97, 389}) {
          expect_overlap_changes_no_bit<float>(tp, n);
          expect_overlap_changes_no_bit<double>(tp, n);
        }
      }
    }
  }
  collectives::set_always_stage(false);
  comm::set_ranks_per_node(0);
}

// What is waited for at once is not under way.
TEST_F(Parallel, OverlapOfTpWaitsWhereItIsOff) {
  auto const dy = block("dy", 0, tokens, rank * 3, 3), w = block("v", rank * 3, 3, 0, 4), dx = zeros(tokens, 4);
  for (bool const bulk : {false, true}) {
    tp.overlap = {.bulk = bulk, .chunks = 1};
    auto sum = parallel::column_linear_backward_input<double>(tp, dy, w, dx);
    EXPECT_EQ(sum.count(), 1);
    if (!bulk || size == 1) {
      EXPECT_FALSE(sum.active());
    }
    sum.wait();
    EXPECT_FALSE(sum.active());
  }
}

TEST_F(Parallel, ColumnLinearForward) {
  std::int64_t const in = 7, out_each = 3, out = out_each * size;
  auto const x = block("x", 0, tokens, 0, in), w = block("w", 0, out, 0, in);
  auto const y = zeros(tokens, out_each);
  parallel::column_linear_forward<double>(tp, x, block("w", rank * out_each, out_each, 0, in), View1<double const>(),
                                          y);
  expect_block(y, product(Form::nt, x, w), 0, rank * out_each, "y ");
}

TEST_F(Parallel, ColumnLinearBackward) {
  std::int64_t const in = 7, out_each = 3, out = out_each * size;
  auto const x = block("x", 0, tokens, 0, in), w = block("w", 0, out, 0, in), dy = block("dy", 0, tokens, 0, out);
  auto const dy_here = block("dy", 0, tokens, rank * out_each, out_each);
  auto const dx = zeros(tokens, in), dw = zeros(out_each, in);
  auto sum =
      parallel::column_linear_backward_input<double>(tp, dy_here, block("w", rank * out_each, out_each, 0, in), dx);
  parallel::linear_backward_weight<double>(tp.exec, dy_here, x, dw);
  sum.wait();
  expect_block(dx, product(Form::nn, dy, w), 0, 0, "dx ");
  expect_block(dw, product(Form::tn, dy, x), rank * out_each, 0, "dw ");
}

// Messages of the action before begin meanwhile.
template <class S>
int polls_of_a_linear_layer(parallel::TensorParallel& tp) {
  static int polls = 0;
  polls = 0;
  base::Polling const polling([] { return ++polls < 0; });
  device::Owned2<S> const x("p3d::test::x", 4, 8), w("p3d::test::w", 6, 8), y("p3d::test::y", 4, 6);
  parallel::column_linear_forward<S>(tp, x, w, {}, y);
  return polls;
}
TEST_F(Parallel, LinearLayersLookAfterMessages) {
  EXPECT_GT(polls_of_a_linear_layer<double>(tp), 0);
#if P3D_16BIT
  EXPECT_GT(polls_of_a_linear_layer<device::bfloat16>(tp), 0);
#endif
}

TEST_F(Parallel, ColumnLinearWithItsBias) {
  std::int64_t const in = 4, out_each = 3, out = out_each * size;
  auto const x = block("x", 0, tokens, 0, in), w = block("w", 0, out, 0, in), dy = block("dy", 0, tokens, 0, out);
  auto const bias = block("bias", 0, 1, rank * out_each, out_each), dbias = zeros(1, out_each);
  auto const y = zeros(tokens, out_each), dw = zeros(out_each, in);
  parallel::column_linear_forward<double>(tp, x, block("w", rank * out_each, out_each, 0, in),
                                          device::flat<double>(bias), y);
  auto const expected = product(Form::nt, x, w);
  auto const host = device::host_copy(expected);
  for (std::int64_t i = 0; i < tokens; ++i)
    for (std::int64_t j = 0; j < out; ++j) host(i, j) += element("bias", 0, j);
  auto const found = device::host_copy(y);
  for (std::int64_t i = 0; i < tokens; ++i)
    for (std::int64_t j = 0; j < out_each; ++j) ASSERT_NEAR(found(i, j), host(i, rank * out_each + j), 1e-12);
  // The gradients add to what is there.
  Kokkos::deep_copy(dbias, 3.0);
  Kokkos::deep_copy(dw, 2.0);
  auto const dy_here = block("dy", 0, tokens, rank * out_each, out_each);
  parallel::linear_backward_weight<double>(tp.exec, dy_here, x, dw);
  kernels::bias_backward<double>(tp.exec, dy_here, device::flat<double>(dbias));
  auto const whole = device::host_copy(product(Form::tn, dy, x)), part = device::host_copy(dw);
  auto const sums = device::host_copy(dbias);
  for (std::int64_t j = 0; j < out_each; ++j) {
    double sum = 3.0;
    for (std::int64_t i = 0; i < tokens; ++i) sum += element("dy", i, rank * out_each + j);
    ASSERT_NEAR(sums(0, j), sum, 1e-12);
    for (std::int64_t i = 0; i < in; ++i) ASSERT_NEAR(part(j, i), 2.0 + whole(rank * out_each + j, i), 1e-12);
  }
}

TEST_F(Parallel, VocabEmbeddingLooksUpOnEveryRank) {
  std::int64_t const vocab = 3 * size + (size > 1 ? 1 : 0), hidden = 6;
  auto const range = layout::padded_shard(vocab, static_cast<int>(size), static_cast<int>(rank));
  parallel::VocabShard const shard{range.begin, range.size(),
                                   std::clamp<std::int64_t>(vocab - range.begin, 0, range.size())};
  device::Owned1<int> numbers("p3d::test::tokens", tokens);
  auto const host = device::host_mirror(numbers);
  for (std::int64_t r = 0; r < tokens; ++r) host(r) = static_cast<int>((r * r + vocab - 1) % vocab);
  Kokkos::deep_copy(numbers, host);
  auto const whole = parallel::whole_vocabulary(vocab);
  EXPECT_EQ(whole.rows, vocab);
  for (bool const sequence : {false, true}) {
    tp.sequence = sequence && size > 1;
    auto const own = parallel::own_range(tp, tokens);
    for (auto const& s : {shard, whole}) {
      auto const out = zeros(own.size(), hidden), all = zeros(tokens, hidden), dw = zeros(s.rows, hidden);
      Kokkos::deep_copy(out, 99.0);
      auto const before = world.accounting().sent;
      parallel::vocab_embedding_forward<double>(tp, s, numbers, block("wte", s.begin, s.rows, 0, hidden), out, all);
      auto const found = device::host_copy(out);
      for (std::int64_t r = 0; r < own.size(); ++r)
        for (std::int64_t c = 0; c < hidden; ++c)
          ASSERT_EQ(found(r, c), element("wte", host(own.begin + r), c)) << r << ',' << c;
      parallel::vocab_embedding_backward<double, double>(tp, s, numbers, block("d", own.begin, own.size(), 0, hidden),
                                                         all, dw);
      auto const gradient = device::host_copy(dw);
      for (std::int64_t v = 0; v < s.rows; ++v)
        for (std::int64_t c = 0; c < hidden; ++c) {
          double sum = 0;  // of all tokens; where each rank has all rows, of its own
          for (std::int64_t r = 0; r < tokens; ++r)
            if (host(r) == s.begin + v && (!s.whole || (own.begin <= r && r < own.end))) sum += element("d", r, c);
          ASSERT_EQ(gradient(v, c), sum) << v << ',' << c;
        }
      EXPECT_EQ(world.accounting().sent == before, s.whole || size == 1);
    }
  }
  tp.sequence = false;
}

TEST_F(Parallel, RowLinear) {
  std::int64_t const in_each = 3, in = in_each * size, out = 4;
  auto const x = block("x", 0, tokens, 0, in), w = block("w", 0, out, 0, in), dy = block("dy", 0, tokens, 0, out);
  auto const w_here = block("w", 0, out, rank * in_each, in_each);
  auto const y = zeros(tokens, out), dx = zeros(tokens, in_each);
  parallel::row_linear_forward<double>(tp, block("x", 0, tokens, rank * in_each, in_each), w_here, y);
  expect_block(y, product(Form::nt, x, w), 0, 0, "y ");
  parallel::row_linear_backward_input<double>(tp, dy, w_here, dx);
  expect_block(dx, product(Form::nn, dy, w), 0, rank * in_each, "dx ");
}

TEST_F(Parallel, RowLinearInTwoHalvesOfAnOddNumberOfTokens) {
  std::int64_t const many = 1025, in_each = 2, in = in_each * size,
                     out = 130;  // 1.07 MB: more than what is sent in one piece
  auto const x = block("x", 0, many, 0, in), w = block("w", 0, out, 0, in);
  auto const y = zeros(many, out);
  parallel::row_linear_forward<double>(tp, block("x", 0, many, rank * in_each, in_each),
                                       block("w", 0, out, rank * in_each, in_each), y);
  expect_block(y, product(Form::nt, x, w), 0, 0, "y ");
}

TEST_F(Parallel, VocabLossHasTheClosedFormOfOneRank) {
  // A vocabulary that the ranks do not divide (except 1): the last shard is padded, some shards may even be empty.
  std::int64_t const vocab = 3 * size + (size > 1 ? 1 : 0);
  auto const shard_range = layout::padded_shard(vocab, static_cast<int>(size), static_cast<int>(rank));
  parallel::VocabShard shard{shard_range.begin, shard_range.size(),
                             std::clamp<std::int64_t>(vocab - shard_range.begin, 0, shard_range.size())};
  auto const logits = block("logits", 0, tokens, shard.begin, shard.rows);
  device::Owned1<int> targets("p3d::test::targets", tokens);
  auto const host_targets = device::host_mirror(targets);
  for (std::int64_t r = 0; r < tokens; ++r) host_targets(r) = static_cast<int>((r * 5 + 2) % vocab);
  host_targets(1) = -1;  // does not count
  Kokkos::deep_copy(targets, host_targets);
  device::Owned1<double> lse("p3d::test::lse", tokens), row_max("p3d::test::max", tokens);
  auto const sums = zeros(2, tokens);
  device::Owned1<double> const total("p3d::test::loss", 1);
  parallel::vocab_loss_forward<double>(tp, shard, logits, targets, {lse, row_max, sums}, total);

  double expected = 0.0;
  std::vector<double> expected_lse(tokens);
  for (std::int64_t r = 0; r < tokens; ++r) {
    double total = 0.0;
    for (std::int64_t v = 0; v < vocab; ++v) total += std::exp(element("logits", r, v));
    expected_lse[static_cast<std::size_t>(r)] = std::log(total);
    if (host_targets(r) >= 0) expected += std::log(total) - element("logits", r, host_targets(r));
  }
  EXPECT_NEAR(kernels::take_sums(tp.exec, total)[0], expected, 1e-12);

  parallel::vocab_loss_backward<double>(tp, shard, targets, lse, 0.5, logits);
  auto const d = device::host_copy(logits);
  for (std::int64_t r = 0; r < tokens; ++r) {
    for (std::int64_t c = 0; c < shard.rows; ++c) {
      double gradient = 0.0;
      if (c < shard.valid_rows && host_targets(r) >= 0) {
        gradient = std::exp(element("logits", r, shard.begin + c) - expected_lse[static_cast<std::size_t>(r)]) -
                   (shard.begin + c == host_targets(r) ? 1.0 : 0.0);
      }
      ASSERT_NEAR(d(r, c), 0.5 * gradient, 1e-12) << r << ',' << c;
    }
  }
}

}  // namespace
