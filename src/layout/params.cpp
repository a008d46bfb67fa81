// SPDX-License-Identifier: Apache-2.0
// Builds the parameter table and its local views. Builder declares each parameter once, in the model's order;
// localise() cuts a rank's piece out of one; StageParams puts the pieces of a stage into one buffer. Example: with
// tp=2, attn.q.weight [64, 64] has local shape [32, 64], and row_begin 32 on the second rank.
#include <p3d/layout/params.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/xielu.hpp>
#include <p3d/config/config.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

namespace p3d::layout {

namespace {

constexpr double base_std = 0.02;
/// How tensor parallelism divides a parameter.
enum class Cut { replicated, by_rows, by_cols };
using enum Cut;

/// The splits of a cut over tp.
std::vector<Split> splits_of(Cut cut) {
  if (cut == replicated) return {};
  return {{cut == by_rows ? 0 : 1, Axis::tp}};
}

/// Collects the rows of the table for one model.
class Builder {
public:
  explicit Builder(config::Config const& config)
      : config_(config),
        m_(config.model),
        sequence_(config.parallel.sequence),
        over_pipeline_(config.divides_vocabulary()),
        whole_embedding_(config.replicates_embedding()) {}

  std::vector<ParamSpec> build() {
    embedding();
    for (int l = 0; l < static_cast<int>(m_.layers); ++l) layer(l);
    for (auto l = static_cast<int>(m_.layers); l < m_.all_layers(); ++l) prediction_block(l);
    auto const head_side = static_cast<int>(m_.all_layers());
    norm("final_norm", head_side, true);
    if (!m_.tied_embeddings) {
      divide_vocabulary(matrix("head.weight", head_side, m_.vocab_size, m_.hidden, by_rows, base_std));
    }
    for (auto& spec : specs_) spec.delay = static_cast<int>(config_.delay_of(spec.layer));
    return std::move(specs_);
  }

private:
  /// Sets the splits of a parameter. Parameters that tp does not divide work between the GEMMs, where sequence
  /// parallelism divides the tokens over tp.
  void divide(ParamSpec& p, Cut cut) const {
    p.splits = splits_of(cut);
    if (sequence_ && cut == replicated) p.token_axes = p.token_axes.plus(Axis::tp);
  }

  /// Pads the rows of the vocabulary, and divides them over the pipeline where the configuration asks for it.
  void divide_vocabulary(ParamSpec& p) const {
    p.padded = true;
    if (over_pipeline_) p.splits.insert(p.splits.begin(), {0, Axis::pp});
  }

  ParamSpec& matrix(std::string name, int layer, std::int64_t rows, std::int64_t cols, Cut cut, double std) {
    ParamSpec p;
    p.name = std::move(name);
    p.rows = rows;
    p.cols = cols;
    divide(p, cut);
    p.init = Init::normal;
    p.std = std;
    p.decay = true;
    p.layer = layer;
    return specs_.emplace_back(std::move(p));
  }

  ParamSpec& vector(std::string name, int layer, std::int64_t size, Cut cut, Init init) {
    ParamSpec p;
    p.name = std::move(name);
    p.cols = size;
    divide(p, cut);
    p.init = init;
    p.layer = layer;
    return specs_.emplace_back(std::move(p));
  }

  void norm(std::string const& name, int layer, bool there) {
    if (!there) return;
    vector(name + ".weight", layer, m_.hidden, replicated, norm_init());
    if (m_.norm == config::Norm::layernorm && m_.bias)
      vector(name + ".bias", layer, m_.hidden, replicated, Init::zeros);
  }

  void embedding() {
    auto const cut = whole_embedding_ ? replicated : by_rows;
    auto& token = matrix("embed.token.weight", -1, m_.vocab_size, m_.hidden, cut, base_std);
    if (!whole_embedding_) divide_vocabulary(token);
    token.tied = m_.last_reads_embedding() && !over_pipeline_;  // divided over pp, a rank has the same rows of both
    if (m_.position == config::Position::learned) {
      matrix("embed.position.weight", -1, m_.seq_len, m_.hidden, replicated, base_std);
    }
  }

