// SPDX-License-Identifier: Apache-2.0
// Every schedule, with every number of microbatches from pp - 1 to 4 pp, against one rank. Rank 0 trains the reference
// for each global batch alone, then all ranks train with each schedule; every step's loss must agree. Too few
// microbatches for a schedule must be refused, with the smallest number that works; and the arena's peak must be what
// was predicted.
//
//   mpiexec -n N schedules [--full] [--sabotage]        N: 2, 3, 4, 6 or 8
//
// Without --full a subset: of every schedule on every mesh the fewest, the most and one odd number of microbatches;
// with more than four ranks one of these. Exit code 1 when a deviation is above 1e-9 (fp64), a refusal is wrong or a
// peak differs. --sabotage gives the schedules another seed: must fail.

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/comm/mesh.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/linalg/gemm.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/schedule/registry.hpp>

#include <support/tiny.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

using p3d::config::Config;

constexpr int num_steps = 4;
constexpr double tolerance = 1e-9;

struct Mesh {
  int dp = 1, tp = 1, pp = 1;
};

std::vector<Mesh> meshes(int ranks) {
  switch (ranks) {
    case 2: return {{1, 1, 2}};
    case 3: return {{1, 1, 3}};
    case 4: return {{1, 1, 4}, {2, 1, 2}, {1, 2, 2}};
    case 6: return {{2, 1, 3}, {1, 2, 3}};
    case 8: return {{2, 1, 4}, {1, 2, 4}, {2, 2, 2}, {4, 1, 2}};
    default:
      throw p3d::base::Error({.expected = "2, 3, 4, 6 or 8 ranks",
                              .found = std::to_string(ranks),
                              .where = "mpiexec -n",
                              .fix = "start another number"});
  }
}

/// A schedule as the input names it, with the numbers that it may be given.
struct Variant {
  std::string name;
  std::vector<std::string> overrides;
};

std::vector<Variant> variants(int pp) {
  std::vector<Variant> out;
  for (p3d::schedule::Generator const* g : p3d::schedule::generators()) {
    std::string const schedule = fmt::format("pipeline.schedule={}", g->name);
    out.push_back({std::string(g->name), {schedule}});
    if (!g->any_stages_per_rank) continue;
    for (int v : {3, 4})
      out.push_back({fmt::format("{} v{}", g->name, v), {schedule, fmt::format("pipeline.virtual_stages={}", v)}});
    if (g->any_group_size)
      out.push_back({fmt::format("{} groups of {}", g->name, pp + 1),
                     {schedule, fmt::format("pipeline.microbatch_group_size={}", pp + 1)}});
  }
  for (auto const& [name, limit] : {std::pair("1f1b", 2), {"interleaved_1f1b", 5}})
    out.push_back(
        {fmt::format("{} deferring {}", name, limit),
         {fmt::format("pipeline.schedule={}", name), fmt::format("pipeline.weight_deferral_limit={}", limit)}});
  return out;
}

