// SPDX-License-Identifier: Apache-2.0
// Context-parallel attention against the matrices written out, of the whole sequence; and the bytes that it sends. With
// latents, keys and values are a matrix times a short row of each token.

#include <p3d/base/random.hpp>
#include <p3d/device/arena.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/parallel/context.hpp>

#include <support/mpi_kokkos_main.hpp>

#include "made_keys.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace p3d;
using device::View1;
using device::View2;
using Numbers = std::vector<double>;
using layout::ContextDivision;
using parallel::ContextAttention;
using parallel::ContextHeads;
using parallel::ContextParallel;

struct Case {
  ContextDivision division;
  std::int64_t planned = 0;  ///< tokens that scratch is for
  std::int64_t heads = 8, kv_heads = 8, head_dim = 3, samples = 1, window = 0;
  double dropout = 0.0;
  std::vector<int> documents{};  ///< of one sample
  std::int64_t first_sample = 5, first_head = 2;
  std::int64_t value_dim = head_dim;
  bool sinks = false;
  std::int64_t latent = 0;  ///< width of the latents that travel; 0: keys and values do

  std::int64_t seq_len() const { return division.seq_len; }
  std::int64_t q() const { return heads * head_dim; }
  std::int64_t k() const { return kv_heads * head_dim; }
  std::int64_t v() const { return kv_heads * value_dim; }
  std::int64_t out() const { return heads * value_dim; }
  std::int64_t qkv() const { return q() + k() + v(); }
  kernels::Dropout drop() const { return kernels::make_dropout(dropout, 7, "attention"); }
  std::string name() const {
    return std::to_string(division.cp) + " ranks, all_to_all " + std::to_string(division.all_to_all) + " gather " +
           std::to_string(division.gather) + " order " + std::to_string(static_cast<int>(division.order)) + " length " +
           std::to_string(seq_len()) + " kv " + std::to_string(kv_heads) + " value_dim " + std::to_string(value_dim) +
           " window " + std::to_string(window) + " dropout " + std::to_string(dropout) + " samples " +
           std::to_string(samples) + " documents " + std::to_string(documents.size()) + " latent " +
           std::to_string(latent);
  }
};

double number(char const* name, std::int64_t row, std::int64_t column) {
  return base::random_normal(base::random_key(3, name), static_cast<std::uint64_t>(row),
                             static_cast<std::uint64_t>(column));
}

struct Result {
  Numbers out, lse, dqkv, dsinks;
  Numbers dlatents, dup;  ///< gradients of latents, and of the matrix [k() + v(), latent] behind them
};
double up(std::int64_t row, std::int64_t column) { return number("up", row, column) / 2; }
/// An element of queries, keys and values.
double input(Case const& c, std::int64_t row, std::int64_t column) {
  if (c.latent == 0 || column < c.q()) return number("qkv", row, column);
  double sum = 0;
  for (std::int64_t l = 0; l < c.latent; ++l) sum += number("latent", row, l) * up(column - c.q(), l);
  return sum;
}
double sink(std::int64_t head) { return number("sinks", 0, head); }