  /// Column-parallel matrices that read the same input: all weights follow each other without a gap, then all biases.
  void fused(std::string const& prefix, int layer, std::vector<std::pair<char const*, std::int64_t>> const& outputs,
             bool bias) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      auto const& [name, rows] = outputs[i];
      matrix(prefix + name + ".weight", layer, rows, m_.hidden, by_rows, base_std).follows_previous = i > 0;
    }
    if (!bias) return;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      auto const& [name, rows] = outputs[i];
      vector(prefix + name + ".bias", layer, rows, by_cols, Init::zeros).follows_previous = i > 0;
    }
  }

  /// A row-parallel matrix that writes into the residual stream; its bias is added once, after the all-reduce over tp.
  void projection(std::string const& name, int layer, std::int64_t inputs, bool bias) {
    matrix(name + ".weight", layer, m_.hidden, inputs, by_cols, residual_std());
    if (bias) vector(name + ".bias", layer, m_.hidden, replicated, Init::zeros);
  }

  void layer(int l) {
    auto const prefix = fmt::format("layers.{}.", l);
    norm(prefix + "norm1", l, m_.norms_before());
    if (m_.mla.on())
      latent_attention(prefix + "attn.", l);
    else
      grouped_query_attention(prefix + "attn.", l);
    if (m_.attention_sinks) vector(prefix + "attn.sinks", l, m_.heads, by_cols, Init::normal).std = base_std;
    projection(prefix + "attn.out", l, m_.heads * m_.value_dim(), m_.bias);
    norm(prefix + "post_norm1", l, m_.norms_after());
    norm(prefix + "norm2", l, m_.norms_before());
    if (m_.has_experts(l))
      moe(prefix + "moe.", l);
    else
      mlp(prefix + "mlp.", l, m_.ffn, m_.bias);
    norm(prefix + "post_norm2", l, m_.norms_after());
  }

  /// A block of multi-token prediction. The matrix that joins its two inputs is whole on each rank of tp, for its rows.
  void prediction_block(int l) {
    auto const prefix = fmt::format("layers.{}.mtp.", l);
    norm(prefix + "enorm", l, true);
    norm(prefix + "hnorm", l, true);
    matrix(prefix + "eh_proj.weight", l, m_.hidden, 2 * m_.hidden, replicated, base_std);
    layer(l);
    norm(prefix + "final_norm", l, true);
  }

  void grouped_query_attention(std::string const& prefix, int l) {
    auto const q = m_.heads * m_.head_dim();
    auto const kv = m_.kv_heads * m_.head_dim();
    fused(prefix, l, {{"q", q}, {"k", kv}, {"v", kv}}, m_.has_qkv_bias());
    qk_norm(prefix + "q_norm.weight", l, q);
    qk_norm(prefix + "k_norm.weight", l, kv);
  }

  /// The matrices that make a token's latents are whole on each rank of tp, and one matrix in memory. Those that make
  /// heads of them are divided by heads.
  void latent_attention(std::string const& prefix, int l) {
    auto const& a = m_.mla;
    bool const queries = a.q_lora_rank > 0;
    if (queries) matrix(prefix + "q_down.weight", l, a.q_lora_rank, m_.hidden, replicated, base_std);
    matrix(prefix + "kv_down.weight", l, a.kv_lora_rank + a.qk_rope_head_dim, m_.hidden, replicated, base_std)
        .follows_previous = queries;
    if (queries) vector(prefix + "q_latent_norm.weight", l, a.q_lora_rank, replicated, norm_init());
    vector(prefix + "kv_latent_norm.weight", l, a.kv_lora_rank, replicated, norm_init());
    auto const q = m_.heads * m_.head_dim();
    if (queries)
      matrix(prefix + "q_up.weight", l, q, a.q_lora_rank, by_rows, base_std);
    else
      matrix(prefix + "q.weight", l, q, m_.hidden, by_rows, base_std);
    matrix(prefix + "kv_up.weight", l, m_.heads * a.kv_head_dim(), a.kv_lora_rank, by_rows, base_std);
  }

  /// The weight of a norm of queries or keys, which have `size` columns. One of a head meets other heads on each rank
  /// of tp: its gradient is their sum.
  void qk_norm(std::string name, int l, std::int64_t size) {
    if (m_.qk_norm == config::QkNorm::none) return;
    bool const full = m_.qk_norm == config::QkNorm::full;
    auto& p = vector(std::move(name), l, full ? size : m_.head_dim(), full ? by_cols : replicated, norm_init());
    if (!full) p.token_axes = p.token_axes.plus(Axis::tp);
  }

  void mlp(std::string const& prefix, int l, std::int64_t ffn, bool bias) {
    if (m_.gated())
      fused(prefix, l, {{"gate", ffn}, {"up", ffn}}, bias);
    else
      fused(prefix, l, {{"up", ffn}}, bias);
    if (m_.activation == config::Activation::xielu) slopes(prefix, l);
    projection(prefix + "down", l, ffn, bias);
  }

  /// The learned numbers of xIELU. Each rank of tp has other columns of what they multiply: their gradient is a sum
  /// over tp. The first values make slopes of 0.8 (arXiv 2411.13010, section 3).
  void slopes(std::string const& prefix, int l) {
    constexpr double first_slope = 0.8;
    auto const slope = [&](char const* name, double above) -> ParamSpec& {
      auto& p = vector(prefix + name, l, 1, replicated, Init::constant);
      p.value = std::log(std::expm1(above));  // softplus of it is `above`
      p.token_axes = p.token_axes.plus(Axis::tp);
      return p;
    };
    slope("alpha_p", first_slope);
    slope("alpha_n", first_slope - base::xielu_beta).follows_previous = true;
  }

  void moe(std::string const& prefix, int l) {
    auto const& moe = m_.moe;
    matrix(prefix + "router.weight", l, moe.experts, m_.hidden, replicated, base_std);
    if (moe.choice_bias) vector(prefix + "router.bias", l, moe.experts, replicated, Init::zeros).trained = false;
    if (moe.aux_loss == config::AuxLoss::global)
      vector(prefix + "router.load", l, moe.experts, replicated, Init::zeros).trained = false;
    if (m_.gated()) experts(prefix + "experts.gate.weight", l, base_std);
    experts(prefix + "experts.up.weight", l, base_std);
    experts(prefix + "experts.down.weight", l, residual_std());
    if (moe.bias) expert_biases(prefix, l);
    if (moe.shared_ffn == 0) return;
    mlp(prefix + "shared.", l, moe.shared_ffn, false);
    if (moe.shared_gate) matrix(prefix + "shared_gate.weight", l, 1, m_.hidden, replicated, base_std);
  }

  /// One matrix that holds all experts, one below the other.
  void experts(std::string name, int l, double std) {
    auto& p = matrix(std::move(name), l, m_.moe.experts * m_.hidden, m_.moe.ffn, replicated, std);
    p.splits = {{0, Axis::ep}, {1, Axis::etp}};
    p.token_axes = expert_token_axes;
  }

  /// The biases of the router's linear and of all experts, a row for each expert. Those of down are whole on every rank
  /// of etp: one of them adds them, and all of them have their gradient.
  void expert_biases(std::string const& prefix, int l) {
    vector(prefix + "router.linear_bias", l, m_.moe.experts, replicated, Init::zeros);
    if (m_.gated()) expert_bias(prefix + "experts.gate.bias", l, m_.moe.ffn).splits.push_back({1, Axis::etp});
    expert_bias(prefix + "experts.up.bias", l, m_.moe.ffn).splits.push_back({1, Axis::etp});
    expert_bias(prefix + "experts.down.bias", l, m_.hidden);
  }
  ParamSpec& expert_bias(std::string name, int l, std::int64_t cols) {
    auto& p = vector(std::move(name), l, cols, replicated, Init::zeros);
    p.rows = m_.moe.experts;
    p.splits = {{0, Axis::ep}};
    p.token_axes = expert_token_axes;
    return p;
  }

  /// Norms leave what they multiply as it is at first.
  Init norm_init() const { return m_.norm_offset == 1 ? Init::zeros : Init::ones; }

  /// The standard deviation for matrices that write into the residual stream.
  double residual_std() const { return base_std / std::sqrt(2.0 * static_cast<double>(m_.layers)); }

  config::Config const& config_;
  config::Model const& m_;
  bool sequence_, over_pipeline_, whole_embedding_;
  std::vector<ParamSpec> specs_;
};

