// SPDX-License-Identifier: Apache-2.0
// The keys of [model.mtp]: multi-token prediction.

#include "config/keys.hpp"

#include "config/limits.hpp"
#include "config/section.hpp"

namespace p3d::config {

namespace {

/// Gets the struct of the section, which lies inside another one: no pointer to member reaches it.
struct MtpOfModel {
  Mtp& operator()(Config& config) const { return config.model.mtp; }
  Mtp const& operator()(Config const& config) const { return config.model.mtp; }
};

}  // namespace

void add_mtp(std::vector<Key>& table) {
  Section<Mtp, MtpOfModel> s(table, "model.mtp", {});
  s.integer(
      "depth", &Mtp::depth, {0, limits::layers},
      "multi-token prediction (arXiv 2412.19437): blocks behind the model in training, of which the k-th predicts "
      "the token k + 1 places ahead; 0: none");
  s.number("loss_weight", &Mtp::loss_weight, {.min = 0.0, .max = 1e6},
           "factor of the mean of the blocks' losses, which is added to the loss in training");
}

}  // namespace p3d::config
