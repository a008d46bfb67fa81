// SPDX-License-Identifier: Apache-2.0
// Rules of [model.mtp].
#include "config/rules.hpp"

#include <fmt/format.h>

namespace p3d::config {

/// Blocks of multi-token prediction read the embedding as it is stored, and stand on the stage of the head.
void check_multi_token_prediction(Check const& c) {
  auto const& m = c.config.model;
  if (!c.known({"model.mtp.depth", "model.mtp.loss_weight"})) return;
  if (!m.mtp.on()) {
    if (m.mtp.loss_weight != Mtp{}.loss_weight)
      c.error({"model.mtp.loss_weight", "model.mtp.depth"}, "a model.mtp.depth above 0: loss_weight belongs to it",
              fmt::format("loss_weight {}, depth 0", m.mtp.loss_weight),
              "set model.mtp.depth, or remove model.mtp.loss_weight");
    return;
  }
  auto const refuse = [&](char const* key, bool wrong, char const* expected, std::string found, char const* fix) {
    if (c.known({key}) && wrong) c.error({key, "model.mtp.depth"}, expected, std::move(found), fix);
  };
  refuse("model.position", m.position == Position::learned, "a model without learned positions with model.mtp",
         "position \"learned\"", "set model.position to \"rope\", or model.mtp.depth to 0");
  refuse("model.dropout", m.dropout > 0.0, "no dropout with model.mtp", fmt::format("{}", m.dropout),
         "set model.dropout to 0");
  refuse("model.embedding_multiplier", m.embedding_multiplier != 1.0,
         "model.embedding_multiplier = 1 with model.mtp, whose blocks norm the embeddings",
         fmt::format("{}", m.embedding_multiplier), "remove model.embedding_multiplier, or set model.mtp.depth to 0");
  refuse("model.logits_scaling", m.logits_scaling != 1.0, "model.logits_scaling = 1 with model.mtp",
         fmt::format("{}", m.logits_scaling), "remove model.logits_scaling, or set model.mtp.depth to 0");
  if (c.known({"pipeline.vocab_parallel", "parallel.pp"}) && c.config.divides_vocabulary())
    c.error({"pipeline.vocab_parallel", "model.mtp.depth"},
            "pipeline.vocab_parallel = false with model.mtp: its blocks read the whole embedding and head on the last "
            "stage",
            fmt::format("true with parallel.pp {}", c.config.parallel.pp), "set pipeline.vocab_parallel to false");
}

}  // namespace p3d::config