/// The piece of a dimension of `size` elements that a rank holds. Throws when the pieces are unequal and the dimension
/// may not be padded.
Range piece(ParamSpec const& spec, int dimension, std::int64_t size, PerAxis const& sizes, PerAxis const& here) {
  std::int64_t parts = 1, part = 0;
  std::vector<std::string> names, values, keys;
  for (auto const& split : spec.splits) {
    if (split.dimension != dimension) continue;
    parts *= sizes[split.axis];
    part = part * sizes[split.axis] + here[split.axis];
    names.emplace_back(name(split.axis));
    keys.emplace_back(config::row_of(split.axis).key);
    values.push_back(fmt::format("{} = {}", names.back(), sizes[split.axis]));
  }
  bool const may_pad = spec.padded && dimension == 0;
  if (!may_pad && size % parts != 0) {
    auto const product = base::join(names, " x ");
    base::refuse({.expected = fmt::format("dimension {} of {} is divisible by {}", dimension, spec.name, product),
                  .found = fmt::format("size {}, {}", size, base::join(values)),
                  .where = base::join(keys),
                  .fix = fmt::format("choose {} so that {} divides {}", base::join(keys, " and "), product, size)});
  }
  return padded_shard(size, static_cast<int>(parts), static_cast<int>(part));
}

