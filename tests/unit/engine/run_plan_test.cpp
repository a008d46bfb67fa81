// SPDX-License-Identifier: Apache-2.0
// What `p3d --check` does with sizes far beyond what can run: quick figures, or a clear refusal.

#include <p3d/base/error.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/base/memory_sizes.hpp>
#include <p3d/engine/run_plan.hpp>
#include <p3d/kernels/routing.hpp>
#include <p3d/report/describe.hpp>
#include <p3d/schedule/query.hpp>
#include <p3d/schedule/schedule.hpp>

#include <support/temp_dir.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

namespace {

using namespace p3d;

config::Config input(std::vector<std::string> overrides, int ranks = 0) {
  overrides.insert(overrides.begin(), "data.format=synthetic");
  auto result = config::parse_text("", "test", "/", overrides, ranks);
  if (!result.config) throw std::runtime_error(config::format(result.errors));
  return *result.config;
}

std::string refusal(config::Config const& c) {
  try {
    engine::make_run_plan(c);
  } catch (base::Error const& e) {
    EXPECT_EQ(e.code(), base::ExitCode::bad_input);
    return e.what();
  }
  return "";
}

void contains(std::string const& text, char const* words) { EXPECT_NE(text.find(words), std::string::npos) << text; }

// The time limit is ctest's: building a program of 65,536 x 65,536 microbatches took minutes and GiB.
// The router counts groups in a table of its own; what the rules allow, it takes.
TEST(RunPlan, AsManyGroupsOfExpertsAsTheRouterHas) {
  auto const mistakes = [](int groups) {
    auto const n = std::to_string(groups);
    return config::parse_text("", "test", "/",
                              {"model.moe.experts=" + n, "model.moe.top_k=1", "model.moe.groups=" + n,
                               "model.moe.group_top_k=1", "data.format=synthetic"},
                              1)
        .errors.size();
  };
  EXPECT_EQ(mistakes(kernels::most_expert_groups), 0U);
  EXPECT_EQ(mistakes(kernels::most_expert_groups + 1), 1U);
}

TEST(RunPlan, RefusesProgramsBeyondALimit) {
  auto const text = refusal(input({"parallel.pp=65536", "model.layers=65536"}));
  contains(text, "a program of at most 2097152 forwards");
  contains(text, "65536 x 1 x 65536");
  contains(text, "parallel.pp, pipeline.virtual_stages, batch.microbatches");
}

TEST(RunPlan, ManyStages) {
  auto const deep = input({"parallel.pp=65536", "model.layers=65536", "batch.microbatches=8"});
  auto const plan = engine::make_run_plan(deep);
  EXPECT_EQ(plan.stages.num_stages(), 65536);
  contains(report::describe(deep, plan), "65536 stages");
  auto const uneven = input({"parallel.pp=16384", "model.layers=65536", "batch.microbatches=8",
                             "pipeline.layers_per_stage=cost", "model.vocab_size=65536"});
  EXPECT_EQ(engine::make_run_plan(uneven).stages.num_layers(), 65536);
}

// With tp = 2 there is one group of more than one rank: NCCL's own buffers, and the memory that adds in a fixed order.
TEST(RunPlan, CountsTheMemoryOfNccl) {
  auto const libraries = [](std::vector<std::string> const& overrides, plan::Platform const& platform) {
    return plan::make_run_plan(input(overrides), platform).memory_of(0).libraries;
  };
  plan::Platform const mpi{.gpu = true, .device_form = true, .host_reaches_views = false}, nccl = [&] {
    auto p = mpi;
    p.nccl = true;
    return p;
  }();
  std::vector<std::string> const one{"parallel.tp=1"}, two{"parallel.tp=2"},
      any_order{"parallel.tp=2", "run.deterministic=false"};
  std::int64_t const mib = std::int64_t{1} << 20;
  EXPECT_EQ(libraries(two, {}), plan::host_library_bytes);
  EXPECT_EQ(libraries(one, nccl), libraries(two, mpi));
  EXPECT_EQ(libraries(any_order, nccl), libraries(two, mpi) + 256 * mib);
  EXPECT_EQ(libraries(two, nccl), libraries(two, mpi) + (256 + 16) * mib);
}

// A vendor's attention works in memory of its own, in runs of which calls go to it.
TEST(RunPlan, CountsTheMemoryOfAttentionByALibrary) {
  plan::Platform const without{.gpu = true, .device_form = true, .host_reaches_views = false}, with = [&] {
    auto p = without;
    p.fused_attention = true;
    return p;
  }();
  auto const more = [&](std::vector<std::string> overrides, char const* dropout = "model.dropout=0") {
    overrides.insert(overrides.end(), {"model.hidden=2048", "model.heads=32", "model.seq_len=2048", "batch.micro=1",
                                       "run.steps=1", dropout});
    auto const of = [&](plan::Platform const& p) {
      return plan::make_run_plan(input(overrides), p).memory_of(0).libraries;
    };
    return of(with) - of(without);
  };
  // cuDNN 9.19 says 545 MiB for 64 heads of 64 in a fixed order and 65 MiB otherwise (tests/platforms/cudnn.sh).
  std::int64_t const mib = std::int64_t{1} << 20, ordered = more({"run.precision=bf16"});
  EXPECT_GE(ordered, 545 / 2 * mib);
  EXPECT_LE(ordered, 512 * mib);
  EXPECT_GE(more({"run.precision=bf16", "run.deterministic=false"}), 65 / 2 * mib);
  EXPECT_EQ(more({"run.precision=fp32"}), 0);
  EXPECT_EQ(more({"run.precision=bf16", "linalg.attention=gemms"}), 0);
  EXPECT_EQ(more({"run.precision=bf16"}, "model.dropout=0.1"), 0);
  EXPECT_EQ(base::fused_attention_bytes(1, 65536, 8, 1, 64, true), 0) << "one head of keys takes 64 GiB";
  EXPECT_GT(base::fused_attention_bytes(1, 8192, 32, 4, 64, true), 8 * (2 * 8192LL * 8192));
}

TEST(RunPlan, ManyRanks) {
  auto const wide = input(
      {"parallel.pp=64", "model.layers=64", "parallel.dp=1048576", "parallel.order=pp-dp-tp", "batch.microbatches=8"});
  auto const text = report::describe(wide, engine::make_run_plan(wide));
  contains(text, "Mesh: 67108864 ranks");
  contains(text, "dp groups (64 of 1048576): [0 64 ... 67108800] [1 65 ... 67108801] ... [63 127 ... 67108863]");
  contains(text, "pp groups (1048576 of 64): [0 1 ... 63] [64 65 ... 127] ... [67108800 67108801 ... 67108863]");
}

TEST(RunPlan, RefusesActivationsThatNoMemoryHolds) {
  contains(refusal(input({"model.layers=4096", "model.heads=1", "model.kv_heads=1", "model.hidden=65536",
                          "model.ffn=65536", "model.seq_len=1048576", "batch.micro=16384", "batch.microbatches=256",
                          "pipeline.schedule=gpipe", "parallel.pp=2", "model.position=rope", "run.steps=1"})),
           "activations that some memory could hold");
}

TEST(RunPlan, EveryProgramIsProved) {
  auto const plan = engine::make_run_plan(
      input({"parallel.pp=4", "pipeline.schedule=looped_bfs", "model.layers=8", "batch.microbatches=8"}));
  for (auto const* program : {&plan.training, &plan.evaluation, &plan.probe}) {
    EXPECT_EQ(program->execution(), engine::execution);
    EXPECT_TRUE(schedule::validate(*program, engine::execution, program->pass()).empty());
  }
  EXPECT_EQ(plan.training.pass(), schedule::Pass::training);
  EXPECT_EQ(plan.evaluation.pass(), schedule::Pass::forward_only);
  EXPECT_EQ(plan.probe->num_microbatches, 1);
}

// Weights that come for each use take the room of a few layers, however many microbatches there are, with evaluation
// and sampling, whose programs hold no more.
TEST(RunPlan, WeightsOfAFewLayersAreWholeAtATime) {
  auto const weights = [](int microbatches, std::vector<std::string> more) {
    more.insert(more.end(), {"model.preset=llama2-7b", "run.precision=bf16", "parallel.dp=256", "batch.micro=1",
                             "memory.offload_dir=/tmp", "batch.global=" + std::to_string(256 * microbatches)});
    auto const plan = engine::make_run_plan(input(more, 256));
    return static_cast<double>(plan.memory_of(0).params) / (1 << 30);
  };
  // 12.55 GiB are 32 layers of 386 MiB, and the embedding and the head of 250 MiB with one each.
  for (auto const& keys : std::vector<std::vector<std::string>>{{"memory.shard=parameters", "memory.gather=microbatch"},
                                                                {"memory.offload_parameters=disk"}}) {
    EXPECT_LT(weights(1, keys), 1.2);
    EXPECT_DOUBLE_EQ(weights(2, keys), weights(1, keys));
    EXPECT_DOUBLE_EQ(weights(4, keys), weights(1, keys));
  }
  EXPECT_GT(weights(4, {"memory.shard=parameters", "memory.gather=step"}), 12.0);
}

TEST(RunPlan, TellsWhatIsRecomputed) {
  std::vector<std::string> const pipeline{"parallel.pp=2", "batch.microbatches=4", "model.layers=6",
                                          "pipeline.schedule=zb_h1"};
  auto const text = [&](std::vector<std::string> more) {
    more.insert(more.end(), pipeline.begin(), pipeline.end());
    auto const c = input(more);
    return report::describe(c, engine::make_run_plan(c));
  };
  EXPECT_EQ(text({}).find("Recomputation"), std::string::npos);
  contains(text({"memory.recompute=[\"norm\", \"rotary\"]"}),
           "outputs of norm; rotary has nothing to discard, it works in place. 0.0 % more FLOPs");
  contains(text({"memory.recompute=[\"rotary\"]"}), "Recomputation: nothing; rotary has");
  auto const full = text({"memory.recompute=full", "memory.recompute_every=2"});
  contains(full, "4 of 6 layers but their inputs");
  contains(full, "sets that live from I to W by stage: 1 2");
}

// A large bubble is told with its cause, and with the keys that make a step shorter.
TEST(RunPlan, TellsWhereALargeBubbleComesFrom) {
  auto const text = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"parallel.pp=4", "model.layers=8", "model.heads=4", "model.hidden=256",
                               "model.seq_len=64", "model.vocab_size=256"});
    auto const c = input(more);
    return report::describe(c, engine::make_run_plan(c));
  };
  auto const output_layer = text({"model.vocab_size=65536", "batch.microbatches=16"});
  contains(output_layer, "bubble 69.0 %");
  contains(output_layer,
           "  pipeline rank 3 has 3.17 of the mean work: stage 3 with 2 of 8 layers and the output layer\n");
  contains(output_layer,
           "by simulation:\n    0.33 with pipeline.vocab_parallel = true\n    0.92 with pipeline.layers_per_stage = "
           "\"cost\"\n");
  auto const uneven = text({"pipeline.layers_per_stage=[4, 2, 1, 1]", "batch.microbatches=32"});
  contains(uneven, "pipeline rank 0 has 1.98 of the mean work: stage 0 with 4 of 8 layers and the embedding\n");
  contains(uneven, "0.56 with pipeline.layers_per_stage = \"cost\"");
  auto const few = text({"batch.microbatches=4"});
  contains(few, "the ranks have even work: 4 microbatches fill and drain 4 pipeline ranks\n");
  contains(few, "0.79 with batch.microbatches = 8, twice the batch");
  contains(few, "with pipeline.schedule = \"zb_v\"");
  contains(text({"batch.microbatches=4", "batch.micro=2"}),
           "with batch.micro = 1 and batch.microbatches = 8, the same batch");
  EXPECT_EQ(text({"batch.microbatches=64"}).find("by simulation:"), std::string::npos);
  // The start of a run, which fits a screen, only says where to look.
  auto const c = input({"parallel.pp=4", "model.layers=8", "batch.microbatches=4"});
  auto const start = report::describe(c, engine::make_run_plan(c), false);
  contains(start, " % by simulation (p3d --check says why)\n");
  EXPECT_EQ(start.find("fill and drain"), std::string::npos);
}

