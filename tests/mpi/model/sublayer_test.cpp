// SPDX-License-Identifier: Apache-2.0
// Attention, MLP and experts one by one, and a whole layer, forward and backward, against plain loops
// (plain_layer.hpp). A failure names the tensor and the element of the first difference.

#include <p3d/config/parse.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/model/stage.hpp>

#include <model/attention.hpp>
#include <model/feed_forward.hpp>
#include <model/latent_attention.hpp>
#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plain_layer.hpp"

namespace {

using namespace p3d;
using device::View1;
using device::View2;
using test::Plain;
using Policy = device::Fp64;
using Words = std::vector<std::string>;

struct Case {
  std::string name;
  Words words;
  bool sequence = false;
};

/// The cases that this number of ranks can run: experts are on one rank.
std::vector<Case> cases(int ranks) {
  std::vector<Case> out{
      {"gpt2", {"model.preset=gpt2-tiny"}},
      {"llama", {"model.preset=llama-tiny", "model.kv_heads=2", "model.ffn=10"}},
      {"dropout", {"model.preset=gpt2-tiny", "model.dropout=0.3"}},
      {"norms of heads",
       {"model.preset=llama-tiny", "model.kv_heads=2", "model.ffn=10", "model.qk_norm=head", "model.head_dim=6"}},
      {"norms of all heads", {"model.preset=gpt2-tiny", "model.kv_heads=2", "model.qk_norm=full"}},
      {"norms behind",
       {"model.preset=llama-tiny", "model.kv_heads=2", "model.ffn=10", "model.norm_placement=post",
        "model.residual_multiplier=0.3", "model.attention_multiplier=0.7"}},
      {"weights of norms beside 1",
       {"model.preset=llama-tiny", "model.kv_heads=2", "model.ffn=10", "model.norm_offset=1", "model.qk_norm=head",
        "model.activation=geglu"}},
      {"capped scores",
       {"model.preset=llama-tiny", "model.kv_heads=2", "model.ffn=10", "model.attention_softcap=0.8",
        "model.dropout=0.2"}},
      {"norms on both sides",
       {"model.preset=gpt2-tiny", "model.dropout=0.3", "model.norm_placement=sandwich", "model.residual_multiplier=1.5",
        "model.position=rope", "model.head_dim=8", "model.rope_fraction=0.5", "model.rope_pairs=neighbours"}},
      {"latent attention",
       {"model.preset=llama-tiny", "model.kv_heads=4", "model.ffn=10", "model.mla.kv_lora_rank=6",
        "model.mla.q_lora_rank=7", "model.mla.qk_nope_head_dim=3", "model.mla.qk_rope_head_dim=4",
        "model.mla.v_head_dim=5", "model.rope_pairs=neighbours", "model.mla.norm_eps=0.01"}},
      {"latent attention without a latent of queries",
       {"model.preset=llama-tiny", "model.kv_heads=4", "model.ffn=10", "model.mla.kv_lora_rank=5",
        "model.mla.qk_nope_head_dim=3", "model.mla.qk_rope_head_dim=2", "model.mla.v_head_dim=8", "model.dropout=0.3",
        "model.norm_placement=sandwich", "model.norm_offset=1", "model.attention_softcap=1.5"}},
      {"sinks",
       {"model.preset=llama-tiny", "model.kv_heads=2", "model.ffn=10", "model.attention_sinks=true", "model.bias=true",
        "model.dropout=0.3", "model.activation=swiglu_clamped", "model.swiglu_alpha=1.3", "model.swiglu_limit=0.5"}},
      {"learned slopes",
       {"model.preset=llama-tiny", "model.kv_heads=2", "model.ffn=10", "model.activation=xielu", "model.qk_norm=head",
        "model.bias=true", "model.dropout=0.3", "model.norm_placement=sandwich"}},
      {"learned slopes between layernorms", {"model.preset=gpt2-tiny", "model.activation=xielu", "model.qk_norm=head"}},
      {"frequencies of long sequences",
       {"model.preset=llama-tiny", "model.kv_heads=2", "model.ffn=10", "model.rope_scaling=longrope",
        "model.rope_original_seq_len=4", "model.rope_short_factors=[1.0, 2.0]", "model.rope_long_factors=[1.5, 4.0]",
        "model.rope_attention_factor=0.8", "model.rope_theta=10"}},
      {"frequencies of short sequences",
       {"model.preset=llama-tiny", "model.kv_heads=2", "model.ffn=10", "model.rope_scaling=longrope",
        "model.rope_original_seq_len=5", "model.rope_short_factors=[1.2, 2.0]", "model.rope_long_factors=[1.5, 4.0]",
        "model.rope_attention_factor=1.3", "model.rope_theta=10"}},
      {"sinks of latent attention",
       {"model.preset=llama-tiny", "model.kv_heads=4", "model.ffn=10", "model.mla.kv_lora_rank=5",
        "model.mla.qk_nope_head_dim=3", "model.mla.qk_rope_head_dim=2", "model.mla.v_head_dim=8",
        "model.attention_sinks=true"}}};
  if (ranks > 1) {
    for (std::size_t i = 1, n = out.size(); i < n; ++i)
      out.push_back({out[i].name + " with sequence parallelism", out[i].words, true});
  } else {
    Words const routed{"model.preset=llama-tiny", "model.kv_heads=2",  "model.ffn=10",
                       "model.moe.experts=5",     "model.moe.top_k=2", "model.moe.ffn=6"};
    out.push_back({"routed experts", routed});
    for (bool const gate : {false, true}) {
      out.push_back({gate ? "experts beside gated ones" : "experts beside shared ones", routed});
      for (auto const& word : {std::string("model.moe.shared_ffn=8"), fmt::format("model.moe.shared_gate={}", gate),
                               std::string("model.moe.normalize=false"), std::string("model.moe.scale=1.5")})
        out.back().words.push_back(word);
    }
    out.push_back({"experts between norms", out.back().words});
    out.back().words.emplace_back("model.norm_placement=sandwich");
    out.back().words.emplace_back("model.activation=geglu");
    out.push_back({"experts with biases", routed});
    for (auto const* word : {"model.moe.bias=true", "model.bias=true", "model.activation=swiglu_clamped",
                             "model.swiglu_limit=0.7", "model.moe.shared_ffn=8"})
      out.back().words.emplace_back(word);
    out.push_back({"experts with biases and no gates", routed});
    for (auto const* word : {"model.moe.bias=true", "model.activation=gelu", "model.moe.normalize=false"})
      out.back().words.emplace_back(word);
    out.push_back({"experts in front of norms", routed});
    out.back().words.emplace_back("model.norm_placement=post");
  }
  return out;
}

/// The first of the cases that differ in a word that has one of these parts, or that has none of them.
std::vector<Case> cases_by(int ranks, bool having, Words const& parts) {
  std::vector<Case> out;
  std::set<std::pair<Words, bool>> seen;
  for (auto const& c : cases(ranks)) {
    Words words;
    for (auto const& word : c.words) {
      auto const has = [&](auto const& part) { return word.find(part) != std::string::npos; };
      if (std::any_of(parts.begin(), parts.end(), has) == having) words.push_back(word);
    }
    if (seen.emplace(words, c.sequence).second) out.push_back(c);
  }
  return out;
}

config::Config config_of(Case const& c, int ranks) {
  auto words = c.words;
  for (auto const& word :
       {std::string("model.heads=4"), std::string("model.hidden=16"), std::string("model.seq_len=5"),
        std::string("model.layers=1"), std::string("model.vocab_size=31"), std::string("batch.micro=2"),
        std::string("batch.microbatches=1"), std::string("run.precision=fp64"), std::string("data.format=synthetic"),
        fmt::format("parallel.tp={}", ranks), fmt::format("parallel.sequence={}", c.sequence)})
    words.push_back(word);
  auto result = config::parse_text("", "test", "/", words, ranks);
  if (!result.config) throw std::runtime_error(config::format(result.errors));
  return *result.config;
}

double number(std::string const& name, std::int64_t row, std::int64_t column) {
  return base::random_normal(base::random_key(11, name), static_cast<std::uint64_t>(row),
                             static_cast<std::uint64_t>(column));
}
/// Weights of norms are about 1, others about 0.
double weight(std::string const& name, std::int64_t row, std::int64_t column) {
  return (name.find("norm") != std::string::npos && name.ends_with(".weight") ? 1.0 : 0.0) +
         0.4 * number(name, row, column);
}
Plain numbers(std::string const& name, std::int64_t rows, std::int64_t cols) {
  Plain out(rows, cols);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) out(r, c) = number(name, r, c);
  return out;
}