/// Three models: tied embeddings with dropout and learned slopes, and none of them with grouped queries and sinks or
/// latent attention. 16 layers, for four stages on each of four ranks; with odd numbers of microbatches dealt by cost,
/// where the head weighs as much as 8 layers and leaves its stage none.
Config make_config(bool llama, Mesh mesh, int microbatches, std::vector<std::string> const& schedule, int seed) {
  p3d::test::Keys const own{"model.vocab_size=1025",
                            p3d::test::licence_text(),
                            "batch.micro=1",
                            "run.precision=fp64",
                            llama ? "model.dropout=0" : "model.dropout=0.1",
                            llama ? "model.activation=swiglu" : "model.activation=xielu",
                            llama ? "model.norm_placement=post" : "model.norm_placement=pre",
                            llama ? "model.attention_softcap=0.1" : "model.attention_softcap=0",
                            llama ? "model.logits_softcap=0.5" : "model.logits_softcap=0",
                            "optimizer.lr=1e-2",
                            "optimizer.warmup_steps=0",
                            "run.eval_batches=0",
                            "comm.bucket_mb=0.01",
                            fmt::format("run.seed={}", seed),
                            fmt::format("run.steps={}", num_steps),
                            fmt::format("batch.microbatches={}", microbatches),
                            fmt::format("pipeline.layers_per_stage={}", microbatches % 2 == 1 ? "cost" : "even")};
  p3d::test::Keys attention;
  if (llama) attention = {"model.attention_sinks=true"};
  if (llama && mesh.dp * microbatches % 3 == 1) {  // the same on one rank, which has the microbatches of all replicas
    attention = {"model.heads=4",
                 "model.kv_heads=4",
                 "model.mla.kv_lora_rank=6",
                 "model.mla.q_lora_rank=5",
                 "model.mla.v_head_dim=4",
                 "model.mla.qk_nope_head_dim=4",
                 "model.mla.qk_rope_head_dim=2"};
  }
  return p3d::test::config_of(
      p3d::test::joined({p3d::test::family(llama), p3d::test::tiny_model(16),
                         p3d::test::mesh_keys(mesh.dp, mesh.tp, mesh.pp), own, attention, schedule}),
      mesh.dp * mesh.tp * mesh.pp);
}

class Sweep {
public:
  explicit Sweep(bool sabotage) : world_(p3d::comm::Communicator::world()), seed_(sabotage ? 5 : 4) {}

  void run(bool full) {
    auto const all = meshes(world_.size());
    int asked = 0, least = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      int const pp = all[i].pp, low = pp - 1, high = 4 * pp;
      auto const schedules = variants(pp);
      for (std::size_t s = 0; s < schedules.size(); ++s) {
        // The two ends, and an odd number between them, another one for every schedule and mesh.
        int const odd = (low + 1 + static_cast<int>((3 * s + 5 * i) % static_cast<std::size_t>(high - low - 1))) | 1;
        std::vector<int> some{low, high, odd};
        if (world_.size() > 4) some = {some[(s + i) % 3]};  // ranks that share cores take long
        for (int m = low; m <= high; ++m) {
          if (!full && std::count(some.begin(), some.end(), m) == 0) continue;
          one(all[i], schedules[s], m, (s + i + static_cast<std::size_t>(m)) % 2 == 0);
          ++asked;
        }
        least += full ? high - low + 1 : static_cast<int>(some.size());
      }
    }
    P3D_REQUIRE(asked == least && runs_ + refused_ == asked, "every case of the list ran or was refused");
    P3D_REQUIRE(runs_ > refused_ && (refused_ > 0 || !full), "most programs ran, and some were refused");
  }

  int finish(bool full) {
    p3d::base::log_root(fmt::format(
        "{} ranks, {}: {} runs with largest relative deviation {:.2e} (tolerance {:.0e}), {} refusals, {} failures",
        world_.size(), full ? "all" : "subset", runs_, worst_, tolerance, refused_, failures_));
    return failures_ == 0 ? 0 : 1;
  }

