// SPDX-License-Identifier: Apache-2.0
#include "config/divide.hpp"
#include "config/limits.hpp"
#include "config/rules.hpp"

#include <fmt/format.h>

namespace p3d::config {

namespace {

/// batch.global must be micro x microbatches x dp, whichever of them the input gives.
void check_batch(Check const& c) {
  if (c.known({"parallel.layout", "batch.global"}) && c.config.parallel.layout == LayoutChoice::automatic &&
      !c.sources.given("batch.global"))
    c.error({"batch.global", "parallel.layout"},
            "batch.global where the layout is chosen: no layout may change the losses", "none",
            "set batch.global to the samples of a step");
  if (!c.known({"batch.micro", "parallel.dp", "batch.global"})) return;
  auto const& b = c.config.batch;
  std::int64_t const dp = c.config.parallel.dp;
  std::int64_t const step = b.micro * dp;
  if (c.sources.given("batch.global") && b.global % step != 0) {
    auto fix = "set batch.global to " + one_of(nearest_multiples(b.global, step));
    if (b.global % dp == 0 && b.global / dp <= limits::axis * limits::axis) {
      fix += ", or batch.micro to " + one_of(nearest_divisors(b.micro, b.global / dp));
    }
    c.error({"batch.global", "batch.micro", "parallel.dp"}, "batch.global divisible by batch.micro x parallel.dp",
            fmt::format("global {}, micro {} x dp {} = {}: remainder {}", b.global, b.micro, dp, step, b.global % step),
            fix);
  } else if (c.known({"batch.microbatches"}) && b.global != step * b.microbatches) {
    auto fix = fmt::format("remove one of the two, or set batch.global to {}", step * b.microbatches);
    if (b.global % step == 0) fix += fmt::format(" or batch.microbatches to {}", b.global / step);
    c.error({"batch.global", "batch.microbatches", "batch.micro", "parallel.dp"},
            "batch.global equal to micro x microbatches x dp, since both are given",
            fmt::format("global {}, but micro {} x microbatches {} x dp {} = {}", b.global, b.micro, b.microbatches, dp,
                        step * b.microbatches),
            fix);
  } else if (c.known({"batch.microbatches"}) && b.microbatches > limits::axis) {
    c.error({"batch.global", "batch.micro", "parallel.dp"}, fmt::format("at most {} microbatches", limits::axis),
            fmt::format("global {} / (micro {} x dp {}) = {}", b.global, b.micro, dp, b.microbatches),
            "choose a smaller batch.global");
  }
}

/// A deterministic run must not leave the order of sums to MPI.
void check_all_reduce(Check const& c) {
  if (!c.known({"comm.allreduce", "run.deterministic"})) return;
  if (c.config.comm.allreduce != AllReduce::mpi || !c.config.run.deterministic) return;
  c.error({"comm.allreduce", "run.deterministic"},
          "an all-reduce with a fixed order of summation, as run.deterministic asks",
          "allreduce \"mpi\": the order is the library's affair",
          "set run.deterministic to false, or comm.allreduce to \"auto\" or any other value");
}

/// NCCL must be in this build.
void check_backend(Check const& c) {
  if (!c.known({"comm.backend"}) || c.config.comm.backend != Backend::nccl) return;
  if (!has_nccl()) {
    c.error({"comm.backend"}, "\"auto\" or \"mpi\": this build of p3d has neither NCCL nor RCCL", "\"nccl\"",
            "choose one of these, or configure p3d with -DP3D_NCCL=ON, for GPUs, and build it again");
  }
}

/// A matrix that is also the head's is divided, as the head is.
void check_embedding(Check const& c) {
  constexpr auto key = "parallel.embedding";
  if (!c.known({key, "parallel.tp", "parallel.pp"}) || !c.config.replicates_embedding()) return;
  auto const& m = c.config.model;
  if (c.known({"model.tied_embeddings"}) && m.tied_embeddings)
    c.error({key, "model.tied_embeddings"},
            "parallel.embedding = \"sharded\" where the embedding is the head, too: tp divides its rows",
            "\"replicated\" with tied_embeddings = true",
            "set parallel.embedding to \"sharded\", or model.tied_embeddings to false");
  if (c.known({"pipeline.vocab_parallel"}) && c.config.divides_vocabulary())
    c.error({key, "pipeline.vocab_parallel"},
            "parallel.embedding = \"sharded\" with pipeline.vocab_parallel, which divides the rows over all stages",
            "\"replicated\" with vocab_parallel = true", "remove one of them");
}

}  // namespace

void check_parallel(Check const& check) {
  check_batch(check);
  check_all_reduce(check);
  check_backend(check);
  check_embedding(check);
}

}  // namespace p3d::config