/// Compares found(r, c) of [rows, cols] with the elements of `expected` from (row, column) on, and tells the first
/// difference.
template <class Found>
void expect_equal(std::string const& what, Plain const& expected, std::int64_t row, std::int64_t column,
                  std::int64_t rows, std::int64_t cols, Found const& found) {
  std::int64_t different = 0;
  std::string first;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      double const e = expected(row + r, column + c).real(), f = found(r, c);
      if (std::abs(f - e) <= 1e-11 * (1.0 + std::abs(e))) continue;  // not so for NaN
      if (different++ == 0)
        first = fmt::format("{}[{}, {}]: expected {:.15g}, found {:.15g}", what, row + r, column + c, e, f);
    }
  if (different > 0) ADD_FAILURE() << first << " (and " << different - 1 << " others of " << rows * cols << ")";
}

/// test::derivative(), whose elements the ranks share out.
Plain derivative(Plain& x, Plain const& gradient, std::function<Plain()> const& result,
                 comm::Communicator const& world) {
  auto out = test::derivative(x, gradient, result,
                              {static_cast<std::size_t>(world.rank()), static_cast<std::size_t>(world.size())});
  MPI_Allreduce(MPI_IN_PLACE, out.data.data(), 2 * static_cast<int>(out.data.size()), MPI_DOUBLE, MPI_SUM,
                MPI_COMM_WORLD);
  return out;
}

