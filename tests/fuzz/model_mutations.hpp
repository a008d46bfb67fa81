// SPDX-License-Identifier: Apache-2.0
#pragma once
// Damaged and hostile models in Hugging Face form, made from good ones. Each is a function of (seed, number) alone.

#include "mutations.hpp"

#include <string>
#include <vector>

namespace p3d::fuzz {

struct GoodModel {
  std::string folder;
  std::vector<std::string> weights;  ///< names of its safetensors files
  std::string index;                 ///< name; "": one file
};
/// A GPT-2 in one file and a Llama in several, of a few kilobytes.
std::vector<GoodModel> make_good_models(std::string const& folder);

struct ModelMutation {
  std::string kind, detail;
  std::string named;  ///< what a refusal must name
  enum class Expect {
    refusal,
    same,  ///< accepted, with the same numbers
    refusal_or_same,
    any_numbers  ///< the numbers themselves may have changed
  } expect = Expect::refusal_or_same;
  std::size_t bytes = 0;  ///< of the changed model's files
};

/// Copies a model to `folder`, which is emptied first, and changes it.
ModelMutation mutate_model(GoodModel const& good, std::string const& folder, Draw& draw);

}  // namespace p3d::fuzz