TEST(RunPlan, TellsWhatContextParallelismDividesAndSends) {
  std::vector<std::string> const sizes{"model.seq_len=4096", "model.heads=8", "model.hidden=512", "model.layers=4",
                                       "batch.microbatches=3"};
  auto const text = [&](std::vector<std::string> more) {
    more.insert(more.begin(), sizes.begin(), sizes.end());
    auto const c = input(more);
    return report::describe(c, engine::make_run_plan(c));
  };
  EXPECT_EQ(text({}).find("Context"), std::string::npos);
  // Keys and values of 3072 other tokens, 512 wide, in fp32: 12 MiB; 3 microbatches of 4 layers.
  auto const ring = text({"parallel.cp=4", "context.exchange=ring"});
  contains(ring,
           "Context parallelism: 4096 tokens over cp 4, zigzag, ring: 1024 tokens a rank, attention's work at most "
           "1.00 of the mean\n"
           "  a rank sends 12.00 MiB a layer and microbatch forward, 24.00 MiB backward; 432.00 MiB a step\n");
  contains(ring, "cp=4");
  contains(ring, "cp groups (1 of 4): [0 1 2 3]");
  EXPECT_EQ(text({}).find("cp groups"), std::string::npos);
  // A hop of 4 MiB at 1e10 bytes/s and 5 us: keys wait behind 4 x 512 x 1024 x 2048.5 / 1e11 s of work forward, two
  // hops are open backward.
  contains(ring,
           "attention waits 0 ms a layer and microbatch forward, 0.849 ms backward, beside 43 and 85.9 ms of work");
  // The last quarter of the queries sees 7 of 16 quarters of the square: (2 x 4 - 1) / 4 of the mean, nearly.
  contains(text({"parallel.cp=4", "context.exchange=gather", "context.order=contiguous"}),
           "contiguous, all-gather: 1024 tokens a rank, attention's work at most 1.75 of the mean");
  contains(text({"parallel.cp=4", "context.exchange=[2, 2]", "context.order=striped"}),
           "striped, all-to-all of 2, ring of 2: 1024 tokens");
  // A window evens the work out: the first rank's queries see a little less.
  contains(text({"parallel.cp=4", "context.exchange=ring", "context.order=contiguous", "model.window=64"}),
           "at most 1.01 of the mean");
  contains(text({"parallel.cp=4", "context.exchange=all_to_all", "model.seq_len=4095"}),
           "cp 4, all-to-all: 1023 to 1024 tokens a rank");
  // 1 of 4 tokens is for each rank of tp a half: 512 of the 1024 that a rank of cp has.
  contains(text({"parallel.cp=4", "parallel.tp=2", "parallel.sequence=true"}), "up to 512 of 1024 tokens");
  contains(text({"parallel.cp=4"}), "per step of 12288 tokens");
}