/// One layer of this rank with its memory and weights, and the same layer as plain loops.
class Rig {
public:
  Rig(Case const& c, comm::Communicator& world)
      : name_(c.name),
        config(config_of(c, world.size())),
        stages_({1}, 1),
        table_(layout::make_param_table(config)),
        tp{device::ExecSpace(), &world, c.sequence},
        params_(tp.exec, layout::StageParams(table_, stages_, 0, {.tp = world.size()}, coordinates(world.rank())),
                config.run.seed),
        arena_(std::size_t{1} << 24, "p3d::test::arena"),
        experts_(nullptr, {.experts = static_cast<int>(config.model.moe.experts)}),
        workspace_(config, {}, false, arena_, world.rank(), {.experts = &experts_}),
        weights_(model::stage_weights(config, stages_, 0, params_)),
        plain(config, first_sample) {
    auto const s = layout::layer_sizes(layout::block_sizes(config, {.tp = world.rank()}), config, 0);
    first_row_ = c.sequence ? s.first_row : 0;
    for (auto const buffer : layout::list(layout::saved_buffers()))
      saved_.bind(parallel::take<double>(arena_, buffer, s));
    for (auto const& item : params_.layout().items()) {
      auto const& spec = *item.spec;
      set(params_.values(), item.offset, item.rows, item.cols,
          [&](std::int64_t r, std::int64_t k) { return weight(spec.name, item.row_begin + r, item.col_begin + k); });
      auto& whole = plain.params[spec.name] = Plain(spec.rows, spec.cols);
      for (std::int64_t r = 0; r < spec.rows; ++r)
        for (std::int64_t k = 0; k < spec.cols; ++k) whole(r, k) = weight(spec.name, r, k);
    }
    params_.zero_grads(tp.exec);
  }

  model::LayerCall<Policy> call() {
    return {weights_.layers[0], rows_, model::RoutePass::training, x, saved_, workspace_.block};
  }
  /// This rank's rows of a matrix of numbers, in new memory.
  View2<double> own(Plain const& whole) {
    auto const n = own_rows();
    auto const out = arena_.take<double>(n, whole.cols);
    set(device::flat(out), 0, n, whole.cols,
        [&](std::int64_t r, std::int64_t k) { return whole(first_row_ + r, k).real(); });
    return out;
  }
  View2<double> zeros() { return own(Plain(num_rows(), config.model.hidden)); }
  std::int64_t num_rows() const { return rows_.rows(); }
  std::int64_t own_rows() const {
    return tp.sequence ? layout::even_share(num_rows(), tp.size(), tp.rank()).size() : num_rows();
  }

