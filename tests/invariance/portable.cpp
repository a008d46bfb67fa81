// SPDX-License-Identifier: Apache-2.0
// Whole trainings with the kernels that devices run, on the host: in ten layouts of two and four ranks, and on one
// rank, against one rank with the kernels of hosts. This file makes two programs. invariance_host_losses has the host's
// kernels and writes losses and gradient norms to a file, which invariance_portable reads. In builds with the address
// sanitizer host code that touches the memory of Views ends the program (device/guard.hpp).
//
//   invariance_host_losses;  mpiexec -n N invariance_portable [--sabotage]
//
// Exit code 1 when a loss or a norm is off by more than 1e-9. --sabotage trains with another seed.

#include "train.hpp"

#include <p3d/base/error.hpp>
#include <p3d/comm/communicator.hpp>
#include <p3d/kernels/attention.hpp>

#include <support/tiny.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#if defined(P3D_PORTABLE_FORM)
#include <kernels/attention_blocks.hpp>
#endif

namespace {

using namespace p3d;
using Words = std::vector<std::string>;

constexpr int num_steps = 5;

Words case_of(std::string_view name) {
  Words const llama{"model.preset=llama-tiny", "model.heads=8", "model.kv_heads=4", "model.hidden=64", "model.ffn=96",
                    "model.seq_len=40",        "batch.micro=2"};
  auto const with = [&](Words const& more) {
    auto words = llama;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  if (name == "llama") return with({});
  if (name == "window")
    return with({"model.window=[7, 0]", "model.seq_len=37", "model.attention_softcap=0.2", "model.logits_softcap=3"});
  if (name == "packed") return with({"data.pack=true", "data.eod_token=10"});
  if (name == "gpt2") return {"model.preset=gpt2-tiny", "model.dropout=0.1", "model.seq_len=81", "batch.micro=1"};
  P3D_REQUIRE(name == "experts", "a case has a name");
  return {"model.preset=llama-tiny", "model.seq_len=24", "model.moe.experts=4", "model.moe.top_k=2", "batch.micro=1"};
}
constexpr char const* names[] = {"llama", "window", "packed", "gpt2", "experts"};

struct Layout {
  int ranks;
  char const* of;
  Words words;
};
std::vector<Layout> layouts() {
  std::vector<Layout> out;
  for (auto const* name : names) out.push_back({1, name, {}});
  out.push_back({2, "llama", {"parallel.tp=2", "memory.recompute=full"}});
  out.push_back({2, "gpt2", {"parallel.dp=2", "memory.shard=optimizer"}});
  // With more than 32 rows a rank sums over rows are cut; and here a bias is summed while those of a norm wait.
  out.push_back({2, "gpt2", {"parallel.tp=2", "parallel.sequence=true"}});
  out.push_back({2, "window", {"parallel.cp=2", "context.order=zigzag", "context.exchange=ring"}});
  out.push_back({2, "packed", {"parallel.pp=2", "pipeline.schedule=1f1b"}});
  out.push_back({4, "llama", {"parallel.tp=2", "parallel.pp=2", "parallel.sequence=true", "pipeline.schedule=zb_h1"}});
  out.push_back({4, "gpt2", {"parallel.dp=2", "parallel.tp=2", "memory.shard=parameters"}});
  out.push_back({4, "window", {"parallel.cp=4", "context.order=contiguous", "context.exchange=[2, 2]"}});
  out.push_back({4, "packed", {"parallel.cp=2", "parallel.tp=2", "context.order=striped", "context.exchange=gather"}});
  out.push_back({4, "llama", {"parallel.cp=2", "parallel.dp=2", "context.exchange=all_to_all"}});
  out.push_back({4, "experts", {"parallel.dp=4", "parallel.ep=4"}});
  return out;
}

config::Config make_config(Layout const& l, int seed) {
  Words const own{fmt::format("run.steps={}", num_steps),
                  fmt::format("run.seed={}", seed),
                  "run.precision=fp64",
                  "optimizer.warmup_steps=2",
                  "optimizer.lr=1e-3",
                  "run.eval_batches=0",
                  "comm.bucket_mb=0.1",
                  "batch.global=4",
                  "model.layers=2",
                  p3d::test::licence_text()};
  return p3d::test::config_of(p3d::test::joined({case_of(l.of), own, l.words}), l.ranks);
}

/// Losses, then gradient norms.
test::RunResult numbers_of(Layout const& l, int seed, comm::Communicator const& comm) {
  auto result = test::train(make_config(l, seed), comm, num_steps);
  test::RunResult out;
  out.losses = result.losses;
  out.losses.insert(out.losses.end(), result.norms.begin(), result.norms.end());
  return out;
}

[[maybe_unused]] int write(test::Options const&) {
  std::ofstream file(P3D_REFERENCE_FILE);
  for (auto const* name : names) {
    auto const found = numbers_of({1, name, {}}, 3, comm::Communicator::self());
    P3D_REQUIRE(found.losses.front() > found.losses[num_steps - 1] + 0.01, "the reference learns");
    file << fmt::format("{} {:.17g}\n", name, fmt::join(found.losses, " "));
  }
  P3D_REQUIRE(file.flush().good(), "the numbers are written");
  return 0;
}

[[maybe_unused]] int compare(test::Options const& o) {
  auto world = comm::Communicator::world();
  kernels::AttentionShape shape;
  shape.heads = shape.kv_heads = shape.head_dim = 1;
  shape.queries = shape.keys = base::TokenSet::range(0, 1);
  P3D_REQUIRE(kernels::attention_scratch_bytes<double>(shape) > 0, "the kernels are those of devices");
  std::map<std::string, test::RunResult> references;
  std::ifstream file(P3D_REFERENCE_FILE);
  for (std::string name; file >> name;)
    for (int i = 0; i < 2 * num_steps; ++i) file >> references[name].losses.emplace_back();
  P3D_REQUIRE(references.size() == std::size(names), "invariance_host_losses has run before");
  test::Tally tally(world.size(), 1e-9, 0.0);
  for (auto const& l : layouts())
    if (l.ranks == world.size())
      tally.compare(references.at(l.of), numbers_of(l, o.sabotage ? 4 : 3, world),
                    fmt::format("{:<8} {}", l.of, fmt::join(l.words, " ")));
  return tally.finish();
}

}  // namespace

int main(int argc, char** argv) {
#if defined(P3D_PORTABLE_FORM)
  kernels::attention_block_bytes = 20000;  // several blocks, of some heads each
  return test::run_main(argc, argv, {"--sabotage"}, compare);
#else
  return test::run_main(argc, argv, {}, write);
#endif
}
