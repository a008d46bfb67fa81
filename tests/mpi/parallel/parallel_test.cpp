// Tensor-parallel layers, vocabulary-parallel loss and bucketed reduction against the same thing computed whole on one
// rank.

#include <p3d/base/random.hpp>
#include <p3d/config/config.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/linalg/gemm.hpp>
#include <p3d/parallel/gradients.hpp>
#include <p3d/parallel/linear.hpp>
#include <p3d/parallel/vocab.hpp>

#include <support/mpi_kokkos_main.hpp>

#include <algorithm>
#include <cmath>
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
  parallel::linear_backward_weight<double>(tp.exec, dy_here, x, dw, View1<double>());
  sum.wait();
  expect_block(dx, product(Form::nn, dy, w), 0, 0, "dx ");
  expect_block(dw, product(Form::tn, dy, x), rank * out_each, 0, "dw ");
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
  double const loss = parallel::vocab_loss_forward<double>(tp, shard, logits, targets, {lse, row_max, sums});

  double expected = 0.0;
  std::vector<double> expected_lse(tokens);
  for (std::int64_t r = 0; r < tokens; ++r) {
    double total = 0.0;
    for (std::int64_t v = 0; v < vocab; ++v) total += std::exp(element("logits", r, v));
    expected_lse[static_cast<std::size_t>(r)] = std::log(total);
    if (host_targets(r) >= 0) expected += std::log(total) - element("logits", r, host_targets(r));
  }
  EXPECT_NEAR(loss, expected, 1e-12);

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

/// The parameter table of a small model, dp = all ranks.
config::Config small_config(int ranks) {
  config::Config c;
  c.model.layers = 2;
  c.model.hidden = 8;
  c.model.heads = c.model.kv_heads = 2;
  c.model.ffn = 16;
  c.parallel.dp = ranks;
  return c;
}

TEST_F(Parallel, ReducerSumsEveryElementOnceWhateverTheBuckets) {
  auto const config = small_config(static_cast<int>(size));
  auto const table = layout::make_param_table(config);
  auto const stages = layout::make_stage_map(config);
  layout::StageParams const params(table, stages, 0, {static_cast<int>(size), 1, 1}, {static_cast<int>(rank), 0, 0});
  for (std::size_t bucket : {std::size_t{1}, std::size_t{4096}, std::size_t{1} << 30}) {
    device::Owned1<double> grads("p3d::test::grads", static_cast<std::size_t>(params.flat_size()));
    auto const host = device::new_host_view(grads);  // a copy of its own on every backend
    for (std::int64_t i = 0; i < params.flat_size(); ++i)
      host(i) = static_cast<double>(i % 17) * static_cast<double>(rank + 1);
    Kokkos::deep_copy(grads, host);
    parallel::GradientReducer<double> reducer(
        tp.exec, params, grads,
        [&](layout::AxisSet axes) -> comm::Communicator& {
          EXPECT_TRUE(axes == layout::AxisSet{layout::Axis::dp});
          return world;
        },
        bucket);
    EXPECT_EQ(reducer.num_buckets(), bucket == 1 ? params.items().size() : reducer.num_buckets());
    for (int step = 0; step < 2; ++step) {
      Kokkos::deep_copy(grads, host);
      reducer.begin();
      EXPECT_THROW(reducer.finish(), base::Error) << "nothing is ready yet";
      for (std::size_t i = params.items().size(); i-- > 0;) reducer.ready(i, i + 1);
      reducer.finish();
      EXPECT_THROW(reducer.ready(0, 1), base::Error) << "ready twice";
      auto const result = device::host_copy(grads);
      double const factor = static_cast<double>(size * (size + 1)) / 2.0;
      for (auto const& item : params.items()) {
        for (std::int64_t i = item.offset; i < item.offset + item.size(); ++i) {
          ASSERT_DOUBLE_EQ(result(i), static_cast<double>(i % 17) * factor) << item.spec->name;
        }
      }
    }
  }
}

}  // namespace
