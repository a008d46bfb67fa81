// SPDX-License-Identifier: Apache-2.0
#pragma once
// Inputs of tests, made of keys: those of a tiny model, of its family, of a mesh and of the text that it reads.

#include <p3d/config/parse.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace p3d::test {

/// Keys of an input with their values: "model.layers=4".
using Keys = std::vector<std::string>;

/// The keys of all lists, in order; where one stands twice the last one counts.
inline Keys joined(std::initializer_list<Keys> lists) {
  Keys all;
  for (auto const& keys : lists) all.insert(all.end(), keys.begin(), keys.end());
  return all;
}

/// The input of these keys, which must be a valid one. Paths are relative to the sources.
inline config::Config config_of(Keys const& keys, int ranks) {
  auto result = config::parse_text("", "test", P3D_SOURCE_DIR, keys, ranks);
  if (!result.config)
    throw std::runtime_error(fmt::format("{}\n{}", fmt::join(keys, " "), config::format(result.errors)));
  return *result.config;
}

/// Two heads of 8 numbers each, and windows of 8 bytes.
inline Keys tiny_model(int layers) {
  return {"model.heads=2",
          "model.kv_heads=2",
          "model.hidden=16",
          "model.ffn=32",
          "model.vocab_size=256",
          "model.seq_len=8",
          fmt::format("model.layers={}", layers)};
}

/// Llama with an output layer of its own, or GPT-2 with tied embeddings.
inline Keys family(bool llama) {
  return {llama ? "model.preset=llama-tiny" : "model.preset=gpt2-tiny",
          fmt::format("model.tied_embeddings={}", !llama)};
}

inline Keys mesh_keys(int dp, int tp, int pp) {
  return {fmt::format("parallel.dp={}", dp), fmt::format("parallel.tp={}", tp), fmt::format("parallel.pp={}", pp)};
}

/// The text of most tests: the licence of p3d.
inline std::string licence_text() { return fmt::format("data.path=\"{}/LICENSE\"", P3D_SOURCE_DIR); }

}  // namespace p3d::test
