// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameter table: every parameter of the model declared once. The local view, initial values, gradient reduction,
// memory and checkpoints all follow from its row. Example: attn.q.weight has rows split over tp, so a rank of tp=2
// holds half of the rows, and its gradient is summed over dp and cp but not over tp.

#include <p3d/layout/axes.hpp>
#include <p3d/layout/stages.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace p3d::layout {

/// Initial distribution of a parameter.
enum class Init { zeros, ones, constant, normal };

/// A dimension of a parameter (0: rows, 1: columns) that is divided over the ranks along an axis.
struct Split {
  int dimension = 0;
  Axis axis = Axis::tp;
  bool operator==(Split const&) const = default;
};

/// One parameter of the model, described by its global properties only.
struct ParamSpec {
  std::string name;       ///< global name: "layers.3.attn.q.weight"
  std::int64_t rows = 1;  ///< global shape [rows, cols]; a vector is [1, cols]
  std::int64_t cols = 1;
  /// The divided dimensions. Empty: every rank of its stage holds all of it. When several axes divide one dimension,
  /// the first is the outermost.
  std::vector<Split> splits;
  bool padded = false;  ///< the rows are padded up to a multiple of their parts (vocabulary)
  Init init = Init::zeros;
  double std = 0.0;     ///< standard deviation for Init::normal
  double value = 0.0;   ///< number that fills it with Init::constant
  bool decay = false;   ///< weight decay applies (matrices yes, biases and norms no)
  bool trained = true;  ///< its gradient trains it; false: it has no gradient, and is set in another way (router.bias)
  /// Layer number; -1 embedding side, Model::all_layers() head side. Those from num_layers on are multi-token
  /// prediction.
  int layer = 0;
  bool tied = false;              ///< the last stage has it too (an embedding that it reads: one tie group)
  int delay = 0;                  ///< updates by which its gradient is late (optimizer.delay, pipeline.delays)
  bool follows_previous = false;  ///< lies right behind the previous parameter in the flat buffer (fused GEMM)
  AxisSet token_axes = layout::token_axes;  ///< axes that split the tokens that this parameter sees

  std::int64_t size() const { return rows * cols; }
  /// The axes that split the parameter itself.
  AxisSet split_axes() const {
    AxisSet out;
    for (auto const& s : splits) out = out.plus({s.axis});
    return out;
  }
  /// The factorisation of its stage's ranks in which it lives: the dense axes, or, when an axis of experts divides it
  /// or its tokens, the axes of experts. The sets below are taken within it, so a difference of sets of names is exact.
  /// A parameter that is divided over the pipeline lives in pp too.
  AxisSet mesh_axes() const {
    auto const stage = split_axes().plus(token_axes).meets(expert_axes) ? expert_axes : stage_axes;
    return over_pipeline() ? stage.plus(Axis::pp) : stage;
  }
  /// True when every pipeline rank has a part of it, on its first stage (pipeline.vocab_parallel).
  bool over_pipeline() const { return split_axes().has(Axis::pp); }
  /// The gradient rule: the gradient is summed over (axes that split the tokens) minus (axes that split the parameter).
  AxisSet gradient_axes() const { return token_axes.minus(split_axes()); }
  /// The axes along which the ranks of a stage are replicas: they hold the same elements.
  AxisSet replica_axes() const { return mesh_axes().minus(split_axes()); }
  /// The axes along which replicas also see the same tokens: what one of them counts, the others must not count.
  AxisSet repeated_axes() const { return replica_axes().minus(token_axes); }
};

/// All parameters in global order (embedding, layers from 0, those of multi-token prediction, head), which is the order
/// of checkpoints and dumps.
class ParamTable {
public:
  explicit ParamTable(std::vector<ParamSpec> specs);
  std::vector<ParamSpec> const& specs() const { return specs_; }
  /// The parameter of this name, which must exist.
  ParamSpec const& find(std::string_view name) const;
  /// The number of trained elements (a tied parameter counts once, padding does not).
  std::int64_t num_parameters() const;
  /// Rows of the table with this ParamSpec::layer, in order; empty when there are none.
  std::vector<std::size_t> const& rows_of_layer(int layer) const;
  /// The largest ParamSpec::layer, plus 1.
  int end_of_layers() const { return static_cast<int>(rows_of_layer_.size()) - 1; }
  /// Rows of the tied parameters.
  std::vector<std::size_t> const& tied_rows() const { return tied_rows_; }
  /// Rows of the parameters that are over_pipeline().
  std::vector<std::size_t> const& pipeline_rows() const { return pipeline_rows_; }

private:
  std::vector<ParamSpec> specs_;
  std::vector<std::vector<std::size_t>> rows_of_layer_;  ///< index: layer + 1
  std::vector<std::size_t> tied_rows_, pipeline_rows_;
};