/// All of it, by loops over queries and keys.
Result plain(Case const& c) {
  auto const s = c.seq_len(), n = c.head_dim, m = c.value_dim;
  auto const rows = c.samples * s;
  auto const at = [](Numbers& m, std::int64_t i) -> double& { return m[static_cast<std::size_t>(i)]; };
  Result r{Numbers(static_cast<std::size_t>(rows * c.out())),
           Numbers(static_cast<std::size_t>(rows * c.heads)),
           Numbers(static_cast<std::size_t>(rows * c.qkv())),
           Numbers(static_cast<std::size_t>(c.heads)),
           Numbers(static_cast<std::size_t>(rows * c.latent)),
           Numbers(static_cast<std::size_t>((c.k() + c.v()) * c.latent))};
  Numbers x(static_cast<std::size_t>(rows * c.qkv())), d(static_cast<std::size_t>(rows * c.out()));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < c.qkv(); ++j) at(x, i * c.qkv() + j) = input(c, i, j);
    for (std::int64_t j = 0; j < c.out(); ++j) at(d, i * c.out() + j) = number("dout", i, j);
  }
  auto const drop = c.drop();
  double const scale = 1 / std::sqrt(double(n));
  for (std::int64_t b = 0; b < c.samples; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < s; ++i) {
        std::int64_t first = c.documents.empty() ? 0 : c.documents[static_cast<std::size_t>(i)];
        if (c.window > 0) first = std::max(first, i + 1 - c.window);
        auto const row = (b * s + i) * c.qkv() + h * n, go = (b * s + i) * c.out() + h * m;
        auto const kv = h / (c.heads / c.kv_heads);
        auto const key = [&](std::int64_t j) { return (b * s + j) * c.qkv() + c.q() + kv * n; };
        auto const value = [&](std::int64_t j) { return (b * s + j) * c.qkv() + c.q() + c.k() + kv * m; };
        double sum = c.sinks ? std::exp(sink(h)) : 0, delta = 0;
        Numbers p, mask, dp;
        for (std::int64_t j = first; j <= i; ++j) {
          double score = 0, gradient = 0;
          for (std::int64_t e = 0; e < n; ++e) score += at(x, row + e) * at(x, key(j) + e);
          for (std::int64_t e = 0; e < m; ++e) gradient += at(d, go + e) * at(x, value(j) + e);
          p.push_back(std::exp(score * scale));
          sum += p.back();
          auto const element = static_cast<std::uint64_t>(((c.first_head + h) * s + i) * s + j);
          bool const kept =
              !drop.active() ||
              base::random_word(drop.key, static_cast<std::uint64_t>(c.first_sample + b), element) >= drop.threshold;
          mask.push_back(kept ? drop.scale : 0.0);
          dp.push_back(gradient * mask.back());
        }
        for (std::size_t j = 0; j < p.size(); ++j) delta += (p[j] /= sum) * dp[j];
        at(r.lse, (b * c.heads + h) * s + i) = std::log(sum);
        if (c.sinks) at(r.dsinks, h) -= std::exp(sink(h)) / sum * delta;
        for (std::int64_t j = first; j <= i; ++j) {
          auto const t = static_cast<std::size_t>(j - first);
          double const ds = p[t] * (dp[t] - delta) * scale;
          for (std::int64_t e = 0; e < n; ++e) {
            at(r.dqkv, row + e) += ds * at(x, key(j) + e);
            at(r.dqkv, key(j) + e) += ds * at(x, row + e);
          }
          for (std::int64_t e = 0; e < m; ++e) {
            at(r.out, go + e) += p[t] * mask[t] * at(x, value(j) + e);
            at(r.dqkv, value(j) + e) += p[t] * mask[t] * at(d, go + e);
          }
        }
      }
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < c.k() + c.v(); ++j)
      for (std::int64_t l = 0; l < c.latent; ++l) {
        double const gradient = at(r.dqkv, i * c.qkv() + c.q() + j);
        at(r.dlatents, i * c.latent + l) += gradient * up(j, l);
        at(r.dup, j * c.latent + l) += gradient * number("latent", i, l);
      }
  return r;
}