  void expect_rows(std::string const& what, View2<double> found, Plain const& expected) const {
    auto const host = device::host_copy(found);
    expect_equal(name_ + ": " + what, expected, first_row_, 0, own_rows(), expected.cols,
                 [&](auto r, auto c) { return host(r, c); });
  }
  /// The gradients of the layer's parameters whose names have one of these parts, summed over tp by the gradient rule.
  void expect_gradients(std::string const& what, Words const& parts, Plain const& d,
                        std::function<Plain()> const& result) {
    auto const host = device::host_copy(params_.grads());
    int checked = 0;
    for (auto const& item : params_.layout().items()) {
      auto const& spec = *item.spec;
      bool wanted = false;
      for (auto const& part : parts) wanted = wanted || spec.name.find(part) != std::string::npos;
      if (!wanted || spec.layer != 0) continue;
      ++checked;
      if (spec.gradient_axes().has(layout::Axis::tp))
        MPI_Allreduce(MPI_IN_PLACE, host.data() + item.offset, static_cast<int>(item.size()), MPI_DOUBLE, MPI_SUM,
                      MPI_COMM_WORLD);
      auto& expected = derivatives_[spec.name];
      if (expected.rows == 0) expected = derivative(plain.params[spec.name], d, result, *tp.comm);
      expect_equal(fmt::format("{}: {}: gradient of {}", name_, what, spec.name), expected, item.row_begin,
                   item.col_begin, item.rows, item.cols,
                   [&](auto r, auto c) { return host(item.offset + r * item.cols + c); });
    }
    EXPECT_GT(checked, 0) << name_ << ": " << what;
    params_.zero_grads(tp.exec);
  }
  /// Fills a buffer with NaN, so that a result that nobody writes is seen.
  template <class View>
  static void spoil(View const& view) {
    Kokkos::deep_copy(view, std::nan(""));
  }

private:
  static layout::PerAxis coordinates(int tp) {
    auto out = layout::PerAxis::all(0);
    out.tp = tp;
    return out;
  }
  template <class Number>
  static void set(View1<double> v, std::int64_t offset, std::int64_t rows, std::int64_t cols, Number const& value) {
    View1<double> const to(v.data() + offset, rows * cols);
    auto const host = device::host_mirror(to);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) host(r * cols + c) = value(r, c);
    Kokkos::deep_copy(to, host);
  }

  static constexpr std::int64_t first_sample = 3;
  std::string name_;

public:
  config::Config config;

private:
  layout::StageMap stages_;
  layout::ParamTable table_;

public:
  parallel::TensorParallel tp;
  View2<double> x;  ///< the layer's input

private:
  model::Parameters<Policy> params_;
  device::Arena arena_;
  parallel::ExpertParallel experts_;
  model::Workspace<Policy> workspace_;
  model::StageWeights<Policy> weights_;
  model::BlockActivations<Policy> saved_;
  kernels::TokenRows rows_{first_sample, config.batch.micro, config.model.seq_len};
  std::int64_t first_row_ = 0;
  std::map<std::string, Plain> derivatives_;  ///< of the one function of a rig, by parameter

public:
  test::PlainLayer plain;
};

using Branch = Plain (test::PlainLayer::*)(Plain const&) const;

/// A sub-layer alone: its branch, and the gradients of its input and of its linears, in one piece, remade, and in two.
void check(Rig& rig, model::SubLayer<Policy>& sublayer, Branch branch, std::string const& what, Words const& parts) {
  auto const n = rig.num_rows(), hidden = rig.config.model.hidden;
  auto normed = numbers("normed", n, hidden);
  auto const d = numbers("gradient", n, hidden);
  auto const plain = [&] { return (rig.plain.*branch)(normed); };
  auto const expected = plain(), dnorm = derivative(normed, d, plain, *rig.tp.comm);
  rig.x = rig.zeros();  // the input itself where no norm stands in front
  auto const call = rig.call();
  auto const input = sublayer.ends(call).input;
  auto const run = [&] {
    Kokkos::deep_copy(input, rig.own(normed));
    Rig::spoil(call.t.branch);
    sublayer.forward(call);
    rig.expect_rows(what + ": branch", parallel::own_rows(rig.tp, call.t.branch), expected);
  };
  for (bool const remade : {false, true}) {
    auto const how = what + (remade ? ", remade" : "");
    run();
    if (remade) {
      for (auto const& view :
           {call.a.qkv, call.a.heads, call.a.up, call.a.act, call.a.latent, call.a.raw_latent, call.t.kv_both})
        Rig::spoil(view);
      sublayer.remake(call);
    }
    model::SubLayer<Policy>::Sums sums;
    auto const gradient = sublayer.backward(call, rig.own(d), sums);
    sums.finish(rig.tp.exec);
    rig.expect_rows(how + ": gradient of the input", gradient.dnorm, dnorm);
    rig.expect_gradients(how, parts, d, plain);
  }
  for (bool const fixed : {false, true}) {
    auto const how = what + (fixed ? ", in two parts by a copy" : ", in two parts");
    auto split = rig.call();
    split.fixed_memory = fixed;
    run();
    auto const own = rig.own(d);
    model::SubLayer<Policy>::Sums sums;
    auto const gradient = sublayer.backward_input(split, own, sums);
    rig.expect_rows(how + ": gradient of the input", gradient.dnorm, dnorm);
    if (sublayer.has_weight_part()) {
      Rig::spoil(split.t.dact);
      View2<double const> const own_row = own, input_row = input;
      for (auto const& view : {split.t.dlatent, split.t.gathered_latent, split.t.kv_both}) Rig::spoil(view);
      model::RowsAhead<double> branches(rig.tp, {{own_row}}, split.t.branch),
          inputs(rig.tp, {{input_row, sublayer.gathers_input()}}, split.t.gathered);
      sublayer.backward_weight(split, branches, inputs, sums);
    }
    sums.finish(rig.tp.exec);
    rig.expect_gradients(how, parts, d, plain);
  }
}