/// Makes the table of a checked configuration. Names:
///   embed.token.weight [vocab, hidden], embed.position.weight [seq, hidden] (learned positions)
///   layers.L.norm1.weight|bias, layers.L.attn.q|k|v.weight|bias, layers.L.attn.out.weight|bias,
///   layers.L.attn.q_norm|k_norm.weight (model.qk_norm: [1, head_dim], or all columns of q and of k),
///   layers.L.attn.sinks [1, heads] (model.attention_sinks only),
///   in place of q, k and v with model.mla: layers.L.attn.q_down.weight [q_lora_rank, hidden], kv_down.weight
///   [kv_lora_rank + qk_rope_head_dim, hidden], q_latent_norm|kv_latent_norm.weight, q_up.weight [heads head_dim,
///   q_lora_rank] and kv_up.weight [heads (qk_nope_head_dim + v_head_dim), kv_lora_rank]; with q_lora_rank 0
///   layers.L.attn.q.weight [heads head_dim, hidden] in place of q_down, q_latent_norm and q_up,
///   layers.L.norm2.weight|bias, layers.L.mlp.gate|up.weight|bias, layers.L.mlp.down.weight|bias,
///   layers.L.mlp.alpha_p|alpha_n [1, 1] (activation xielu: the numbers of its slopes),
///   layers.L.mtp.enorm|hnorm.weight|bias, layers.L.mtp.eh_proj.weight [hidden, 2 hidden], the rows of a layer L, and
///   layers.L.mtp.final_norm.weight|bias, for L from model.layers on (model.mtp only)
///   final_norm.weight|bias, head.weight [vocab, hidden] (untied only)
/// A layer with experts (model.moe) has, instead of mlp and without biases of linears:
///   layers.L.moe.router.weight [experts, hidden], layers.L.moe.router.bias [1, experts] (choice_bias only),
///   layers.L.moe.router.load [1, experts] (aux_loss "global" only: the share of choices in the last global batch)
///   layers.L.moe.experts.gate|up|down.weight [experts * hidden, ffn of one]
///   layers.L.moe.router.linear_bias [1, experts], layers.L.moe.experts.gate|up.bias [experts, ffn of one] and
///   layers.L.moe.experts.down.bias [experts, hidden] (model.moe.bias only)
///   layers.L.moe.shared.gate|up|down.weight, layers.L.moe.shared_gate.weight [1, hidden]
/// Rows [e hidden, (e + 1) hidden) of a matrix of experts are the block [hidden, ffn] of expert e: gate and up are (in,
/// out), down is (out, in). So a rank's part, of the rows over ep and of the columns over etp, is a rectangle. Other
/// matrices are [out, in].
///
/// With parallel.sequence, tp splits the tokens of parameters that it does not split itself: norms, the biases behind
/// row-parallel matrices, positions. It splits the heads that a norm of one head sees in any case, and the columns that
/// xIELU's slopes see. With pipeline.vocab_parallel, the rows of the vocabulary are divided over pp, and those parts
/// over tp. Initial values are normal(0, 0.02), biases 0; attn.out and mlp.down have normal(0, 0.02 / sqrt(2 layers))
/// (GPT-2). In moe, down of experts is as that of mlp, and the others are as other matrices.
ParamTable make_param_table(config::Config const& config);

/// True when a stage holds the parameter: the stage of its layer, the first for the embedding side, the last for the
/// head side and for blocks of multi-token prediction. A tied parameter lives on the first and on the last stage. A
/// parameter that is divided over the pipeline lives on the first stage of each pipeline rank.
bool lives_on(ParamSpec const& spec, StageMap const& stages, int stage);

/// A parameter as one rank holds it: the local shape, where the local block starts in the (padded) global array, and
/// where it lies in the stage's flat buffer.
struct LocalParam {
  ParamSpec const* spec = nullptr;
  std::int64_t rows = 0;  ///< local shape
  std::int64_t cols = 0;
  std::int64_t row_begin = 0;  ///< global indices of the local element (0, 0)
  std::int64_t col_begin = 0;
  std::int64_t valid_rows = 0;  ///< local rows that exist globally; the others are padding and stay zero
  std::int64_t offset = 0;      ///< elements from the start of the stage's flat buffer
  std::int64_t size() const { return rows * cols; }
};

/// The parameters of one stage on one rank and their places in one flat buffer. q, k, v (and gate, up) weights follow
/// each other without a gap, and so do their biases, so that one GEMM serves them; every other parameter starts on a
/// multiple of `alignment` elements. They are in the order of the table, but parameters of one layer with the same
/// gradient axes are neighbours.
class StageParams {
public:
  static constexpr std::int64_t alignment = 16;
  /// `table` must outlive this object (so the compiler refuses a temporary).
  StageParams(ParamTable const& table, StageMap const& stages, int stage, PerAxis sizes, PerAxis coordinates);
  StageParams(ParamTable&& table, StageMap const& stages, int stage, PerAxis sizes, PerAxis coordinates) = delete;
  std::vector<LocalParam> const& items() const { return items_; }
  /// The parameter of this name. Throws when the stage does not hold it.
  LocalParam const& find(std::string_view name) const;
  bool has(std::string_view name) const;
  /// The number of elements of the flat buffer, with padding between parameters.
  std::int64_t flat_size() const { return flat_size_; }

private:
  std::vector<LocalParam> items_;
  std::int64_t flat_size_ = 0;
};

/// The rows of (rows x cols) elements that replica `r` of `replicas` reads and writes for all of them: an equal part.
/// Small pieces (below 64 KiB) belong to the first replica.
Range replica_share(std::int64_t rows, std::int64_t cols, std::int64_t element_bytes, int r, int replicas);

}  // namespace p3d::layout