template <class S>
device::Owned2<S> local_rows(Case const& c, char const* name, std::int64_t columns, base::TokenSet const& tokens) {
  auto const n = tokens.size();
  device::Owned2<S> m("p3d::test::rows", static_cast<std::size_t>(c.samples * n), static_cast<std::size_t>(columns));
  auto const host = device::host_mirror(m);
  for (std::int64_t i = 0; i < c.samples * n; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      host(i, j) = static_cast<S>(number(name, i / n * c.seq_len() + tokens.at(i % n), j));
  Kokkos::deep_copy(m, host);
  return m;
}

struct Sent {
  std::int64_t forward = 0, backward = 0;
};

/// The group for a division: its communicators are the same for all orders and lengths, and take long to make.
ContextParallel& group(ContextDivision const& division) {
  static std::map<int, ContextParallel> groups;
  if (!groups.contains(division.all_to_all)) {
    auto world = comm::Communicator::world();
    groups.emplace(division.all_to_all, ContextParallel(world, division));
  }
  auto& out = groups.at(division.all_to_all);
  out.reset_accounting();
  return out;
}

/// This rank's rows, or those of the place for the log-sum-exp.
template <class S>
Sent run(Case const& c, Result& r) {
  auto& cp = group(c.division);
  auto const tokens = c.division.tokens(cp.rank());
  ContextHeads const heads{
      c.heads, c.kv_heads, c.head_dim, c.value_dim, c.first_head, 1 / std::sqrt(double(c.head_dim)), 0.0, c.latent};
  auto const planned = c.division.of_length(std::max(c.planned, c.seq_len()));
  layout::AttentionSizes const sizes(planned, heads, 2);
  device::ArenaSize size;
  (void)ContextAttention<S>::take(size, sizes, heads);
  device::Arena arena(size.used(), "test");
  auto attention = ContextAttention<S>::take(arena, sizes, heads);
  EXPECT_EQ(arena.used(), size.used());
  attention.attach({}, cp);

  auto const x = local_rows<S>(c, "qkv", c.qkv(), tokens), d = local_rows<S>(c, "dout", c.out(), tokens);
  device::Owned2<S> const out("out", x.extent(0), static_cast<std::size_t>(c.out())),
      dx("dqkv", x.extent(0), x.extent(1));
  device::Owned1<S> const qkv("qkv", static_cast<std::size_t>(sizes.qkv_elements()));
  device::Owned1<S> const lse("lse", static_cast<std::size_t>(sizes.lse_elements()));
  Kokkos::deep_copy(View1<S>(qkv.data(), x.size()), View1<S const>(x.data(), x.size()));
  typename ContextAttention<S>::Call call{.division = c.division,
                                          .first_sample = c.first_sample,
                                          .samples = c.samples,
                                          .window = c.window,
                                          .dropout = c.drop()};
  device::Owned1<int> const documents("documents", c.documents.size() * static_cast<std::size_t>(c.samples));
  auto const host = device::host_mirror(documents);
  for (std::size_t i = 0; i < documents.extent(0); ++i) host(i) = c.documents[i % c.documents.size()];
  Kokkos::deep_copy(documents, host);
  call.documents = documents;
  device::Owned1<S> const sinks("sinks", static_cast<std::size_t>(c.sinks ? c.heads : 0));
  device::Owned1<S> const dsinks("dsinks", sinks.extent(0));
  auto const host_sinks = device::host_mirror(sinks);
  for (std::size_t h = 0; h < sinks.extent(0); ++h) host_sinks(h) = static_cast<S>(sink(static_cast<std::int64_t>(h)));
  Kokkos::deep_copy(sinks, host_sinks);
  call.sinks = sinks;
  device::Owned2<S> const matrix("up", static_cast<std::size_t>(c.latent > 0 ? c.k() + c.v() : 0),
                                 static_cast<std::size_t>(c.latent));
  auto const host_matrix = device::host_mirror(matrix);
  for (std::size_t i = 0; i < matrix.extent(0); ++i)
    for (std::size_t j = 0; j < matrix.extent(1); ++j)
      host_matrix(i, j) = static_cast<S>(up(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j)));
  Kokkos::deep_copy(matrix, host_matrix);
  test::MadeKeys<S> const latents(heads, local_rows<S>(c, "latent", c.latent, tokens), matrix);
  call.latents = &latents;

  attention.exchange(call, qkv);
  attention.forward(call, qkv, out, lse);
  Sent sent{cp.sent_bytes(), 0};
  cp.reset_accounting();
  attention.bring_latents(call);
  attention.backward(call, qkv, out, lse, d, dx);
  attention.template sinks_backward<S>(call, lse, dsinks);
  Kokkos::fence();
  sent.backward = cp.sent_bytes();
  auto const copy = [](auto const& view) {
    auto const h = device::host_copy(view);
    return Numbers(h.data(), h.data() + h.size());
  };
  r = {copy(out), copy(lse), copy(dx), copy(dsinks), copy(latents.gradient()), copy(latents.matrix_gradient())};
  return sent;
}

/// Rows of `columns` numbers, of which the first `some` are compared.
void expect_rows(Case const& c, Numbers const& part, Numbers const& whole, std::int64_t columns, double tolerance,
                 char const* what, std::int64_t some) {
  auto const tokens = c.division.tokens(group(c.division).rank());
  auto const n = tokens.size();
  double worst = 0;
  for (std::int64_t i = 0; i < c.samples * n; ++i)
    for (std::int64_t j = 0; j < some; ++j) {
      auto const row = i / n * c.seq_len() + tokens.at(i % n);
      double const error = std::abs(part[static_cast<std::size_t>(i * columns + j)] -
                                    whole[static_cast<std::size_t>(row * columns + j)]);
      if (!(error <= worst)) worst = error;  // keeps NaN
    }
  EXPECT_LE(worst, tolerance) << what << ", " << c.name();
}

