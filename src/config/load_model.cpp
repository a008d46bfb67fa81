// SPDX-License-Identifier: Apache-2.0
// Reads the model of model.load before other keys: its values stand where a preset's would, and keys that were written
// besides are compared with them at the end. Only a folder is read here, and of it config.json alone; the weights
// follow at step 0.
#include "config/load_model.hpp"

#include <p3d/base/error.hpp>
#include <p3d/config/hugging_face.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace p3d::config {

namespace {

constexpr auto load_key = "model.load";

/// True when a key may differ from the folder's model, because it says how a model is trained. (A bias_update_rate
/// above 0 needs biases, which are parameters: model.moe.choice_bias must be true in the folder.)
bool is_free(std::string_view key) {
  constexpr std::string_view names[] = {load_key,
                                        "model.preset",
                                        "model.dropout",
                                        "model.seq_len",
                                        "model.moe.jitter",
                                        "model.moe.aux_loss",
                                        "model.moe.aux_coefficient",
                                        "model.moe.z_coefficient",
                                        "model.moe.bias_update_rate",
                                        "model.moe.dispatch",
                                        "model.moe.buffer_factor",
                                        "model.mtp.loss_weight"};
  return std::find(std::begin(names), std::end(names), key) != std::end(names);
}

}  // namespace

std::vector<std::string> model_keys() {
  std::vector<std::string> out;
  for (auto const& key : keys()) {
    auto const name = key.full();
    if (name.starts_with("model.")) out.push_back(name);
  }
  return out;
}

std::optional<Model> apply_load(Input const& input, Config& config, Sources& sources, KeyErrors& errors) {
  // The last of several settings of model.load counts.
  Entry const* last = nullptr;
  for (auto const& entry : input.entries) {
    if (entry.key->full() == load_key) last = &entry;
  }
  Config scratch;
  if (!last || !last->node || last->key->read(*last->node, last->from_file() ? input.folder : "", scratch)) return {};
  auto const& folder = scratch.model.load;
  if (folder.empty()) return {};
  try {
    auto const loaded = read_hugging_face_folder(folder).model;
    auto const preset = std::exchange(config.model, loaded).preset;
    config.model.preset = preset;
    sources.set_given(load_key, *last);  // it comes first: the keys below point to its entry
    for (auto const& name : model_keys()) {
      if (name != "model.preset" && name != load_key) sources.set_preset(name, load_key);
    }
    return loaded;
  } catch (base::Error const& e) {
    errors.add(input.order(*last, *last->node),
               {.key = load_key,
                .where = fmt::format("{} ({})", input.place(*last, *last->node), e.text().where),
                .expected = e.text().expected,
                .found = e.text().found,
                .fix = e.text().fix});
    // After an error nothing is known about the model, and rules about it must keep quiet.
    for (auto const& name : model_keys()) sources.set_lost(name);
    return {};
  }
}

void check_load(Check const& c, Model const& loaded) {
  if (!c.known({load_key}) || c.config.model.load.empty()) return;
  if (c.known({"model.preset"}) && !c.config.model.preset.empty()) {
    c.error({load_key, "model.preset"}, "one of model.load and model.preset",
            fmt::format("load = \"{}\", preset = \"{}\"", c.config.model.load, c.config.model.preset),
            "remove model.preset: the model is that of the folder");
    return;
  }
  Config there;
  there.model = loaded;
  for (auto const& key : keys()) {
    auto const full = key.full();
    if (!full.starts_with("model.") || is_free(full) || !c.sources.given(full)) continue;
    if (key.write(c.config) == key.write(there)) continue;
    if (full == "model.mtp.depth" && !c.config.model.mtp.on()) continue;  // blocks are left out
    c.error({full, load_key}, fmt::format("{} = {}, as config.json in that folder says", full, key.write(there)),
            key.write(c.config), fmt::format("remove {}: it comes with model.load", full));
  }
  auto const& m = c.config.model;
  if (!c.known({"model.seq_len"}) || loaded.position != Position::learned || m.seq_len <= loaded.seq_len) return;
  c.error({"model.seq_len", load_key},
          fmt::format("model.seq_len of at most {}: the folder's model has so many learned positions", loaded.seq_len),
          fmt::format("{}", m.seq_len), fmt::format("set model.seq_len to {}, or remove it", loaded.seq_len));
}

}  // namespace p3d::config