TEST(RunPlan, TellsTheWindowsByLayer) {
  auto const text = [](std::vector<std::string> overrides) {
    auto const c = input(std::move(overrides));
    return report::describe(c, engine::make_run_plan(c));
  };
  EXPECT_EQ(text({}).find("window"), std::string::npos);
  contains(text({"model.layers=4", "model.window=16"}), "Attention window: 16 in 4 of 4 layers\n");
  contains(text({"model.layers=8", "model.window=[16, 16, 0, 32]"}),
           "Attention window: 16 in 4, 32 in 2 of 8 layers\n");
  contains(text({"model.layers=1", "model.window=[16, 0]"}), "Attention window: 16 in 1 of 1 layer\n");
  // 6 x (2 x 49152 + 256 x 64) FLOPs a token for matrices, 12 x 64 x 2 x 64 for attention; 2 x 16 with windows.
  contains(text({"model.layers=2"}), "786.4K FLOPs per token");
  contains(text({"model.layers=2", "model.window=16"}), "712.7K FLOPs per token");
}

// Microbatches whose slots keep everything add no operations.
TEST(RunPlan, CountsTheOperationsOfRecomputation) {
  auto const count = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"parallel.pp=2", "batch.microbatches=4", "pipeline.schedule=gpipe", "parallel.dp=3"});
    auto const c = input(more);
    return plan::recompute_flops_per_step(c, engine::make_run_plan(c));
  };
  double const all = count({"memory.recompute=full"});
  EXPECT_GT(all, 0);
  EXPECT_EQ(count({"memory.recompute=full", "memory.recompute_microbatches_kept=1"}), all * 3 / 4);
  EXPECT_EQ(count({"memory.recompute=full", "memory.recompute_microbatches_kept=4"}), 0);
}

