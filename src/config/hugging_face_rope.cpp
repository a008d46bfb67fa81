// SPDX-License-Identifier: Apache-2.0
// Reads the rotary positions of a config.json: rope_parameters or rope_scaling, an object whose rope_type says which
// other keys it has. Example: {"rope_type": "linear", "factor": 2.0} is rope_scaling = "linear", rope_scaling_factor
// = 2.
#include "config/hugging_face_families.hpp"
#include "config/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace p3d::config {

namespace {

using nlohmann::json;

/// Reads the keys of YaRN that other kinds of scaling do not have.
void read_yarn(Reader& r, Model& m, bool by_kind) {
  m.rope_beta_fast = r.number("beta_fast", 1e-300, 1e6, 32.0);
  m.rope_beta_slow = r.number("beta_slow", 1e-300, 1e6, 1.0);
  if (m.rope_beta_slow >= m.rope_beta_fast)
    r.wrong("beta_slow below beta_fast", fmt::format("{} and {}", m.rope_beta_slow, m.rope_beta_fast));
  if (m.rope_theta <= 1.0) r.wrong("rope_theta above 1", fmt::format("{}", m.rope_theta));
  m.rope_truncate = r.flag("truncate", r.left_out("truncate"));
  // Where kinds of layers have objects of their own, transformers 5 looks for the key outside of them.
  if (by_kind && !m.rope_truncate) r.wrong("truncate = true (versions of transformers read it differently)", "false");
  m.rope_attention_factor = r.number("attention_factor", 1e-300, 1e6, 0.0);
  // Two other keys that say the factor. Of a model that transformers knows to use them in attention, too (DeepSeek's),
  // p3d has none.
  double const mscale = r.number("mscale", 0.0, 1e6, 0.0), all = r.number("mscale_all_dim", 0.0, 1e6, 0.0);
  if (m.rope_attention_factor == 0.0 && mscale > 0.0 && all > 0.0) {
    double const log = std::log(std::max(1.0, m.rope_scaling_factor));
    m.rope_attention_factor = (0.1 * mscale * log + 1.0) / (0.1 * all * log + 1.0);
  }
}

/// Reads the keys of longrope. The stretch of the first length, `factor`, is that of max_position_embeddings where it
/// is left out, and matters for the factor of queries and keys alone.
void read_longrope(Reader& r, Model& m) {
  // Phi3Config goes by the key of the whole model, and has a default for it.
  if (r.integer("original_max_position_embeddings", limits::width, m.rope_original_seq_len) != m.rope_original_seq_len)
    r.wrong(fmt::format("original_max_position_embeddings = {}, as beside this object (or left out there)",
                        m.rope_original_seq_len),
            r.found("original_max_position_embeddings"));
  double const stretch = static_cast<double>(m.seq_len) / static_cast<double>(m.rope_original_seq_len);
  m.rope_scaling_factor = std::max(1.0, r.number("factor", 1e-300, 1e6, stretch));
  m.rope_attention_factor = r.number("attention_factor", 1e-300, 1e6, 0.0);
  m.rope_short_factors = r.numbers("short_factor", 1e-3, 1e6);
  m.rope_long_factors = r.numbers("long_factor", 1e-3, 1e6);
}

/// Reads the part of each head that rotates. transformers takes null for the whole head.
void read_fraction(Reader& r, Model& m) {
  bool const is_null = !r.has("partial_rotary_factor") && !r.left_out("partial_rotary_factor");
  if (is_null && m.rope_fraction != 1.0) r.wrong("partial_rotary_factor, a number", "null");
  m.rope_fraction = r.number("partial_rotary_factor", 1e-300, 1.0, m.rope_fraction);
}

/// Reads the object of rope_parameters or rope_scaling, which `path` names.
void read_rope_object(json const& rope, Model& m, std::string const& path, LlamaDefaults const& defaults) {
  bool const fraction = defaults.rope_fraction > 0, query_beta = defaults.query_beta;
  Reader inner(rope, path);
  m.rope_theta = inner.number("rope_theta", 1e-300, 1e12, m.rope_theta);
  if (fraction) read_fraction(inner, m);
  // Versions read the older name of the key differently where kinds of layers have objects of their own.
  if (defaults.by_kind && !inner.has("rope_type") && inner.has("type") && inner.value("type") != "default")
    inner.wrong("rope_type", "type alone");
  auto const type = inner.has("rope_type") ? inner.value("rope_type") : inner.value("type");
  inner.value("type");
  if (type == "linear") m.rope_scaling = RopeScaling::linear;
  if (type == "llama3") m.rope_scaling = RopeScaling::llama3;
  if (type == "yarn") m.rope_scaling = RopeScaling::yarn;
  if (type == "longrope" && defaults.longrope) m.rope_scaling = RopeScaling::longrope;
  if (m.rope_scaling == RopeScaling::none && type != "default")
    inner.wrong(fmt::format("rope_type = \"default\", \"linear\", \"llama3\" or \"yarn\"{}",
                            defaults.longrope ? ", or \"longrope\"" : ""),
                type.is_null() ? "none" : describe(type));
  bool const stretched = m.rope_scaling != RopeScaling::none && m.rope_scaling != RopeScaling::longrope;
  if (stretched) m.rope_scaling_factor = inner.number("factor", 1.0, 1e6, 0.0);
  if (stretched && m.rope_scaling_factor == 0.0) inner.wrong("factor, a number from 1 on", inner.found("factor"));
  if (m.rope_scaling == RopeScaling::llama3 || m.rope_scaling == RopeScaling::yarn || query_beta)
    m.rope_original_seq_len = inner.integer("original_max_position_embeddings", limits::width);
  if (m.rope_scaling == RopeScaling::llama3) {
    m.rope_low_freq_factor = inner.number("low_freq_factor", 1e-300, 1e6, 0.0);
    m.rope_high_freq_factor = inner.number("high_freq_factor", 1e-300, 1e6, 0.0);
    if (m.rope_low_freq_factor >= m.rope_high_freq_factor)
      inner.wrong("low_freq_factor below high_freq_factor",
                  fmt::format("{} and {}", m.rope_low_freq_factor, m.rope_high_freq_factor));
  }
  if (m.rope_scaling == RopeScaling::yarn) read_yarn(inner, m, defaults.by_kind);
  if (m.rope_scaling == RopeScaling::longrope) read_longrope(inner, m);
  if (query_beta) {
    m.rope_query_beta = inner.number("llama_4_scaling_beta", 0.0, 1e6, 0.0);
    inner.value("max_position_embeddings");  // once more, without effect
  }
  inner.finish();
}

}  // namespace

