// SPDX-License-Identifier: Apache-2.0
// Bytes of the activations of a layer, against the closed forms of arXiv 2205.05198, section 4. These count, for a
// layer of GPT-2 in 16 bits, with s b tokens, hidden h, a heads, tensor parallelism t:
//
//   none  s b h (10 + 24/t + 5 a s / (h t))       full recomputation  2 s b h
//
// The 10 are the inputs of the two norms (4), of the QKV and of the first MLP matrix (4), and two dropout masks (2);
// the 24 are Q, K, V (6), the input of the projection (2), the input (8) and the output (8) of the activation function.
// p3d differs in three places:
//   * dropout masks take no byte, they are remade from counters: 8 in place of 10;
//   * no scores are kept (their softmax, its mask and its output are the 5 a s): attention keeps the log-sum-exp of
//     each query and head, 4 bytes: s b 4 a / t;
//   * the norms' mean and scale are kept, 4 bytes each: s b 16.

#include <p3d/config/config.hpp>
#include <p3d/layout/stage_buffers.hpp>

#include <gtest/gtest.h>

#include <string>

namespace {
using namespace p3d;

config::Config gpt2(int tp) {
  config::Config c;
  c.model.seq_len = 32;
  c.model.hidden = 64;
  c.model.heads = c.model.kv_heads = 8;
  c.model.ffn = 4 * c.model.hidden;
  c.batch.micro = 2;
  c.parallel.tp = tp;
  return c;
}

/// Bytes of a slot that the last `more` of 8 + more layers add, those of one layer.
double layer_bytes(layout::ElementBytes e, config::Config const& c, int more = 1) {
  auto const bytes = [&](int layers) {
    layout::StageMap const stages({layers}, 1);
    return layout::stage_bytes(c, stages, 0, {1, 0, layout::stage_recompute(c.memory, stages, 0)}, e).total();
  };
  return static_cast<double>(bytes(8 + more) - bytes(8)) / more;
}

/// The same of a set that is remade between the parts of a split backward.
double rebuilt_bytes(layout::ElementBytes e, config::Config const& c) {
  auto const bytes = [&](int layers, int rebuilt) {
    layout::StageMap const stages({layers}, 1);
    return layout::stage_bytes(c, stages, 0, {1, rebuilt, layout::stage_recompute(c.memory, stages, 0)}, e).total();
  };
  return static_cast<double>(bytes(9, 1) - bytes(9, 0) - (bytes(8, 1) - bytes(8, 0)));
}

config::RecomputedOps only(char const* op) {
  std::string const name = op;
  return {.norm = name == "norm",
          .activation = name == "activation",
          .rotary = name == "rotary",
          .attention = name == "attention"};
}

/// For elements of e bytes; all in units of s b bytes.
void compare(layout::ElementBytes bytes) {
  auto const e = static_cast<double>(bytes.storage);
  for (int tp : {1, 2, 4}) {
    auto c = gpt2(tp);
    double const h = 64, a = 8, t = tp, tokens = 64;
    double const statistics = 16, lse = 4 * a / t, all = e * h * (4 + 12 / t) + lse + statistics;
    auto const expect = [&](double expected, int more = 1) {
      EXPECT_DOUBLE_EQ(layer_bytes(bytes, c, more) / tokens, expected) << "tp " << tp;
    };
    expect(all);
    if (e == 2) {
      double const paper = h * (10 + 24 / t), masks = 2 * h;
      EXPECT_DOUBLE_EQ(layer_bytes(bytes, c) / tokens, paper - masks + lse + statistics);
    }
    c.memory.recompute = config::Recompute::list;
    c.memory.recompute_ops = only("norm");
    expect(all - e * h * 2);
    EXPECT_DOUBLE_EQ(rebuilt_bytes(bytes, c) / tokens, e * h * 2);
    c.memory.recompute_ops = only("activation");
    expect(all - e * h * 4 / t);
    c.memory.recompute_ops = only("attention");
    expect(all - e * h / t - lse);
    EXPECT_DOUBLE_EQ(rebuilt_bytes(bytes, c) / tokens, e * h / t);
    c.memory.recompute_ops = only("rotary");
    expect(all);
    EXPECT_EQ(rebuilt_bytes(bytes, c), 0);

    c.memory.recompute = config::Recompute::full;
    expect(e * h);
    EXPECT_DOUBLE_EQ(rebuilt_bytes(bytes, c) / tokens, all - e * h - lse - statistics);
    c.memory.recompute_group = 4;
    expect(e * h / 4, 4);
    c.memory.recompute_group = 1;
    c.memory.recompute_every = 2;
    expect((e * h + all) / 2, 2);
    c.memory.recompute_every = 1;
    c.memory.recompute_layers = 8;
    expect(all);
    c.memory.recompute_layers = 0;
    c.memory.recompute_microbatches_kept = 1;
    expect(all);
    c.memory.recompute_microbatches_kept = 0;
    if (tp == 1) continue;
    c.memory.share_saved_inputs = true;
    expect(e * h / t);
    c.memory.share_saved_inputs = false;
    c.memory.recompute_communication = false;
    expect(2 * e * h);
  }
}

TEST(LayerBytes, AreThePapersWithoutMasksAndScores) {
  compare({4, 4});
  compare({2, 4});
}

// With sequence parallelism everything is divided by t: (s b h / t) 34 in the paper, without its scores; 2 h of it are
// masks. The log-sum-exp is of local heads, and of all tokens.
void compare_sequence(layout::ElementBytes bytes) {
  auto const e = static_cast<double>(bytes.storage);
  for (int tp : {2, 4}) {
    auto c = gpt2(tp);
    c.parallel.sequence = true;
    double const h = 64, a = 8, t = tp, tokens = 64;
    double const statistics = 16 / t, lse = 4 * a / t, all = e * h * 16 / t + lse + statistics;
    auto const expect = [&](double expected) {
      EXPECT_DOUBLE_EQ(layer_bytes(bytes, c) / tokens, expected) << "tp " << tp;
    };
    expect(all);
    if (e == 2) {
      EXPECT_DOUBLE_EQ(layer_bytes(bytes, c) / tokens, (34 - 2) * h / t + lse + statistics);
    }
    c.memory.recompute = config::Recompute::list;
    c.memory.recompute_ops = only("norm");
    expect(all - e * h * 2 / t);
    EXPECT_DOUBLE_EQ(rebuilt_bytes(bytes, c) / tokens, e * h * 2 / t);
    c.memory.recompute = config::Recompute::full;
    expect(e * h / t);
    c.memory.recompute_communication = false;
    expect(2 * e * h / t);
  }
}

TEST(LayerBytes, AreDividedByTpUnderSequenceParallelism) {
  compare_sequence({4, 4});
  compare_sequence({2, 4});
  // 3 ranks have 21, 21 and 22 of 64 tokens: each takes the most, in pieces of 64 bytes. Theirs follow each other.
  auto c = gpt2(3);
  c.model.heads = c.model.kv_heads = 6;
  c.model.hidden = 48;
  c.model.ffn = 240;
  c.parallel.sequence = true;
  double const rows = 4 * 4 * 22 * 48, tokens = 4 * 64 * (4 * 16 + 2 * 80), lse = 4 * 64 * 2, statistics = 4 * 128;
  EXPECT_DOUBLE_EQ(layer_bytes({4, 4}, c), rows + tokens + lse + statistics);
  std::int64_t next = 0;
  for (int r = 0; r < 3; ++r) {
    auto const s = layout::block_sizes(c, {.tp = r});
    EXPECT_EQ(s.first_row, next);
    EXPECT_EQ(s.most_rows, 22);
    next += s.rows;
  }
  EXPECT_EQ(next, 64);
}

// Grouped queries and SwiGLU change q, k, v and the MLP: (1 + 2 / 4) h and 2 + 1 times ffn.
TEST(LayerBytes, OfALlamaLayer) {
  auto c = gpt2(2);
  c.model.kv_heads = 2;
  c.model.ffn = 96;
  c.model.norm = config::Norm::rmsnorm;
  c.model.activation = config::Activation::swiglu;
  double const h = 64, tokens = 64;
  EXPECT_DOUBLE_EQ(layer_bytes({4, 4}, c) / tokens, 4 * (4 * h + (1.5 * h + h + 3 * 96) / 2) + 4 * 8 / 2 + 2 * 4);
}

/// What a set of buffers of a layer takes in fp32.
std::int64_t bytes_of(config::Config const& c, std::initializer_list<layout::Buffer> buffers) {
  return layout::bytes_of(layout::set_of(buffers), layout::layer_sizes(layout::block_sizes(c), c, 0), {4, 4});
}

// A class says what forward discards. The weight part of a split backward reads all of it but statistics.
TEST(Buffers, AreDiscardedByTheirClass) {
  using layout::Buffer;
  auto const of = [](layout::LayerRecompute const& layer, bool keeps_sums = false) {
    return layout::StageRecompute{.layers = {layer}, .keeps_sums = keeps_sums};
  };
  auto const norms = layout::set_of({Buffer::layer_norm1_y, Buffer::layer_norm2_y});
  EXPECT_EQ(layout::discarded_buffers(of({.norm = true}), 0), norms);
  EXPECT_EQ(layout::discarded_buffers(of({.attention = true}), 0),
            layout::set_of({Buffer::layer_heads, Buffer::layer_lse}));
  EXPECT_EQ(layout::rebuilt_buffers(of({.attention = true}), 0), layout::set_of({Buffer::layer_heads}));
  EXPECT_EQ(layout::discarded_buffers(of({.activation = true}), 0), layout::set_of({Buffer::layer_act}));
  EXPECT_EQ(layout::discarded_buffers(of({.full = true}), 0), layout::saved_buffers());
  auto const sums = layout::set_of({Buffer::layer_mid, Buffer::layer_branch1, Buffer::layer_post_norm1_mean,
                                    Buffer::layer_post_norm1_scale, Buffer::layer_branch2,
                                    Buffer::layer_post_norm2_mean, Buffer::layer_post_norm2_scale});
  EXPECT_EQ(layout::discarded_buffers(of({.full = true}, true), 0), layout::saved_buffers() & ~sums);
  EXPECT_EQ(layout::rebuilt_buffers(of({.full = true}), 0),
            norms | sums |
                layout::set_of({Buffer::layer_qkv, Buffer::layer_latent, Buffer::layer_raw_latent, Buffer::layer_heads,
                                Buffer::layer_up, Buffer::layer_act}));
}

// 5 tokens of width 64 are 1280 bytes, 5 numbers 20 in pieces of 64. What a layer has no use for takes nothing.
TEST(Buffers, HaveSizesOfTheirLayer) {
  using layout::Buffer;
  auto c = gpt2(1);
  c.model.seq_len = 5;
  c.batch.micro = 1;
  EXPECT_EQ(bytes_of(c, {Buffer::layer_norm1_y, Buffer::layer_norm1_scale}), 1280 + 64);
  EXPECT_EQ(bytes_of(c, {Buffer::layer_norm1_mean}), 64);
  EXPECT_EQ(bytes_of(c, {Buffer::layer_branch1, Buffer::layer_post_norm1_scale}), 0);
  auto behind = c;
  behind.model.norm_placement = config::NormPlacement::post;
  EXPECT_EQ(bytes_of(behind, {Buffer::layer_branch1, Buffer::layer_post_norm1_mean, Buffer::layer_post_norm1_scale}),
            1280 + 2 * 64);
  EXPECT_EQ(bytes_of(behind, {Buffer::layer_norm2_y, Buffer::layer_norm2_mean, Buffer::layer_norm2_scale}), 0);
  behind.model.norm_placement = config::NormPlacement::sandwich;
  EXPECT_EQ(bytes_of(behind, {Buffer::layer_branch2, Buffer::layer_norm2_y}), 2 * 1280);
  c.model.norm = config::Norm::rmsnorm;
  EXPECT_EQ(bytes_of(c, {Buffer::layer_norm1_mean}), 0);
  EXPECT_EQ(bytes_of(c, {Buffer::layer_latent, Buffer::layer_latent_scale, Buffer::scratch_kv_both}), 0);
  auto latent = c;  // 16 + 16 + 4 numbers of latents; heads of 4 + 4 and of 8
  latent.model.mla = {
      .kv_lora_rank = 16, .q_lora_rank = 16, .qk_nope_head_dim = 4, .qk_rope_head_dim = 4, .v_head_dim = 8};
  latent.model.head_size = 8;
  auto const heads = latent.model.heads * 5 * 4;
  EXPECT_EQ(bytes_of(latent, {Buffer::layer_latent}), 768) << "5 x 36 of 4 bytes, in pieces of 64";
  EXPECT_EQ(bytes_of(latent, {Buffer::layer_latent_scale}), 64);
  EXPECT_EQ(bytes_of(latent, {Buffer::layer_qkv}), (heads * 24 + 63) / 64 * 64);
  EXPECT_EQ(bytes_of(latent, {Buffer::scratch_kv_both}), (heads * 12 + 63) / 64 * 64);
  EXPECT_EQ(bytes_of(c, {Buffer::moe_x, Buffer::moe_lse, Buffer::moe_scratch_offsets, Buffer::moe_scratch_dx}), 0);
  c.model.moe.experts = 4;
  c.model.moe.top_k = 2;
  c.model.moe.ffn = 16;
  EXPECT_EQ(bytes_of(c, {Buffer::moe_x}), 2 * 1280);
  EXPECT_EQ(bytes_of(c, {Buffer::moe_scratch_own, Buffer::moe_scratch_received, Buffer::moe_scratch_partial}), 0)
      << "a rank alone sends no rows";
  c.parallel.dp = c.parallel.ep = 2;
  EXPECT_EQ(bytes_of(c, {Buffer::moe_scratch_own}), 2 * 1280);
  EXPECT_EQ(bytes_of(c, {Buffer::moe_scratch_partial}), 0);
  c.model.moe.dispatch = config::Dispatch::gather;
  EXPECT_EQ(bytes_of(c, {Buffer::moe_scratch_own}), 0);
  EXPECT_EQ(bytes_of(c, {Buffer::moe_scratch_received, Buffer::moe_scratch_partial}), 4 * 1280);
  auto const sizes = layout::block_sizes(c);
  EXPECT_EQ(layout::bytes_of(Buffer::moe_scratch_narrow_logits, sizes, {4, 4}), 0);
  EXPECT_EQ(layout::bytes_of(Buffer::moe_scratch_narrow_logits, sizes, {2, 4}), 64) << "5 x 4 of 2 bytes";
  EXPECT_EQ(layout::bytes_of(Buffer::attention_scores, sizes, {4, 4}), 0) << "on hosts threads have their own";
  EXPECT_GT(layout::bytes_of(Buffer::attention_scores, layout::block_sizes(c, {}, true), {4, 4}), 0);
}

// 5 tokens of 8 heads: queries and keys are 12 wide, values and outputs 4.
TEST(Buffers, OfAttentionHaveTheWidthsOfItsHeads) {
  using layout::Buffer;
  auto c = gpt2(1);
  c.model.seq_len = 5;
  c.batch.micro = 1;
  c.model.head_size = 12;
  c.model.mla.kv_lora_rank = 8;
  c.model.mla.v_head_dim = 4;
  EXPECT_EQ(bytes_of(c, {Buffer::layer_qkv}), 5 * 8 * (12 + 12 + 4) * 4);
  EXPECT_EQ(bytes_of(c, {Buffer::layer_heads}), 5 * 8 * 4 * 4);
  EXPECT_EQ(bytes_of(c, {Buffer::scratch_dheads}), 5 * 8 * 4 * 4);
  auto const widths = layout::context_widths(c);
  EXPECT_EQ(widths.q + widths.k + widths.v, layout::block_sizes(c).qkv());
  EXPECT_EQ(widths.out, 8 * 4);
}

// 6 tokens over a ring of 2, 8 heads of 6 + 4, latents of 3 + 2: blocks have latents, and keys and values of one other
// place are made of them.
TEST(Buffers, OfAttentionHaveLatentsWhereTheyTravel) {
  using layout::Buffer;
  auto c = gpt2(1);
  c.model.seq_len = 6;
  c.batch.micro = 1;
  c.model.head_size = 6;
  c.model.mla = {.kv_lora_rank = 3, .qk_nope_head_dim = 4, .qk_rope_head_dim = 2, .v_head_dim = 4};
  c.parallel.cp = 2;
  c.context.exchange = config::ContextExchange::ring;
  auto const elements = [&](Buffer buffer) {
    return layout::shape_of(buffer, layout::block_sizes(c), {4, 4}).elements;
  };
  ASSERT_TRUE(layout::context_division(c).latents);
  EXPECT_EQ(elements(Buffer::attention_blocks), 2 * 3 * 5);
  EXPECT_EQ(elements(Buffer::attention_block_gradients), 3 * 3 * 5);
  EXPECT_EQ(elements(Buffer::attention_latents), 3 * 5);
  EXPECT_EQ(elements(Buffer::attention_latent_gradients), 3 * 5);
  EXPECT_EQ(elements(Buffer::attention_expanded), 3 * 8 * (6 + 4));
  EXPECT_EQ(elements(Buffer::attention_expanded_gradients), 3 * 8 * (6 + 4));
  c.context.exchange = config::ContextExchange::all_to_all;
  ASSERT_TRUE(layout::context_division(c).latents);
  EXPECT_EQ(elements(Buffer::attention_latents), 6 * 5);
  EXPECT_EQ(elements(Buffer::attention_expanded), 0) << "a place has all tokens";
  c.context.exchange = config::ContextExchange::ring;
  c.model.mla.kv_lora_rank = 80;  // 82 numbers, where keys and values are 80
  ASSERT_FALSE(layout::context_division(c).latents);
  EXPECT_EQ(elements(Buffer::attention_blocks), 2 * 3 * 8 * (6 + 4));
  EXPECT_EQ(elements(Buffer::attention_latents), 0);
  EXPECT_EQ(elements(Buffer::attention_expanded), 0);
}

// What no memory holds is most_bytes: sums do not overflow.
TEST(Buffers, OfAnySizeHaveBytes) {
  auto c = gpt2(1);
  c.model.seq_len = c.batch.micro = std::int64_t{1} << 27;  // elements fit 64 bits, their bytes do not
  EXPECT_EQ(layout::bytes_of(layout::saved_buffers(), layout::block_sizes(c), {4, 4}), layout::most_bytes);
}

}  // namespace