void expect_rows(Case const& c, Numbers const& part, Numbers const& whole, std::int64_t columns, double tolerance,
                 char const* what) {
  expect_rows(c, part, whole, columns, tolerance, what, columns);
}
/// Parts of all ranks add up to the whole.
void expect_sum(Case const& c, Numbers part, Numbers const& whole, double tolerance, char const* what) {
  MPI_Allreduce(MPI_IN_PLACE, part.data(), static_cast<int>(part.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  for (std::size_t i = 0; i < part.size(); ++i)
    EXPECT_NEAR(part[i], whole[i], tolerance) << what << " " << i << ", " << c.name();
}

/// Every way to divide tokens over the ranks.
std::vector<ContextDivision> divisions(std::int64_t length) {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::vector<ContextDivision> out;
  for (int a = 1; a <= ranks; ++a) {
    if (ranks % a != 0) continue;
    for (auto const order :
         {config::ContextOrder::zigzag, config::ContextOrder::striped, config::ContextOrder::contiguous})
      for (bool const gather : {false, true})
        if (!gather || a < ranks)
          out.push_back({.seq_len = length, .cp = ranks, .all_to_all = a, .gather = gather, .order = order});
  }
  return out;
}

void check(Case const& c, Result const& whole) {
  Result part;
  run<double>(c, part);
  expect_rows(c, part.out, whole.out, c.out(), 1e-12, "out");
  expect_rows(c, part.dqkv, whole.dqkv, c.qkv(), 1e-12, "dqkv", c.division.latents ? c.q() : c.qkv());
  if (c.sinks) expect_sum(c, part.dsinks, whole.dsinks, 1e-12, "gradient of sink");
  if (!c.division.latents) return;
  expect_rows(c, part.dlatents, whole.dlatents, c.latent, 1e-12, "gradient of latents");
  expect_sum(c, part.dup, whole.dup, 1e-11, "gradient of the matrix behind latents");
}

/// `c` with every division in which the heads can be divided.
void check_all(Case c) {
  auto const length = c.seq_len();
  auto const whole = plain(c);
  for (auto const& division : divisions(length)) {
    if (c.kv_heads % division.all_to_all != 0) continue;
    c.division = division;
    c.division.latents = c.latent > 0;
    check(c, whole);
  }
}

/// Documents of 1, 4, 9, 16 ... tokens.
std::vector<int> squares(int length) {
  std::vector<int> out;
  for (int first = 0, n = 1; static_cast<int>(out.size()) < length; first += n * n, ++n)
    for (int i = 0; i < n * n && static_cast<int>(out.size()) < length; ++i) out.push_back(first);
  return out;
}

std::int64_t heads_for_all() {  // so that every all-to-all can divide them
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}

TEST(Context, IsTheWholeAttention) {
  auto const h = heads_for_all();
  check_all({.division = {.seq_len = 17}, .heads = h, .kv_heads = h});
  check_all({.division = {.seq_len = 33}, .heads = 2 * h, .kv_heads = h, .samples = 2, .dropout = 0.3});
}

TEST(Context, ValuesHaveAWidthOfTheirOwn) {
  auto const h = heads_for_all();
  check_all({.division = {.seq_len = 33}, .heads = h, .kv_heads = h, .samples = 2, .dropout = 0.2, .value_dim = 2});
  check_all({.division = {.seq_len = 35}, .planned = 40, .heads = 2 * h, .kv_heads = h, .window = 9, .value_dim = 5});
  // An output that is wider than queries, keys and values together.
  check_all({.division = {.seq_len = 17}, .heads = 4 * h, .kv_heads = h, .documents = squares(17), .value_dim = 8});
}

TEST(Context, SinksComeIntoTheMergedSoftmax) {
  auto const h = heads_for_all();
  check_all({.division = {.seq_len = 17}, .heads = 2 * h, .kv_heads = h, .sinks = true});
  check_all({.division = {.seq_len = 33},
             .planned = 40,
             .heads = h,
             .kv_heads = h,
             .samples = 2,
             .window = 7,
             .dropout = 0.2,
             .documents = squares(33),
             .value_dim = 5,
             .sinks = true});
}

TEST(Context, LatentsTravelInPlaceOfKeysAndValues) {
  auto const h = heads_for_all();
  check_all({.division = {.seq_len = 17}, .heads = h, .kv_heads = h, .latent = 4});
  check_all({.division = {.seq_len = 33},
             .planned = 40,
             .heads = 2 * h,
             .kv_heads = 2 * h,
             .samples = 2,
             .window = 9,
             .dropout = 0.2,
             .documents = squares(33),
             .value_dim = 5,
             .sinks = true,
             .latent = 7});
  // Latents that are wider than keys and values, and sequences with fewer tokens than some ranks need.
  check_all({.division = {.seq_len = 5}, .planned = 40, .heads = h, .kv_heads = h, .head_dim = 2, .latent = 5 * h});
}

TEST(Context, WindowsAndDocumentsHideKeys) {
  auto const h = heads_for_all();
  check_all({.division = {.seq_len = 33}, .heads = h, .kv_heads = h, .samples = 2, .window = 5});
  check_all({.division = {.seq_len = 37},
             .heads = 2 * h,
             .kv_heads = h,
             .samples = 2,
             .dropout = 0.1,
             .documents = squares(37)});
  check_all({.division = {.seq_len = 35}, .heads = h, .kv_heads = h, .window = 3, .documents = squares(35)});
}

TEST(Context, FewHeadsAndShortSequences) {
  check_all({.division = {.seq_len = 31}, .planned = 64, .heads = 6, .kv_heads = 2, .samples = 2});
  check_all({.division = {.seq_len = 5}, .planned = 40, .heads = heads_for_all(), .kv_heads = heads_for_all()});
}

TEST(Context, RingAndGatherHaveTheSameBits) {
  int const ranks = static_cast<int>(heads_for_all());
  Case c{.division = {.seq_len = 41, .cp = ranks}, .heads = 4, .kv_heads = 2, .samples = 2, .dropout = 0.2};
  Result ring, gather;
  run<float>(c, ring);
  c.division.gather = true;
  run<float>(c, gather);
  EXPECT_EQ(ring.out, gather.out);
  EXPECT_EQ(ring.dqkv, gather.dqkv);
  c.heads = 2, c.latent = 6;
  c.division.latents = ranks > 1;
  run<float>(c, gather);
  c.division.gather = false;
  run<float>(c, ring);
  EXPECT_EQ(ring.out, gather.out);
  EXPECT_EQ(ring.dlatents, gather.dlatents);
  EXPECT_EQ(ring.dup, gather.dup);
}

TEST(Context, LongerSequencesOfFloat) {
  Case c{
      .division = {.seq_len = 515, .cp = static_cast<int>(heads_for_all())}, .heads = 2, .kv_heads = 1, .head_dim = 16};
  auto const whole = plain(c);
  Result part;
  run<float>(c, part);
  expect_rows(c, part.out, whole.out, c.out(), 3e-6, "out");
  expect_rows(c, part.dqkv, whole.dqkv, c.qkv(), 3e-5, "dqkv");
}

TEST(Context, SendsWhatTheTableSays) {
  auto const h = heads_for_all();
  auto const length = 4 * h;
  for (auto const& division : divisions(length)) {
    for (std::int64_t const value_dim : {3, 7}) {
      Case c{.division = division, .heads = 2 * h, .kv_heads = h, .samples = 2, .value_dim = value_dim};
      Result r;
      auto const sent = run<double>(c, r);
      auto const table =
          layout::context_traffic(division, {.q = c.q(), .k = c.k(), .v = c.v(), .out = c.out(), .heads = c.heads});
      EXPECT_EQ(static_cast<double>(sent.forward), 2 * 8 * table.forward) << c.name();
      EXPECT_EQ(static_cast<double>(sent.backward), 2 * 8 * table.backward) << c.name();
      if (division.cp == 1) continue;
      c.kv_heads = c.heads, c.latent = 5;
      c.division.latents = true;
      auto const latents = run<double>(c, r);
      auto const less = layout::context_traffic(
          c.division, {.q = c.q(), .k = c.k(), .v = c.v(), .out = c.out(), .heads = c.heads, .latent = c.latent});
      EXPECT_EQ(static_cast<double>(latents.forward), 2 * 8 * less.forward) << c.name();
      EXPECT_EQ(static_cast<double>(latents.backward), 2 * 8 * less.backward) << c.name();
    }
  }
}

// An eighth of DeepSeek-V3's widths on one rank of tp 8: 16 heads of 24 + 16 in place of 128 of 192 + 128, and
// latents of 72 in place of 576. A ring sends 72 numbers of a token where keys and values are 640.
TEST(Context, LatentsOfDeepSeekAreAlmostNineTimesFewer) {
  int const ranks = static_cast<int>(heads_for_all());
  if (ranks == 1) return;
  Case c{.division = {.seq_len = 4 * ranks, .cp = ranks},
         .heads = 16,
         .kv_heads = 16,
         .head_dim = 24,
         .value_dim = 16,
         .latent = 72};
  Result r;
  auto const whole = run<double>(c, r);
  c.division.latents = true;
  auto const less = run<double>(c, r);
  EXPECT_EQ(whole.forward, (ranks - 1) * 4 * 640 * 8);
  EXPECT_EQ(less.forward, (ranks - 1) * 4 * 72 * 8);
  EXPECT_EQ(9 * whole.forward, 80 * less.forward) << "8.9 times";
  EXPECT_EQ(whole.backward, 2 * whole.forward);
  EXPECT_EQ(less.backward, 2 * less.forward);
}

}  // namespace