void read_rope(Reader& r, Model& m, LlamaDefaults const& defaults, std::string const& path) {
  constexpr std::int64_t default_original = 4096;  // of Phi3Config
  bool const newer = r.has("rope_parameters");
  auto const* key = newer ? "rope_parameters" : "rope_scaling";
  m.rope_theta = r.number("rope_theta", 1e-300, 1e12, defaults.rope_theta);
  if (defaults.longrope)
    m.rope_original_seq_len = r.integer("original_max_position_embeddings", limits::width, default_original);
  if (defaults.rope_fraction > 0) read_fraction(r, m);
  auto const rope = r.value(key);
  r.value("rope_parameters");
  r.value("rope_scaling");
  if (newer && r.has("rope_scaling") && r.value("rope_scaling") != rope)
    r.wrong("rope_scaling like rope_parameters, or one of them", "both");
  if (rope.is_null()) return;
  if (!rope.is_object()) return r.wrong(fmt::format("{}, an object", key), r.found(key));
  auto const where = fmt::format("{}, {}", path, key);
  if (!rope.contains("full_attention")) {
    if (newer && defaults.rope_local_theta > 0)
      r.wrong("rope_parameters of full_attention and sliding_attention", r.found(key));
    return read_rope_object(rope, m, where, defaults);
  }
  // transformers passes over such objects in families whose layers are of one kind.
  if (!defaults.by_kind) return r.wrong(fmt::format("{} of one kind for all layers", key), "an object for each kind");
  for (auto const& kind : rope.items())
    if (kind.key() != "full_attention" && kind.key() != "sliding_attention")
      r.wrong(fmt::format("{} of full_attention and sliding_attention", key), kind.key());
  // Kinds of layers, each with its own object: layers with a window are not scaled.
  auto other = m;
  if (defaults.rope_local_theta > 0) other.rope_theta = defaults.rope_local_theta;
  auto plain = defaults;
  plain.query_beta = false;
  for (auto const& kind : rope.items())
    read_rope_object(kind.value(), kind.key() == "full_attention" ? m : other, where + ", " + kind.key(), plain);
  if (other.rope_scaling != RopeScaling::none)
    r.wrong(fmt::format("{} that are \"default\" in layers with a window", key), "others");
  m.rope_local_theta = other.rope_theta == m.rope_theta ? 0.0 : other.rope_theta;
}

}  // namespace p3d::config