/// The local view of a parameter, without its offset.
LocalParam localise(ParamSpec const& spec, PerAxis const& sizes, PerAxis const& here) {
  auto const rows = piece(spec, 0, spec.rows, sizes, here), cols = piece(spec, 1, spec.cols, sizes, here);
  LocalParam local;
  local.spec = &spec;
  local.row_begin = rows.begin;
  local.rows = rows.size();
  local.valid_rows = std::clamp<std::int64_t>(spec.rows - rows.begin, 0, rows.size());
  local.col_begin = cols.begin;
  local.cols = cols.size();
  return local;
}

}  // namespace

ParamTable::ParamTable(std::vector<ParamSpec> specs) : specs_(std::move(specs)) {
  std::unordered_set<std::string_view> names;
  for (auto const& s : specs_) {
    P3D_REQUIRE(names.insert(s.name).second, "every parameter has its own name: " + s.name);
    P3D_REQUIRE(s.rows >= 1 && s.cols >= 1, "a parameter has at least one element: " + s.name);
    P3D_REQUIRE(s.split_axes().plus(s.token_axes).minus(s.mesh_axes()).empty(),
                "one factorisation of the stage's ranks divides a parameter and its tokens: " + s.name);
    std::vector<Split> over;
    for (auto const& split : s.splits) {
      P3D_REQUIRE(split.dimension == 0 || split.dimension == 1, "a parameter has two dimensions: " + s.name);
      for (auto const& other : over)
        P3D_REQUIRE(other.axis != split.axis, "an axis divides a parameter once: " + s.name);
      over.push_back(split);
    }
    P3D_REQUIRE(
        !s.padded || std::any_of(over.begin(), over.end(), [](auto const& split) { return split.dimension == 0; }),
        "only rows that are divided are padded: " + s.name);
    P3D_REQUIRE(s.layer >= -1, "a parameter belongs to a layer, to the embedding side or to the head side: " + s.name);
    auto const at = static_cast<std::size_t>(s.layer) + 1, row = static_cast<std::size_t>(&s - specs_.data());
    if (rows_of_layer_.size() <= at) rows_of_layer_.resize(at + 1);
    rows_of_layer_[at].push_back(row);
    if (s.tied) tied_rows_.push_back(row);
    if (s.over_pipeline()) pipeline_rows_.push_back(row);
  }
}

std::vector<std::size_t> const& ParamTable::rows_of_layer(int layer) const {
  static std::vector<std::size_t> const none;
  auto const at = static_cast<std::size_t>(layer) + 1;
  return at < rows_of_layer_.size() ? rows_of_layer_[at] : none;
}

ParamSpec const& ParamTable::find(std::string_view name) const {
  auto const it = std::find_if(specs_.begin(), specs_.end(), [&](auto const& s) { return s.name == name; });
  P3D_REQUIRE(it != specs_.end(), fmt::format("the model has a parameter {}", name));
  return *it;
}

std::int64_t ParamTable::num_parameters() const {
  std::int64_t n = 0;
  for (auto const& s : specs_) n += s.trained ? s.size() : 0;
  return n;
}

ParamTable make_param_table(config::Config const& config) { return ParamTable(Builder(config).build()); }