private:
  void one(Mesh mesh, Variant const& v, int microbatches, bool llama) {
    auto const name = fmt::format("dp{} tp{} pp{} {:<24} {:>2} microbatches, {}", mesh.dp, mesh.tp, mesh.pp, v.name,
                                  microbatches, llama ? "llama" : "gpt2");
    auto const config = make_config(llama, mesh, microbatches, v.overrides, seed_);
    auto const* const generator = p3d::schedule::find_generator(config.pipeline.schedule);
    int const smallest = generator->smallest_microbatches(mesh.pp);
    P3D_REQUIRE(smallest <= 2 * mesh.pp, "no schedule needs more than two microbatches per rank");
    p3d::engine::RunPlan plan = [&] {
      auto good = config;
      good.batch.microbatches =
          std::max<std::int64_t>(microbatches, smallest);  // the smallest number that is named must work
      return p3d::engine::make_run_plan(good);
    }();
    if (microbatches < smallest) return refusal(name, config, smallest);
    p3d::engine::Trainer<p3d::device::Fp64> trainer(config, std::move(plan), world_);
    std::vector<double> losses;
    for (int s = 0; s < num_steps; ++s) losses.push_back(trainer.step().loss);
    auto const memory = trainer.plan().memory_of(trainer.mesh().coordinate("pp"));
    std::int64_t other_peak = static_cast<std::int64_t>(trainer.inspection().activation_high_water()) !=
                              memory.activations + memory.workspace;
    world_.all_reduce(&other_peak, 1, p3d::comm::Type::int64, p3d::comm::Reduction::max).wait();
    auto const& expected = reference(llama, config.batch.global);
    double deviation = 0.0;
    for (std::size_t s = 0; s < losses.size(); ++s)
      deviation = std::max(deviation, std::fabs(losses[s] - expected[s]) / std::fabs(expected[s]));
    bool const good = deviation <= tolerance && other_peak == 0;  // false for NaN
    ++runs_;
    worst_ = std::max(worst_, deviation);
    verdict(
        good, name,
        fmt::format("deviation {:.2e}{}", deviation, other_peak ? ", the arena's peak is not the predicted one" : ""));
  }

  void refusal(std::string const& name, Config const& config, int smallest) {
    ++refused_;
    try {
      p3d::engine::make_run_plan(config);
      verdict(false, name, "not refused");
    } catch (p3d::base::Error const& e) {
      auto const words = fmt::format("at least {} microbatches for {} on {} pipeline ranks", smallest,
                                     config.pipeline.schedule, config.parallel.pp);
      bool const good = e.code() == p3d::base::ExitCode::bad_input && std::strstr(e.what(), words.c_str()) != nullptr;
      verdict(good, name, good ? "refused: needs " + words : e.what());
    }
  }

  std::vector<double> const& reference(bool llama, std::int64_t global) {
    auto& losses = references_[{llama, global}];
    if (!losses.empty()) return losses;
    losses.resize(num_steps);
    if (world_.rank() == 0) {
      p3d::engine::Trainer<p3d::device::Fp64> trainer(make_config(llama, {}, static_cast<int>(global), {}, 4),
                                                      p3d::comm::Communicator::self());
      for (auto& loss : losses) loss = trainer.step().loss;
      P3D_REQUIRE(losses.front() > losses.back() + 0.01, "the reference learns, so that losses can differ");
    }
    world_.broadcast(losses.data(), num_steps, p3d::comm::Type::float64, 0).wait();
    return losses;
  }

  void verdict(bool good, std::string const& name, std::string const& text) {
    failures_ += good ? 0 : 1;
    p3d::base::log_root(fmt::format("{} {}: {}", good ? "ok  " : "FAIL", name, text));
  }

  p3d::comm::Communicator world_;
  int seed_;
  std::map<std::pair<bool, std::int64_t>, std::vector<double>> references_;  ///< by model and global batch
  int runs_ = 0, refused_ = 0, failures_ = 0;
  double worst_ = 0.0;
};

}  // namespace

int main(int argc, char** argv) {
  bool full = false, sabotage = false;
  for (int i = 1; i < argc; ++i) {
    full = full || std::string(argv[i]) == "--full";
    sabotage = sabotage || std::string(argv[i]) == "--sabotage";
  }
  p3d::comm::Environment mpi(argc, argv);
  p3d::comm::keep_mesh_groups();
  try {
    p3d::device::Environment kokkos(argc, argv, 1);
    p3d::linalg::set_blas_threads(p3d::device::host_threads());
    Sweep sweep(sabotage);
    sweep.run(full);
    return mpi.exit_code(sweep.finish(full));
  } catch (std::exception const& e) {
    p3d::base::error_here(e.what());
    p3d::comm::abort_all(1);
  }
}
