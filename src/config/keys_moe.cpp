// SPDX-License-Identifier: Apache-2.0
// The keys of [model.moe]: experts, their router, their balance, and how rows travel to them.

#include "config/keys.hpp"

#include "config/limits.hpp"
#include "config/section.hpp"

namespace p3d::config {

namespace {

/// Gets the struct of the section, which lies inside another one: no pointer to member reaches it.
struct MoeOfModel {
  Moe& operator()(Config& config) const { return config.model.moe; }
  Moe const& operator()(Config const& config) const { return config.model.moe; }
};
using MoeSection = Section<Moe, MoeOfModel>;

/// Reads model.moe.aux_loss. People look for a loss over a microbatch, so its absence is explained.
MaybeMismatch read_aux_loss(toml::node const& node, std::string const&, Config& config) {
  auto mismatch = read_enum(node, config.model.moe.aux_loss);
  if (!mismatch) return mismatch;
  auto const* text = node.as_string();
  if (text && (text->get() == "microbatch" || text->get() == "batch"))
    mismatch->fix =
        "use \"sequence\" or \"global\": a loss over a microbatch is another one with every batch.micro and "
        "every layout";
  return mismatch;
}

void add_experts(MoeSection& s) {
  s.integer("experts", &Moe::experts, {0, limits::experts},
            "experts of a layer, a multiple of parallel.ep; 0: a dense model");
  s.integer("top_k", &Moe::top_k, {1, limits::experts}, "experts that each token is sent to");
  s.integer("every", &Moe::every, {1, limits::layers},
            "every n-th layer has experts, the n-th first; the others are dense");
  s.integer("first_dense", &Moe::first_dense, {0, limits::layers}, "so many first layers are dense");
  s.integer("ffn", &Moe::ffn, {1, limits::width}, "width of one expert, a multiple of parallel.etp", "model.ffn");
  s.integer("shared_ffn", &Moe::shared_ffn, {0, limits::width},
            "width of the shared experts together, which serve every token, a multiple of parallel.tp; 0: none");
  s.flag("bias", &Moe::bias, "bias vectors in the linears of the router and of routed experts, as in gpt-oss");
  s.flag("shared_gate", &Moe::shared_gate, "a sigmoid gate on the output of the shared experts, as in Qwen-MoE");
}

void add_router(MoeSection& s) {
  s.choice("score", &Moe::score,
           "scores of experts, over all of them or each alone; always in the type of sums (fp32 with 16 bits)");
  s.flag("normalize", &Moe::normalize,
         "gates are divided by their sum over the chosen experts; with softmax that is the softmax over these");
  s.number("scale", &Moe::scale, {.max = 1e6, .min_open = true}, "factor of the gates (routed scaling factor)");
  s.integer("groups", &Moe::groups, {0, limits::expert_groups},
            "groups of neighbouring experts, of which each token chooses group_top_k first; 0 or 1: none");
  s.integer("group_top_k", &Moe::group_top_k, {0, limits::expert_groups}, "with groups: groups that a token chooses");
  s.number("jitter", &Moe::jitter, {.max = 1.0, .max_open = true},
           "in training the router's input is multiplied by random numbers from 1 - jitter to 1 + jitter; 0: none");
}

void add_balance(MoeSection& s) {
  s.number("bias_update_rate", &Moe::bias_update_rate, {.max = 1.0},
           "step, once per global batch, of biases that balance the choice of experts (arXiv 2408.15664); 0: none, or "
           "constant ones (choice_bias)");
  s.flag("choice_bias", &Moe::choice_bias,
         "a bias of each expert counts for the choice of experts, as in DeepSeek-V3; without bias_update_rate it stays "
         "as it was loaded",
         "model.moe.bias_update_rate > 0");
  s.add("aux_loss", "string: none | sequence | global",
        "balancing loss over each sequence, or of the global batch with the choices of the one before", nullptr,
        read_aux_loss, [](Config const& config) { return toml_string(to_string(config.model.moe.aux_loss)); });
  s.number("aux_coefficient", &Moe::aux_coefficient, {.max = 1e6}, "factor of the balancing loss");
  s.number("z_coefficient", &Moe::z_coefficient, {.max = 1e6},
           "factor of the mean squared logsumexp of the router's logits (z-loss); 0: none");
  s.number("capacity_factor", &Moe::capacity_factor, {.max = 1e6},
           "an expert takes at most so many times its mean number of a sequence's tokens, the first ones; 0: all, no "
           "token is dropped");
}

void add_dispatch(MoeSection& s) {
  s.choice("dispatch", &Moe::dispatch,
           "rows to the ranks of their experts; or all tokens to all of these ranks, which sends less where top_k is "
           "above ep, and takes room for the worst routing");
  s.number("buffer_factor", &Moe::buffer_factor, {.max = 1e6, .min_open = true},
           "rows that a rank receives at once, times their number when experts are balanced; more come in rounds");
}

}  // namespace

void add_moe(std::vector<Key>& table) {
  MoeSection s(table, "model.moe", MoeOfModel{});
  add_experts(s);
  add_router(s);
  add_balance(s);
  add_dispatch(s);
}

}  // namespace p3d::config
