// SPDX-License-Identifier: Apache-2.0
// The rules of comm.compress. What is compressed is the gradient of a worker, a fixed part of the global batch, so
// workers must be dealt evenly to replicas, and each gradient must be whole where it is compressed. Example: with
// comm.workers = 4 and parallel.dp = 2 a replica computes the gradients of two workers, one after the other.
#include "config/rules.hpp"

#include <fmt/format.h>

namespace p3d::config {

namespace {

constexpr auto compress = "comm.compress", workers = "comm.workers";

/// Keys that belong together, and the number of workers.
void check_workers(Check const& c) {
  if (!c.known({compress, workers, "parallel.dp"})) return;
  auto const& comm = c.config.comm;
  int const dp = c.config.parallel.dp;
  if (!c.config.compresses()) {
    if (comm.workers > 0)
      c.error({workers, compress}, "comm.workers only where something is compressed",
              fmt::format("workers {}, compress \"none\"", comm.workers), "remove comm.workers, or set comm.compress");
    return;
  }
  if (comm.workers == 0)
    return c.error({compress, workers}, "comm.workers, on which the answer depends", "none",
                   fmt::format("set comm.workers to {} (parallel.dp) or a multiple of it", dp));
  if (comm.workers % dp != 0)
    return c.error({workers, "parallel.dp"}, "a multiple of parallel.dp: each replica computes whole workers",
                   fmt::format("workers {}, dp {}", comm.workers, dp),
                   fmt::format("set comm.workers to {}, or parallel.dp to a divisor of {}",
                               (comm.workers + dp - 1) / dp * dp, comm.workers));
  auto const& b = c.config.batch;
  if (c.known({"pipeline.schedule"}) && c.config.pipeline.schedule == "file" && comm.workers > dp)
    c.error({workers, "pipeline.schedule"}, "comm.workers = parallel.dp where a file has the schedule",
            fmt::format("workers {}, dp {}", comm.workers, dp),
            "set comm.workers to parallel.dp, or choose a schedule");
  if (!c.known({"batch.microbatches"})) return;
  if (auto const each = b.microbatches * dp; each % comm.workers != 0)
    c.error({workers, "batch.global", "batch.micro"},
            "a divisor of the microbatches of a step: a worker has whole ones",
            fmt::format("workers {}, {} microbatches in a step", comm.workers, each),
            fmt::format("set batch.global to a multiple of {} (workers x batch.micro)", comm.workers * b.micro));
}

/// Keys of one kind of compression.
void check_kinds(Check const& c) {
  auto const& comm = c.config.comm;
  auto const belongs_to = [&](std::string_view key, bool is_set, Compress kind) {
    if (!c.known({key, compress}) || !is_set || comm.compress == kind) return;
    c.error({key, compress}, fmt::format("{} only with compress = \"{}\"", key, to_string(kind)),
            fmt::format("compress \"{}\"", to_string(comm.compress)),
            fmt::format("set {} to \"{}\", or remove {}", compress, to_string(kind), key));
  };
  belongs_to("comm.topk", comm.topk != Comm{}.topk, Compress::topk);
  belongs_to("comm.powersgd_rank", comm.powersgd_rank != Comm{}.powersgd_rank, Compress::powersgd);
}

/// Options under which no rank has the gradient of one worker.
void check_whole_gradients(Check const& c) {
  if (!c.known({compress}) || !c.config.compresses()) return;
  auto const refuse = [&](bool wrong, std::string_view other, std::string expected, std::string found) {
    if (!wrong || !c.known({other})) return;
    c.error({other, compress}, std::move(expected), std::move(found),
            fmt::format("set {} to \"none\", or change {}", compress, other));
  };
  auto const& config = c.config;
  auto const& m = config.memory;
  refuse(config.model.moe.on(), "model.moe.experts",
         "a model without experts where gradients are compressed: an expert adds up tokens of several workers",
         fmt::format("{} experts", config.model.moe.experts));
  refuse(m.shard == Shard::gradients || m.shard == Shard::parameters, "memory.shard",
         "\"none\" or \"optimizer\" where gradients are compressed: a worker's gradient is compressed as a whole",
         fmt::format("shard \"{}\"", to_string(m.shard)));
  refuse(config.precision.reduction == Precision::bf16 && config.precision.gradients != Precision::bf16,
         "precision.reduction", "gradients of full width where they are compressed", "reduction \"bf16\"");
  refuse(config.comm.compress == Compress::powersgd && config.precision.loss_scaling == LossScaling::dynamic,
         "precision.loss_scale",
         "gradients that stay finite for compress = \"powersgd\": what overflows would be remembered",
         "loss_scale \"dynamic\"");
  if (c.known({"parallel.pp", "pipeline.vocab_parallel", "model.tied_embeddings", "model.mtp.depth"}))
    refuse(config.ranks_share_embedding(), config.model.tied_embeddings ? "model.tied_embeddings" : "model.mtp.depth",
           "an embedding that one stage reads where gradients are compressed (pipeline.vocab_parallel does that)",
           fmt::format("one that the first and the last of {} pipeline ranks read", config.parallel.pp));
}

}  // namespace

void check_compression(Check const& check) {
  check_workers(check);
  check_kinds(check);
  check_whole_gradients(check);
}

}  // namespace p3d::config
