// SPDX-License-Identifier: Apache-2.0
#include <p3d/model/weights.hpp>

#include <p3d/base/error.hpp>

#include <fmt/format.h>

#include <string>

namespace p3d::model {

namespace {

template <class P>
NormWeights<P> norm_weights(Parameters<P> const& params, std::string const& name) {
  return {params.vector(name + ".weight"), params.vector(name + ".bias")};
}

template <class P>
BlockWeights<P> block_weights(config::Config const& c, Parameters<P> const& params, std::int64_t layer) {
  auto const at = [&](char const* rest) { return fmt::format("layers.{}.{}", layer, rest); };
  bool const gated = c.model.gated(), experts = c.model.has_experts(layer);
  BlockWeights<P> w;
  w.norm1 = norm_weights(params, at("norm1"));
  w.norm2 = norm_weights(params, at("norm2"));
  w.post_norm1 = norm_weights(params, at("post_norm1"));
  w.post_norm2 = norm_weights(params, at("post_norm2"));
  if (c.model.mla.on()) {
    bool const queries = c.model.mla.q_lora_rank > 0;
    w.latent_down =
        params.fused_matrix(at(queries ? "attn.q_down.weight" : "attn.kv_down.weight"), at("attn.kv_down.weight"));
    w.q_latent = params.vector(at("attn.q_latent_norm.weight"));
    w.kv_latent = params.vector(at("attn.kv_latent_norm.weight"));
    w.q_up = params.matrix(at(queries ? "attn.q_up.weight" : "attn.q.weight"));
    w.kv_up = params.matrix(at("attn.kv_up.weight"));
  } else {
    w.qkv = params.fused_matrix(at("attn.q.weight"), at("attn.v.weight"));
    w.qkv_bias = params.fused_vector(at("attn.q.bias"), at("attn.v.bias"));
    w.q_norm = params.vector(at("attn.q_norm.weight"));
    w.k_norm = params.vector(at("attn.k_norm.weight"));
  }
  w.sinks = params.vector(at("attn.sinks"));
  w.attn_out = params.matrix(at("attn.out.weight"));
  w.attn_out_bias = params.vector(at("attn.out.bias"));
  if (experts) {
    w.moe.router = params.matrix(at("moe.router.weight"));
    w.moe.bias = params.vector(at("moe.router.bias"));
    w.moe.load = params.vector(at("moe.router.load"));
    w.moe.router_bias = params.vector(at("moe.router.linear_bias"));
    if (gated) w.moe.gate = params.matrix(at("moe.experts.gate.weight"));
    w.moe.up = params.matrix(at("moe.experts.up.weight"));
    w.moe.down = params.matrix(at("moe.experts.down.weight"));
    if (c.model.moe.bias) {
      if (gated) w.moe.gate_bias = params.matrix(at("moe.experts.gate.bias"));
      w.moe.up_bias = params.matrix(at("moe.experts.up.bias"));
      w.moe.down_bias = params.matrix(at("moe.experts.down.bias"));
    }
    if (c.model.moe.shared_ffn == 0) return w;
    if (c.model.moe.shared_gate) w.moe.shared_gate = params.matrix(at("moe.shared_gate.weight"));
  }
  auto const mlp = at(experts ? "moe.shared." : "mlp.");
  auto const first_up = mlp + (gated ? "gate" : "up");
  w.up = params.fused_matrix(first_up + ".weight", mlp + "up.weight");
  w.up_bias = params.fused_vector(first_up + ".bias", mlp + "up.bias");
  w.slopes = params.fused_vector(mlp + "alpha_p", mlp + "alpha_n");
  w.down = params.matrix(mlp + "down.weight");
  w.down_bias = params.vector(mlp + "down.bias");
  return w;
}

template <class P>
MtpWeights<P> mtp_weights(config::Config const& c, Parameters<P> const& params, std::int64_t layer) {
  auto const at = [&](char const* rest) { return fmt::format("layers.{}.mtp.{}", layer, rest); };
  return {norm_weights(params, at("enorm")), norm_weights(params, at("hnorm")), params.matrix(at("eh_proj.weight")),
          block_weights(c, params, layer), norm_weights(params, at("final_norm"))};
}

[[noreturn]] void refuse_to_move(char const* what) {
  throw base::Error({.expected = "a schedule that leaves resident weights where they are",
                     .found = what,
                     .where = "the weights of a stage",
                     .fix = "leave out the weight actions, or give the trainer a provider that moves weights"});
}

}  // namespace

template <class P>
StageWeights<P> stage_weights(config::Config const& c, layout::StageMap const& stages, int stage,
                              Parameters<P> const& params, Parameters<P> const* first) {
  StageWeights<P> w;
  auto const range = stages.layers(stage);
  for (auto l = range.begin; l < range.end; ++l) w.layers.push_back(block_weights(c, params, l));
  auto const output_rows = c.model.tied_embeddings ? "embed.token.weight" : "head.weight";
  if (!stages.stages_own_vocabulary() && params.layout().has(output_rows)) {
    w.embedding = params.matrix("embed.token.weight");
    w.head = params.matrix(output_rows);
  }
  if (stages.is_first(stage)) {
    if (stages.has_embedding(stage)) w.embedding = params.matrix("embed.token.weight");
    if (c.model.position == config::Position::learned) w.positions = params.matrix("embed.position.weight");
  }
  if (stages.is_last(stage)) {
    w.final_norm = norm_weights(params, "final_norm");
    if (!stages.has_head(stage)) return w;
    bool const shares = c.model.last_reads_embedding() && stages.shares_tied();
    P3D_REQUIRE(!shares || first != nullptr, "a shared embedding is somewhere");
    auto const& with_embedding = shares ? *first : params;
    w.head = (c.model.tied_embeddings ? with_embedding : params).matrix(output_rows);
    if (!c.model.mtp.on()) return w;
    w.embedding = with_embedding.matrix("embed.token.weight");
    for (auto l = c.model.layers; l < c.model.all_layers(); ++l) w.mtp.push_back(mtp_weights(c, params, l));
  }
  return w;
}

template <class P>
void ResidentWeights<P>::gather(int) {
  refuse_to_move("GATHER");
}
template <class P>
void ResidentWeights<P>::release(int) {
  refuse_to_move("RELEASE");
}
template <class P>
void ResidentWeights<P>::offload(int) {
  refuse_to_move("OFFLOAD");
}
template <class P>
void ResidentWeights<P>::reload(int) {
  refuse_to_move("RELOAD");
}

#define P3D_INSTANTIATE(P)                                                                                             \
  template StageWeights<P> stage_weights<P>(config::Config const&, layout::StageMap const&, int, Parameters<P> const&, \
                                            Parameters<P> const*);                                                     \
  template class ResidentWeights<P>;
P3D_POLICIES(P3D_INSTANTIATE)
#undef P3D_INSTANTIATE

}  // namespace p3d::model