namespace {
/// True for the first stage on its pipeline rank.
bool is_first_of_rank(StageMap const& stages, int stage) {
  return stages.stages_of(stages.pipeline_rank(stage)).front() == stage;
}
}  // namespace

bool lives_on(ParamSpec const& spec, StageMap const& stages, int stage) {
  if (spec.over_pipeline()) return is_first_of_rank(stages, stage);
  if (spec.tied && stages.is_last(stage) && !stages.shares_tied()) return true;
  if (spec.layer < 0) return stages.is_first(stage);
  if (spec.layer >= stages.num_layers()) return stages.is_last(stage);
  auto const range = stages.layers(stage);
  return spec.layer >= range.begin && spec.layer < range.end;
}

namespace {

/// The rows for which lives_on() is true, in order; it does not look at the rows of other stages.
std::vector<std::size_t> rows_on(ParamTable const& table, StageMap const& stages, int stage) {
  std::vector<std::size_t> rows;
  auto const add = [&](std::vector<std::size_t> const& some) { rows.insert(rows.end(), some.begin(), some.end()); };
  if (stages.is_first(stage)) add(table.rows_of_layer(-1));
  auto const range = stages.layers(stage);
  for (auto l = range.begin; l < range.end; ++l) add(table.rows_of_layer(static_cast<int>(l)));
  if (stages.is_last(stage)) {
    for (int l = stages.num_layers(); l < table.end_of_layers(); ++l) add(table.rows_of_layer(l));
    if (!stages.shares_tied()) add(table.tied_rows());
  }
  auto const& divided = table.pipeline_rows();
  std::erase_if(rows, [&](std::size_t row) { return table.specs()[row].over_pipeline(); });
  if (is_first_of_rank(stages, stage)) rows.insert(rows.end(), divided.begin(), divided.end());
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

/// Makes parameters of one layer whose gradients are summed over the same axes neighbours, so that few buckets hold
/// them. Otherwise their order is kept.
void group_by_axes(ParamTable const& table, std::vector<std::size_t>& rows) {
  auto const& specs = table.specs();
  for (auto begin = rows.begin(); begin != rows.end();) {
    auto const layer = specs[*begin].layer;
    auto const end = std::find_if(begin, rows.end(), [&](std::size_t row) { return specs[row].layer != layer; });
    while (begin != end) {
      auto const axes = specs[*begin].gradient_axes();
      begin = std::stable_partition(begin, end, [&](std::size_t row) { return specs[row].gradient_axes() == axes; });
    }
  }
}

}  // namespace

StageParams::StageParams(ParamTable const& table, StageMap const& stages, int stage, PerAxis sizes,
                         PerAxis coordinates) {
  P3D_REQUIRE(stages.pipeline_rank(stage) == coordinates.pp, "the rank holds the stage");
  P3D_REQUIRE(stages.num_pipeline_ranks() == sizes.pp, "the stage map and the mesh agree");
  auto rows = rows_on(table, stages, stage);
  group_by_axes(table, rows);
  for (auto const row : rows) {
    auto const& spec = table.specs()[row];
    auto local = localise(spec, sizes, coordinates);
    if (!spec.follows_previous) flat_size_ = (flat_size_ + alignment - 1) / alignment * alignment;
    local.offset = flat_size_;
    flat_size_ += local.size();
    items_.push_back(local);
  }
  flat_size_ = (flat_size_ + alignment - 1) / alignment * alignment;
}

LocalParam const& StageParams::find(std::string_view name) const {
  auto const it = std::find_if(items_.begin(), items_.end(), [&](auto const& i) { return i.spec->name == name; });
  P3D_REQUIRE(it != items_.end(), fmt::format("the stage holds {}", name));
  return *it;
}

bool StageParams::has(std::string_view name) const {
  return std::any_of(items_.begin(), items_.end(), [&](auto const& i) { return i.spec->name == name; });
}

Range replica_share(std::int64_t rows, std::int64_t cols, std::int64_t element_bytes, int r, int replicas) {
  constexpr std::int64_t smallest_divided = std::int64_t{64} << 10;
  if (cols == 0) return {};
  if (rows * cols * element_bytes < smallest_divided) return r == 0 ? Range{0, rows} : Range{rows, rows};
  return {rows * r / replicas, rows * (r + 1) / replicas};
}

}  // namespace p3d::layout