TEST(SubLayers, AttentionIsThatOfPlainLoops) {
  auto world = comm::Communicator::world();
  for (auto const& c :
       cases_by(world.size(), false, {".ffn", ".moe.", ".activation", ".swiglu", ".norm_placement", ".residual"})) {
    Rig rig(c, world);
    std::unique_ptr<model::SubLayer<Policy>> attention;
    if (rig.config.model.mla.on())
      attention = std::make_unique<model::LatentAttention<Policy>>(rig.config, rig.tp, 0);
    else
      attention = std::make_unique<model::GroupedQueryAttention<Policy>>(rig.config, rig.tp, 0);
    check(rig, *attention, &test::PlainLayer::attention, "attention",
          {"attn.q", "attn.k", "attn.v", "attn.sinks", "attn.out.weight"});
  }
}

TEST(SubLayers, MlpAndExpertsAreThoseOfPlainLoops) {
  auto world = comm::Communicator::world();
  for (auto const& c : cases_by(world.size(), true, {".preset", ".bias", ".ffn", ".moe.", ".activation", ".swiglu"})) {
    Rig rig(c, world);
    std::unique_ptr<model::SubLayer<Policy>> sublayer;
    if (rig.config.model.moe.on())
      sublayer = std::make_unique<model::ExpertLayer<Policy>>(rig.config, rig.tp, 0);
    else
      sublayer = std::make_unique<model::MlpLayer<Policy>>(rig.config, rig.tp, 0);
    check(rig, *sublayer, &test::PlainLayer::feed_forward, "feed-forward",
          {"mlp.gate.", "mlp.up.", "mlp.down.weight", "moe."});
  }
}

TEST(SubLayers, LayerAddsThemToOneStream) {
  auto world = comm::Communicator::world();
  for (auto const& c : cases(world.size())) {
    Rig rig(c, world);
    model::TransformerBlock<Policy> block(rig.config, rig.tp, 0);
    auto x = numbers("x", rig.num_rows(), rig.config.model.hidden);
    auto const d = numbers("gradient", rig.num_rows(), rig.config.model.hidden);
    auto const plain = [&] { return rig.plain.layer(x); };
    auto const expected = plain(), dx = derivative(x, d, plain, world);
    rig.x = rig.own(x);
    auto const y = rig.zeros();
    for (std::string const how : {"whole", "recomputed in full", "operations recomputed", "in two parts"}) {
      auto call = rig.call();
      block.forward(call, y);
      rig.expect_rows(how + ": y", y, expected);
      if (how == "recomputed in full") {
        for (auto const& view : {call.a.norm1_y, call.a.qkv, call.a.heads, call.a.mid, call.a.norm2_y, call.a.up,
                                 call.a.branch1, call.a.branch2, call.a.latent, call.a.raw_latent})
          Rig::spoil(view);
        block.remake(call, false);
      } else if (how == "operations recomputed") {
        for (auto const& view : {call.a.norm1_y, call.a.heads, call.a.norm2_y, call.a.act}) Rig::spoil(view);
        call.discarded = {.norm = true, .activation = true, .attention = true};
      }
      auto const gradient = rig.own(d);
      if (how == "in two parts") {
        block.backward_input(call, y, gradient);
        block.backward_weight(call, y);
      } else {
        block.backward(call, gradient);
      }
      rig.expect_rows(how + ": gradient of x", gradient, dx);
      rig.expect_gradients(how, {"layers.0."}, d, plain);
    }
  }
}

}  // namespace