// A program proved for other sends than the executor's is no proof.
TEST(RunPlan, RefusesAnotherProof) {
  auto const c = input({"parallel.pp=2", "batch.microbatches=4"});
  auto const plan = engine::make_run_plan(c);
  schedule::ValidProgram const eager(plan.training.program(), {.rendezvous = false, .sends_in_flight = 1});
  EXPECT_THROW(engine::make_run_plan(c, plan.stages, eager), base::Error);
}

// A schedule file may fit the numbers of ranks and microbatches and still be for another input.
TEST(RunPlan, RefusesASchedulesFileForOtherKeys) {
  std::vector<std::string> const base{"parallel.pp=2", "parallel.dp=2", "batch.global=8", "batch.micro=1",
                                      "model.layers=4"};
  auto const with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return input(more, 4);
  };
  test::TempDir const folder;
  auto const path = folder / "schedule.txt";
  auto const write = [&](std::vector<std::string> const& keys, auto const& change) {
    auto program = static_cast<schedule::Program const&>(engine::make_run_plan(with(keys)).training);
    change(program);
    std::ofstream(path) << schedule::to_text(program);
  };
  auto const write_csv = [&](std::vector<std::string> const& keys) {
    std::ofstream(path) << schedule::to_csv(engine::make_run_plan(with(keys)).training);
  };
  auto const as_it_is = [](schedule::Program&) {};
  auto const read = [&](std::vector<std::string> keys) {
    keys.insert(keys.end(), {"pipeline.schedule=file", "pipeline.file=" + path});
    return refusal(with(keys));
  };

  write({"pipeline.vocab_parallel=true"}, as_it_is);
  contains(read({}), "a schedule without E, S, T and G");
  contains(read({}), "set pipeline.vocab_parallel to true");
  EXPECT_EQ(read({"pipeline.vocab_parallel=true"}), "");
  write_csv({"pipeline.vocab_parallel=true"});
  contains(read({}), "a schedule without E, S, T and G");
  EXPECT_EQ(read({"pipeline.vocab_parallel=true"}), "") << "the slots of E, S, T and G are used in turn";

  write({}, as_it_is);
  EXPECT_EQ(read({}), "");
  contains(read({"pipeline.vocab_parallel=true"}), "a schedule with E, S, T and G");
  for (auto const* shard : {"optimizer", "gradients", "parameters"})
    EXPECT_EQ(read({std::string("memory.shard=") + shard}), "") << "p3d adds what is missing";

  write({"memory.shard=parameters"}, as_it_is);
  EXPECT_EQ(read({"memory.shard=parameters"}), "");
  EXPECT_EQ(read({"memory.shard=optimizer"}), "");
  contains(read({}), "resident weights");
  contains(read({"memory.offload_parameters=disk"}), "weights of stage 0 that are gathered and released");
  contains(read({"memory.shard=gradients", "memory.reduce=microbatch"}), "one for each stage");

  write({"memory.shard=parameters"}, [](schedule::Program& p) {
    std::erase_if(p.ranks[1], [](auto const& a) { return a.stage == 2 && schedule::moves_weights(a.op); });
  });
  contains(read({"memory.shard=parameters"}), "weights of stage 2 that are whole all the time");

  write({"memory.offload_parameters=disk"}, as_it_is);
  EXPECT_EQ(read({"memory.offload_parameters=disk"}), "");
  contains(read({"memory.shard=parameters"}), "weights of stage 0 that are reloaded and offloaded");

  write({"memory.shard=gradients", "memory.reduce=microbatch"}, as_it_is);
  EXPECT_EQ(read({"memory.shard=gradients", "memory.reduce=microbatch"}), "");
  contains(read({"memory.shard=gradients"}), "one reduction of the gradients of each stage");
  contains(read({"memory.shard=gradients"}), "4 of stage 0");
}

}  // namespace
