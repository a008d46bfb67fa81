// SPDX-License-Identifier: Apache-2.0
#pragma once
// The angles of the rotary position embedding (Su et al., arXiv 2104.09864): a pair of dimensions is turned by the
// position times the pair's frequency.

#include <p3d/config/config.hpp>

#include <vector>

namespace p3d::layout {

/// The frequencies, in radians per token, of the rotary_dim() / 2 pairs: theta^(-2 i / rotary_dim), stretched as
/// model.rope_scaling says for positions beyond those of the first training.
///   linear  each divided by rope_scaling_factor (positions are interpolated: Chen et al., arXiv 2306.15595)
///   llama3  with rotations r = rope_original_seq_len * frequency / (2 pi) over the original length: below
///           rope_low_freq_factor divided by rope_scaling_factor, above rope_high_freq_factor left, and between them a
///           mean of both that is linear in r (Llama 3.1, Dubey et al., arXiv 2407.21783; the same as "llama3" of
///           Hugging Face transformers, modeling_rope_utils)
///   yarn    as llama3, but the mean is linear in the number i of the pair, between the pairs that make rope_beta_fast
///           and rope_beta_slow turns (Peng et al., arXiv 2309.00071, section 3.2, in the form of transformers)
///   longrope  each divided by its number of rope_short_factors, or in sequences of more than rope_original_seq_len
///           tokens (`length`) of rope_long_factors (Ding et al., arXiv 2402.13753)
/// `layer`: one whose entry of rope_scaling_layers is 0 has plain frequencies. Empty for a model without rotary
/// positions.
enum class RopeLength { within_original, beyond_original };
std::vector<double> rope_frequencies(config::Model const& model, std::int64_t layer = 0,
                                     RopeLength length = RopeLength::within_original);

/// True when the frequencies of a layer depend on the length of a sequence.
bool rope_depends_on_length(config::Model const& model, std::int64_t layer = 0);

/// The factor of a layer's rotated queries and keys: rope_attention_factor, or where that is 0 YaRN's 0.1 ln s + 1
/// (arXiv 2309.00071, section 3.4) or longrope's sqrt(1 + ln s / ln L) (Abdin et al., arXiv 2404.14219), with s =
/// rope_scaling_factor and L = rope_original_seq_len; else 1.
double rope_factor(config::Model const& model, std::int64_t layer = 0);

}  // namespace p3d::layout
