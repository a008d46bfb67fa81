// SPDX-License-Identifier: Apache-2.0
// The rules of [pipeline], and of options that change a schedule. How many stages a rank has is known to the schedule
// alone; errors that depend on it are found when the schedule is made. A rule here catches the errors that need no
// schedule: too few layers, a list that does not sum to model.layers, a key that the schedule does not read, and
// options that exclude each other. Example: pipeline.layers_per_stage = [2, 2] is refused here for a model of 5 layers.
#include "config/divide.hpp"
#include "config/files.hpp"
#include "config/rules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

namespace p3d::config {

namespace {

/// Layers must suffice for the stages. How many stages a rank has, unless pipeline.virtual_stages says it, the schedule
/// knows: rules that depend on it are checked where the schedule is made.
void check_stages(Check const& c) {
  if (!c.known({"model.layers"})) return;
  auto const& p = c.config.pipeline;
  auto const layers = c.config.model.layers;
  std::int64_t const pp = c.config.parallel.pp;
  bool const pp_known = c.known({"parallel.pp"}), chunks_known = c.known({"pipeline.virtual_stages"});
  std::int64_t const chunks = chunks_known ? std::max(p.virtual_stages, 1) : 1, stages = pp * chunks;
  // The first and the last stage have the embedding and the head to compute: "cost" and lists may leave them without
  // layers.
  auto const least = p.layer_split == LayerSplit::even ? stages : std::max<std::int64_t>(stages - 2, 1);
  if (pp_known && c.known({"pipeline.layers_per_stage"}) && layers < least) {
    if (chunks == 1) {
      c.error({"parallel.pp", "model.layers"}, "at least one layer for each pipeline stage",
              fmt::format("layers {}, pp {}", layers, pp),
              fmt::format("set parallel.pp to {} or less, or model.layers to {} or more", layers, pp));
    } else {
      c.error({"pipeline.virtual_stages", "parallel.pp", "model.layers"}, "at least one layer for each pipeline stage",
              fmt::format("layers {}, pp {} x virtual_stages {} = {}", layers, pp, chunks, stages),
              fmt::format("lower pipeline.virtual_stages or parallel.pp, or set model.layers to {} or more", least));
    }
    return;
  }
  auto const& list = p.layers_per_stage;
  if (!c.known({"pipeline.layers_per_stage"}) || p.layer_split != LayerSplit::list) return;
  auto const sum = std::accumulate(list.begin(), list.end(), std::int64_t{0});
  auto const entries = static_cast<std::int64_t>(list.size());
  bool const exact = chunks_known && p.virtual_stages > 0;
  for (std::size_t s = 1; s + 1 < list.size(); ++s) {
    if (list[s] > 0) continue;
    c.error({"pipeline.layers_per_stage"}, "at least one layer for each stage but the first and the last",
            fmt::format("0 layers for stage {}", s), "give it a layer, or use \"cost\"");
    return;
  }
  if (sum == layers && (!pp_known || (exact ? entries == stages : entries % pp == 0))) return;
  auto const wanted = pp_known ? stages : entries;
  std::string fix = "use \"even\" or \"cost\"";
  if (wanted <= 32 && layers >= wanted) fix += fmt::format(", or [{}]", fmt::join(even_parts(layers, wanted), ", "));
  if (sum != layers) fix += fmt::format(", or set model.layers to {}", sum);
  if (pp_known && !exact && entries != pp) fix += fmt::format(", or parallel.pp to {}", entries);
  c.error({"pipeline.layers_per_stage", "model.layers", "parallel.pp"},
          fmt::format("{} entries, one per stage, that sum to the {} layers", wanted, layers),
          fmt::format("{} entr{} that sum{} to {}", entries, entries == 1 ? "y" : "ies", entries == 1 ? "s" : "", sum),
          fix);
}

/// Keys that only one schedule reads are refused with the others: nothing is ignored.
void check_schedule_keys(Check const& c) {
  if (!c.known({"pipeline.schedule"})) return;
  auto const& p = c.config.pipeline;
  bool const from_file = p.schedule == "file";
  if (c.known({"pipeline.file"})) {
    if (from_file && p.file.empty()) {
      c.error({"pipeline.schedule"}, "pipeline.file, the schedule to read", "none",
              "set pipeline.file, or choose another schedule");
    } else if (!from_file && !p.file.empty()) {
      c.error({"pipeline.file", "pipeline.schedule"}, "pipeline.file only with schedule = \"file\"",
              fmt::format("schedule \"{}\"", p.schedule), "set pipeline.schedule to \"file\", or remove pipeline.file");
    } else if (from_file) {
      if (auto const wrong = no_file(p.file))
        c.error({"pipeline.file"}, "an existing file", fmt::format("{}: {}", p.file, wrong->found), wrong->fix);
    }
  }
  if (c.known({"pipeline.max_memory"}) && p.max_memory > 0 && p.schedule != "auto")
    c.error({"pipeline.max_memory", "pipeline.schedule"}, "pipeline.max_memory only with schedule = \"auto\"",
            fmt::format("schedule \"{}\"", p.schedule),
            "set pipeline.schedule to \"auto\", or remove pipeline.max_memory");
  if (c.known({"pipeline.virtual_stages"}) && p.virtual_stages > 0 && from_file)
    c.error({"pipeline.virtual_stages", "pipeline.schedule"},
            "no pipeline.virtual_stages with schedule = \"file\": the file has the stages",
            fmt::format("virtual_stages {}", p.virtual_stages), "remove pipeline.virtual_stages");
}

bool overlaps_microbatches(Check const& c) { return c.known({"parallel.tp"}) && c.config.interleaves_over_tp(); }

/// Options that defer weight gradients already, or prevent it, exclude weight_deferral_limit.
void check_deferral(Check const& c) {
  constexpr auto key = "pipeline.weight_deferral_limit";
  if (!c.known({key, "parallel.pp"}) || c.config.pipeline.weight_deferral_limit == 0 || c.config.parallel.pp == 1)
    return;
  auto const refuse = [&](bool wrong, std::string_view other, std::string expected, std::string found) {
    if (!wrong || !c.known({other})) return;
    c.error({other, key}, std::move(expected), std::move(found), fmt::format("set {} to 0, or change {}", key, other));
  };
  refuse(c.config.divides_vocabulary(), "pipeline.vocab_parallel",
         "an output layer on the last stage where its weight gradients wait: divided, it needs no waiting",
         "vocab_parallel = true");
  refuse(c.config.pipeline.schedule == "file", "pipeline.schedule",
         "a schedule that p3d makes where weight gradients wait", "schedule \"file\"");
  refuse(c.config.comm.overlap_experts, "comm.overlap_experts",
         "forwards and backwards that do not interleave where weight gradients wait", "comm.overlap_experts = true");
  refuse(overlaps_microbatches(c), "comm.overlap_tp",
         "forwards and backwards that do not interleave where weight gradients wait", "overlap_tp \"microbatch\"");
}

/// Only late gradients let a step begin before the one before it has ended.
void check_flush(Check const& c) {
  constexpr auto key = "pipeline.flush";
  if (!c.known({key, "optimizer.delay", "pipeline.delays", "pipeline.schedule"})) return;
  if (c.config.pipeline.flush != Flush::never || c.config.latest_delay() > 0) return;
  if (delays_follow_stages(c.config)) return;  // there is one stage
  c.error({key, "optimizer.delay"},
          "gradients that are late by one update (optimizer.delay = 1), or pipeline.schedule = \"pipedream\": else a "
          "step reads weights that the one before it makes at its end",
          "flush = \"never\" and no delay", "set optimizer.delay to 1, or pipeline.flush to \"auto\"");
}

/// Post-validation excludes options whose effect an update that is taken back, or a step that begins early, would not
/// undo.
void check_post_validation(Check const& c) {
  constexpr auto key = "optimizer.post_validation";
  if (!c.known({key}) || !c.config.optimizer.post_validation) return;
  auto const refuse = [&](char const* other, bool is_set, char const* expected, std::string found) {
    if (!c.known({other}) || !is_set) return;
    c.error({key, other}, expected, std::move(found), fmt::format("remove {}, or {}", key, other));
  };
  auto const& config = c.config;
  refuse("model.moe.experts", config.model.moe.on(), "a model without experts: what they chose changes the next step",
         fmt::format("{} experts", config.model.moe.experts));
  bool const own = delays_follow_stages(config), listed = !config.pipeline.delays.empty();
  refuse(own      ? "pipeline.schedule"
         : listed ? "pipeline.delays"
                  : "optimizer.delay",
         config.latest_delay() > 0,
         "gradients that are not late: one older version of the weights is kept, to read it or to take an update back",
         fmt::format("late by {}", config.latest_delay()));
  refuse("pipeline.p2p", config.pipeline.p2p == P2p::ring && c.known({"parallel.pp"}) && config.parallel.pp > 1,
         "messages that start one by one: a step that begins anew would leave its rounds half done", "p2p = \"ring\"");
  refuse("comm.overlap_tp", overlaps_microbatches(c),
         "forwards and backwards that do not interleave: a step that begins early has forwards alone",
         "overlap_tp \"microbatch\"");
  constexpr auto in_memory = "resident weights, moments and activations, to take an update back";
  auto const& m = config.memory;
  for (auto const& [other, place] : {std::pair("memory.offload_optimizer", m.offload_optimizer),
                                     std::pair("memory.offload_parameters", m.offload_parameters),
                                     std::pair("memory.offload_activations", m.offload_activations)})
    refuse(other, place != OffloadTo::none, in_memory, fmt::format("\"{}\"", to_string(place)));
}

}  // namespace

void check_pipeline(Check const& check) {
  check_post_validation(check);
  check_stages(check);
  check_schedule_keys(check);
  check_deferral(check);
  check_delays(check);
  check_flush(check);
}

}  // namespace p3d::config
