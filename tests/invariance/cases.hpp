// SPDX-License-Identifier: Apache-2.0
#pragma once
// The layouts and models that must all give the losses of one rank.

#include <string>
#include <vector>

namespace p3d::invariance {

/// A model and batch, as overrides of an empty input.
struct Model {
  std::string name;
  std::vector<std::string> overrides;
  int heads = 0, kv_heads = 0, ffn = 0, global = 0;
};

/// One layout, as overrides.
struct Layout {
  std::string name;
  std::vector<std::string> overrides;
  int dp = 1, tp = 1, pp = 1;
};

/// Whether the sizes of the model let it have the layout: what tp and dp must divide. p3d must accept these and refuse
/// the others.
bool allowed(Model const& model, Layout const& layout);

/// How many models() there are.
constexpr int num_models = 5;

/// gpt2-tiny and llama-tiny, tied and untied, and a llama-tiny with wider heads and biases of q, k and v, as Qwen2's.
/// The vocabulary (257) is one that no tp size divides; sizes are cut so that every factor of `ranks` divides what it
/// must: 5, 7 and 8 get heads, kv heads and batch of their own.
std::vector<Model> models(int ranks);

/// Every (dp, tp, pp) with product `ranks` that the model allows, in every order that gives a different mesh, with both
/// schedules where there is a pipeline. With `turn` >= 0 a covering subset: the model of that turn gets one of
/// num_models triples, with orders and schedules taken in turn, so that the models together have each triple once.
std::vector<Layout> layouts(int ranks, int turn);

/// Ordered triples with product `ranks`: how many layouts the turns have together.
int num_triples(int ranks);

}  // namespace p3d::invariance
