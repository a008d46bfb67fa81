// SPDX-License-Identifier: Apache-2.0
#pragma once
// From the values that were written to the complete, checked Config: first the values that follow from other keys, then
// the rules between keys. A rule reports its error with the places of all keys that it compares, and keeps quiet when
// one of them could not be read: that error is reported already.

#include "config/sources.hpp"

#include <p3d/config/refinement.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace p3d::config {

/// Fills in the defaults that depend on other keys (kv_heads, ffn, dp, the batch, min_lr, output_dir). A key that
/// cannot be derived is marked open in `sources`; the rule that forbids this reports it.
void derive(Config& config, Sources& sources, int num_ranks);

/// Sets the keys that memory.preset stands for, where neither they nor what they are part of were written. Called
/// before derive() notes which keys memory.limit may choose.
void apply_memory_preset(Config& config, Sources& sources);

/// True where the updates by which layers are late follow from the stages (schedule "pipedream" without a list).
bool delays_follow_stages(Config const& config);

/// The things that a rule sees, and how it complains.
struct Check {
  Config const& config;
  Sources const& sources;
  int num_ranks;  ///< 0: unknown
  KeyErrors& errors;

  /// True when all of these keys have a value worth judging.
  bool known(std::vector<std::string_view> const& keys) const;
  /// Adds an error of the first key, with the places of all.
  void error(std::vector<std::string_view> const& keys, std::string expected, std::string found, std::string fix) const;
};

/// The keys of axes: "parallel.tp" and so on.
std::vector<std::string_view> axis_keys(AxisSet axes);

/// The condition that the sizes of expert axes divide the model's experts, as far as these are known.
SizesFit experts_fit(Check const& check);

void check_model(Check const& check);                   ///< sizes of the model, and their division over tp
void check_latent_attention(Check const& check);        ///< sizes of [model.mla], and what does not go with it
void check_multi_token_prediction(Check const& check);  ///< [model.mtp], and what does not go with it
void check_size(Check const& check);  ///< sizes whose products would not fit into any memory, or into 64 bits
/// Checks the sizes of the axes and their order; for training, also that axes of experts are used only for a model that
/// has some.
void check_mesh(Check const& check, Purpose purpose);
void check_moe(Check const& check);          ///< experts: their number, their choice, their division over ranks
void check_context(Check const& check);      ///< the tokens of a sequence over cp
void check_parallel(Check const& check);     ///< the batch over the mesh, all-reduces
void check_compression(Check const& check);  ///< gradients that are compressed
void check_pipeline(Check const& check);     ///< layers over stages, keys that belong to one schedule
void check_delays(Check const& check);       ///< updates by which layers are late; called by check_pipeline()
void check_data(Check const& check);         ///< vocabulary, learning rate; calls check_data_files()
void check_data_files(Check const& check);   ///< files, their order, ends of documents
void check_precision(Check const& check);    ///< types that exclude each other
void check_memory(Check const& check);       ///< keys that need another one
void check_checkpoint(Check const& check);   ///< resume and load

}  // namespace p3d::config
