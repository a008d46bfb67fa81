// SPDX-License-Identifier: Apache-2.0
// Reads the config.json of apertus (Apertus 8B and 70B, arXiv 2509.14233): an MLP without a gate, whose activation
// function xIELU has learned slopes, norms of queries and keys, and rotary frequencies scaled as in Llama 3.1.
#include "config/hugging_face_families.hpp"

namespace p3d::config {

void read_apertus(Reader& r, HuggingFaceModel& out, std::string const& path) {
  constexpr double default_theta = 1.2e7;
  read_llama(r, out, path, {.norm_eps = 1e-5, .rope_theta = default_theta, .biases = false});
  auto& m = out.model;
  if (!r.has("rope_parameters") && !r.has("rope_scaling")) {
    // ApertusConfig has these where a file says nothing.
    m.rope_scaling = RopeScaling::llama3, m.rope_scaling_factor = 8.0, m.rope_original_seq_len = 8192;
    m.rope_low_freq_factor = 1.0, m.rope_high_freq_factor = 4.0;
    if (m.rope_theta != default_theta || !r.left_out("rope_parameters") || !r.left_out("rope_scaling"))
      r.wrong(
          "rope_parameters, an object: for null, transformers 5 takes the scaling of llama3 and rope_theta = 12000000, "
          "and earlier versions take no scaling",
          r.found("rope_scaling"));
  }
  m.activation = Activation::xielu;
  if (auto const function = r.value("hidden_act"); !function.is_null() && function != "xielu")
    r.wrong("hidden_act = \"xielu\"", r.found("hidden_act"));
  // Keys of the published files that transformers does not read.
  if (!r.flag("qk_norm", true)) r.wrong("qk_norm = true", r.found("qk_norm"));
  if (r.flag("post_norm", false)) r.wrong("post_norm = false (norms in front of sub-layers)", r.found("post_norm"));
  if (r.number("hidden_dropout", 0.0, 1.0, 0.0) > 0.0)
    out.notes.emplace_back("config.json has hidden_dropout: model.dropout is 0 unless the input sets it");
}

}  // namespace p3d::config
