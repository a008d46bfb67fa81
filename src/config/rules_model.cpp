// SPDX-License-Identifier: Apache-2.0
// Rules of [model]: sizes that divide each other, and keys that need another key. Example: model.rope_layers = [1, 0]
// is refused with learned positions, which do not rotate.
#include "config/divide.hpp"
#include "config/rope_scaling.hpp"
#include "config/rules.hpp"

#include <p3d/base/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace p3d::config {

namespace {

/// Rotary positions turn pairs of numbers: an even number of a head's dimensions.
void check_rope_fraction(Check const& c) {
  auto const& m = c.config.model;
  if (!c.known({"model.head_dim", "model.position", "model.rope_fraction"}) || m.position != Position::rope ||
      m.rope_fraction == 1.0 || (m.rotary_dim() > 0 && m.rotary_dim() % 2 == 0))
    return;
  auto const pairs = std::max<std::int64_t>(1, m.rotary_dim() / 2);
  // A number that is rounded down to 2 pairs.
  double const fraction = std::min(1.0, (static_cast<double>(2 * pairs) + 0.5) / static_cast<double>(m.head_dim()));
  c.error({"model.rope_fraction", "model.head_dim"},
          "an even number of dimensions that rotate, at least 2: model.rope_fraction of model.head_dim",
          fmt::format("{} of {}: {}", m.rope_fraction, m.head_dim(), m.rotary_dim()),
          fmt::format("set model.rope_fraction to {}", fraction));
}

/// Rotary positions turn pairs of numbers: they need an even width of a head.
void check_even_head(Check const& c) {
  auto const& m = c.config.model;
  if (m.position != Position::rope || m.head_dim() % 2 == 0) return;
  c.error({"model.head_dim", "model.position"}, "an even model.head_dim: rotary position turns pairs of numbers",
          fmt::format("{}", m.head_dim()),
          fmt::format("set model.head_dim to {}, or model.position to \"learned\"",
                      one_of(nearest_multiples(m.head_dim(), 2))));
}

/// Heads must divide the hidden size where no head_dim is given, and kv_heads the heads; rotary positions need an even
/// width of a head.
void check_heads(Check const& c) {
  auto const& m = c.config.model;
  if (m.mla.on()) return;
  bool const even_head = c.sources.known("model.position") && m.position == Position::rope;
  auto const step = m.heads * (even_head ? 2 : 1);
  bool const own_width = c.sources.given("model.head_dim") || c.sources.from_preset("model.head_dim");
  if (own_width) {
    if (c.known({"model.head_dim", "model.position"})) check_even_head(c);
  } else if (c.known({"model.hidden", "model.heads"})) {
    if (m.hidden % m.heads != 0) {
      c.error({"model.hidden", "model.heads"}, "model.hidden divisible by model.heads",
              fmt::format("hidden {}, heads {}: remainder {}", m.hidden, m.heads, m.hidden % m.heads),
              fmt::format("set model.hidden to {}, or model.heads to {}", one_of(nearest_multiples(m.hidden, step)),
                          one_of(nearest_divisors(m.heads, m.hidden))));
    } else if (even_head && m.head_dim() % 2 != 0) {
      c.error({"model.hidden", "model.heads", "model.position"},
              "an even model.hidden / model.heads: rotary position turns pairs of numbers",
              fmt::format("hidden {} / heads {} = {}", m.hidden, m.heads, m.head_dim()),
              fmt::format("set model.hidden to {}, or model.position to \"learned\"",
                          one_of(nearest_multiples(m.hidden, step))));
    }
  }
  if (c.known({"model.heads", "model.kv_heads"}) && m.heads % m.kv_heads != 0) {
    c.error({"model.kv_heads", "model.heads"},
            "model.heads divisible by model.kv_heads: each kv head serves equally many heads",
            fmt::format("heads {}, kv_heads {}: remainder {}", m.heads, m.kv_heads, m.heads % m.kv_heads),
            fmt::format("set model.kv_heads to {}", one_of(nearest_divisors(m.kv_heads, m.heads))));
  }
}

/// tp must divide heads, kv_heads and ffn; the fix offers sizes of tp that suit all three.
void check_tensor_parallel(Check const& c) {
  if (!c.known({"parallel.tp"})) return;
  struct DividedSize {
    char const* key;
    std::int64_t size;
    char const* what;
  };
  auto const& m = c.config.model;
  bool const no_mlp = c.known({"model.layers", "model.moe.experts", "model.moe.every", "model.moe.first_dense"}) &&
                      m.moe_layers() == m.layers;
  DividedSize const rows[] = {{"model.heads", m.heads, "whole heads"},
                              {"model.kv_heads", m.kv_heads, "whole heads of keys and values"},
                              {"model.ffn", m.ffn, "equal parts of the feed-forward layer"}};
  std::int64_t const tp = c.config.parallel.tp;
  std::int64_t common = 0;
  for (auto const& row : rows) {
    if (c.known({row.key}) && !(no_mlp && row.key == rows[2].key)) common = std::gcd(common, row.size);
  }
  for (auto const& row : rows) {
    if (!c.known({row.key}) || row.size % tp == 0 || (no_mlp && row.key == rows[2].key)) continue;
    // kv_heads that follows from heads would repeat the error of heads.
    bool const repeats_heads =
        row.key == rows[1].key && row.size == m.heads && !c.sources.given(row.key) && c.known({"model.heads"});
    if (repeats_heads) continue;
    std::string const name(std::string_view(row.key).substr(6));
    c.error({"parallel.tp", row.key},
            fmt::format("{} divisible by parallel.tp: each of the tp ranks holds {}", row.key, row.what),
            fmt::format("{} {}, tp {}: remainder {}", name, row.size, tp, row.size % tp),
            fmt::format("set parallel.tp to {}, or {} to {}", one_of(nearest_divisors(tp, common)), row.key,
                        one_of(nearest_multiples(row.size, tp))));
  }
}

/// A model whose linears have biases has one for q, k and v, too.
void check_biases(Check const& c) {
  if (!c.known({"model.bias", "model.qkv_bias"}) || c.config.model.qkv_bias || !c.config.model.bias) return;
  c.error({"model.qkv_bias", "model.bias"}, "model.qkv_bias = true where model.bias is true",
          "qkv_bias false, bias true", "remove model.qkv_bias, or set model.bias to false");
}

/// Layers without rotation are the exception among layers with rotary positions.
void check_rope_layers(Check const& c) {
  auto const& m = c.config.model;
  if (!c.known({"model.rope_layers", "model.position"}) || m.rope_layers.empty() || m.position == Position::rope)
    return;
  c.error({"model.rope_layers", "model.position"}, "model.rope_layers only with model.position = \"rope\"",
          fmt::format("a layer without rotation, position \"{}\"", to_string(m.position)),
          "remove model.rope_layers, or set model.position to \"rope\"");
}

/// The scale of a query by its position comes with its rotation.
void check_query_beta(Check const& c) {
  auto const& m = c.config.model;
  if (!c.known({"model.rope_query_beta", "model.position", "model.rope_fraction", "model.rope_layers"}) ||
      m.rope_query_beta == 0.0)
    return;
  if (m.position == Position::rope && m.rope_fraction == 1.0 && m.rope_layers.empty()) return;
  c.error({"model.rope_query_beta", "model.position", "model.rope_fraction", "model.rope_layers"},
          "model.rope_query_beta only with rotary positions of whole heads in all layers",
          fmt::format("position \"{}\", rope_fraction {}, rope_layers {}", to_string(m.position), m.rope_fraction,
                      text_of_layers(m.rope_layers, 1)),
          "set model.rope_query_beta to 0");
}

/// A base for layers with a window needs rotary positions and a window.
void check_local_theta(Check const& c) {
  auto const& m = c.config.model;
  if (!c.known({"model.rope_local_theta", "model.position", "model.window"}) || m.rope_local_theta == 0.0 ||
      (m.position == Position::rope && !m.window.empty()))
    return;
  c.error({"model.rope_local_theta", "model.window", "model.position"},
          "model.rope_local_theta only with model.position = \"rope\" and a model.window",
          fmt::format("rope_local_theta {}, position \"{}\", window {}", m.rope_local_theta, to_string(m.position),
                      text_of_layers(m.window, 0)),
          "remove model.rope_local_theta, or set model.window");
}

/// With learned positions there is no telling whether these are multiplied, too: no published model says it.
void check_embedding_multiplier(Check const& c) {
  auto const& m = c.config.model;
  if (!c.known({"model.embedding_multiplier", "model.position"}) || m.embedding_multiplier == 1.0 ||
      m.position == Position::rope)
    return;
  c.error({"model.embedding_multiplier", "model.position"},
          "model.embedding_multiplier = 1 with model.position = \"learned\"",
          fmt::format("embedding_multiplier {}", m.embedding_multiplier),
          "remove model.embedding_multiplier, or set model.position to \"rope\"");
}

/// A cap far below 1 makes all scores alike, and one that single precision rounds to 0 divides by it.
void check_softcap(Check const& c, char const* key, double cap) {
  constexpr double least = 1e-3;
  if (!c.known({key}) || cap == 0.0 || cap >= least) return;
  c.error({key}, fmt::format("0, which is no cap, or a number from {} on", least), fmt::format("{}", cap),
          fmt::format("set {} to 0, or to that of the model; Gemma 2 has 50 for attention and 30 for logits", key));
}

/// longrope has a number for each pair of dimensions, and a first length whose logarithm divides.
void check_longrope(Check const& c) {
  auto const& m = c.config.model;
  if (!c.known({"model.head_dim", "model.rope_fraction", "model.mla.kv_lora_rank", "model.mla.qk_rope_head_dim",
                "model.rope_short_factors", "model.rope_long_factors"}))
    return;
  auto const pairs = m.rotary_dim() / 2;
  auto const one_each = [&](char const* key, std::vector<double> const& factors) {
    if (std::ssize(factors) == pairs) return;
    c.error({key, "model.rope_scaling"},
            fmt::format("{} with a number for each of the {} pairs of dimensions that rotate", key, pairs),
            fmt::format("{}", base::counted(std::ssize(factors), "number")),
            "take the lists short_factor and long_factor of the model's config.json");
  };
  one_each("model.rope_short_factors", m.rope_short_factors);
  one_each("model.rope_long_factors", m.rope_long_factors);
  if (!c.known({"model.rope_original_seq_len", "model.rope_attention_factor"}) || m.rope_original_seq_len > 1 ||
      m.rope_attention_factor > 0)
    return;
  c.error({"model.rope_original_seq_len", "model.rope_attention_factor"},
          "model.rope_original_seq_len above 1, by whose logarithm longrope divides", "1",
          "set model.rope_original_seq_len to that of the model, or model.rope_attention_factor");
}

/// Keys of a scaling are refused without one: nothing is ignored. With model.load they are those of its folder.
void check_no_scaling(Check const& c) {
  if (!c.known({"model.rope_query_beta", "model.load"}) || !c.config.model.load.empty()) return;
  Model const plain;
  visit_scaling_keys(c.config.model, [&](char const* key, auto member) {
    if (c.sources.given(key) && c.config.model.*member != plain.*member)
      c.error({key, "model.rope_scaling"}, fmt::format("{} only with a model.rope_scaling", key),
              "rope_scaling \"none\"", fmt::format("set model.rope_scaling, or remove {}", key));
  });
}

/// Scaling of rotary positions needs rotary positions, and factors in order.
void check_rope_scaling(Check const& c) {
  if (!c.known({"model.rope_scaling", "model.position"})) return;
  auto const& m = c.config.model;
  if (m.rope_scaling == RopeScaling::none) {
    check_no_scaling(c);
    return;
  }
  if (m.position != Position::rope) {
    c.error({"model.rope_scaling", "model.position"}, "model.rope_scaling only with model.position = \"rope\"",
            fmt::format("rope_scaling \"{}\", position \"{}\"", to_string(m.rope_scaling), to_string(m.position)),
            "set model.rope_scaling to \"none\", or model.position to \"rope\"");
    return;
  }
  if (m.rope_scaling == RopeScaling::yarn && c.known({"model.rope_beta_fast", "model.rope_beta_slow"}) &&
      m.rope_beta_slow >= m.rope_beta_fast) {
    c.error({"model.rope_beta_fast", "model.rope_beta_slow"},
            "model.rope_beta_slow below model.rope_beta_fast: frequencies between them are blended",
            fmt::format("slow {}, fast {}", m.rope_beta_slow, m.rope_beta_fast),
            "take the values of the model's config.json; the usual ones are 1 and 32");
    return;
  }
  if (m.rope_scaling == RopeScaling::yarn && c.known({"model.rope_theta"}) && m.rope_theta <= 1.0) {
    c.error({"model.rope_theta"}, "a number above 1: YaRN orders pairs from fast to slow",
            fmt::format("{}", m.rope_theta), "set model.rope_theta to that of the model, often 10000");
    return;
  }
  if (m.rope_scaling == RopeScaling::longrope) check_longrope(c);
  bool const factors = c.known({"model.rope_low_freq_factor", "model.rope_high_freq_factor"});
  if (m.rope_scaling != RopeScaling::llama3 || !factors || m.rope_low_freq_factor < m.rope_high_freq_factor) return;
  c.error({"model.rope_low_freq_factor", "model.rope_high_freq_factor"},
          "model.rope_low_freq_factor below model.rope_high_freq_factor: frequencies between them are blended",
          fmt::format("low {}, high {}", m.rope_low_freq_factor, m.rope_high_freq_factor),
          "take the values of the model's config.json; Llama 3.1 has 1 and 4");
}

}  // namespace

void check_model(Check const& check) {
  check_latent_attention(check);
  check_multi_token_prediction(check);
  check_biases(check);
  check_heads(check);
  check_rope_fraction(check);
  check_local_theta(check);
  check_query_beta(check);
  check_embedding_multiplier(check);
  check_rope_layers(check);
  check_rope_scaling(check);
  check_softcap(check, "model.attention_softcap", check.config.model.attention_softcap);
  check_softcap(check, "model.logits_softcap", check.config.model.logits_softcap);
  check_tensor_parallel(check);
}

}  // namespace p3d::config
