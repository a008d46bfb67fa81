// SPDX-License-Identifier: Apache-2.0
// The steady step: from the second step on Kokkos allocates nothing, every copy and every fence is one that we know the
// reason of, a layer launches few kernels, and none of these is one that Kokkos would pass through constant memory on a
// GPU, where each waits for the one before. Counted through Kokkos' own profiling hooks.

#include <p3d/collectives/collectives.hpp>
#include <p3d/device/compat.hpp>
#include <p3d/device/launch.hpp>
#include <p3d/device/view.hpp>
#include <p3d/engine/trainer.hpp>
#include <p3d/kernels/common.hpp>
#include <p3d/layout/shards.hpp>

#include <support/mpi_kokkos_main.hpp>
#include <support/tiny.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace {

namespace hooks = Kokkos::Tools::Experimental;

struct Events {
  std::map<std::string, int> allocations;  ///< by label
  std::map<std::uint64_t, int> copies;     ///< by size in bytes
  std::map<std::string, int> fences;       ///< by label
  std::map<std::string, int> launches;     ///< by label; a GEMM is one
  int inside_gemm = 0;
  std::int64_t kernels = 0;  ///< of room kernels
  void launch(std::string const& label) {
    if (inside_gemm == 0) ++launches[label];
    if (label.starts_with("p3d::kernels::")) ++kernels;
  }
};
Events seen;

/// Counts while it lives, and calls what was there before (device::guard_memory, in some builds).
struct Counting {
  static inline Kokkos::Tools::Experimental::EventSet before;
  Counting() {
    seen = {};
    before = hooks::get_callbacks();
    hooks::set_allocate_data_callback(
        [](Kokkos::Tools::SpaceHandle space, char const* label, void const* data, std::uint64_t bytes) {
          // Kokkos asks for no bytes at all at each kernel of teams on a GPU.
          if (bytes > 0) ++seen.allocations[label];
          if (before.allocate_data != nullptr) before.allocate_data(space, label, data, bytes);
        });
    hooks::set_begin_deep_copy_callback([](Kokkos::Tools::SpaceHandle to, char const* to_label, void const* to_data,
                                           Kokkos::Tools::SpaceHandle from, char const* from_label,
                                           void const* from_data, std::uint64_t bytes) {
      ++seen.copies[bytes];
      if (before.begin_deep_copy != nullptr)
        before.begin_deep_copy(to, to_label, to_data, from, from_label, from_data, bytes);
    });
    hooks::set_begin_fence_callback([](char const* label, std::uint32_t, std::uint64_t*) { ++seen.fences[label]; });
    hooks::set_begin_parallel_for_callback([](char const* label, std::uint32_t device, std::uint64_t* kernel) {
      seen.launch(label);
      if (before.begin_parallel_for != nullptr) before.begin_parallel_for(label, device, kernel);
    });
    hooks::set_begin_parallel_reduce_callback([](char const* label, std::uint32_t device, std::uint64_t* kernel) {
      seen.launch(label);
      if (before.begin_parallel_reduce != nullptr) before.begin_parallel_reduce(label, device, kernel);
    });
    hooks::set_begin_parallel_scan_callback([](char const* label, std::uint32_t device, std::uint64_t* kernel) {
      seen.launch(label);
      if (before.begin_parallel_scan != nullptr) before.begin_parallel_scan(label, device, kernel);
    });
    // A library's launches are its own.
    hooks::set_push_region_callback([](char const* label) {
      seen.launch(label);
      ++seen.inside_gemm;
      if (before.push_region != nullptr) before.push_region(label);
    });
    hooks::set_pop_region_callback([] {
      --seen.inside_gemm;
      if (before.pop_region != nullptr) before.pop_region();
    });
  }
  ~Counting() { hooks::set_callbacks(before); }
};

struct Layout {
  int ranks, dp, tp, pp;
  char const* model;
  bool sequence = false;
};
constexpr Layout layouts[] = {{1, 1, 1, 1, "gpt2-tiny"},       {1, 1, 1, 1, "llama-tiny"},
                              {2, 2, 1, 1, "gpt2-tiny"},       {2, 1, 2, 1, "llama-tiny"},
                              {2, 1, 1, 2, "gpt2-tiny"},       {4, 2, 2, 1, "gpt2-tiny"},
                              {4, 1, 2, 2, "llama-tiny"},      {4, 1, 1, 4, "gpt2-tiny"},
                              {2, 1, 2, 1, "gpt2-tiny", true}, {4, 1, 2, 2, "llama-tiny", true}};
constexpr int steps = 3, microbatches = 4, micro = 2, seq_len = 32, layers = 4;

/// Of the kernels' two forms that for devices, on a GPU or here on the host (tests/unit/kernels).
bool const portable = p3d::kernels::have_device_form();

/// Where launches are counted, as the models are trained: Llama without dropout. With dropout it takes one more, and so
/// does GPT-2 on devices.
double dropout_of(Layout const& l) { return portable || std::string(l.model) != "gpt2-tiny" ? 0.0 : 0.1; }

/// The least fences of p3d's own that a rank can do with, each with its reason, by label. Messages come after kernels
/// by events.
std::map<std::string, int> const needed_fences{
    {"p3d::engine::step", steps},         // the step's time is the step's work
    {"p3d::kernels::take_sums", steps}};  // numbers that the host needs: the loss and the norm

/// What the rank waited for, against the least it must.
void check_fences() {
  std::map<std::string, int> found;
  for (auto const& [label, count] : seen.fences) {
    if (label.starts_with("Kokkos::parallel_reduce") || label.starts_with("Kokkos::deep_copy") ||
        label.starts_with("Kokkos::Impl::ViewCopy"))
      continue;  // Kokkos' own, which it reports from 3.5 on: the other side of the tokens' copies
    if (label.starts_with("Kokkos::Tools::")) continue;  // before this test's own hooks
    if (label == "p3d::linalg::gemm before" || label == "p3d::linalg::gemm after") continue;  // Kokkos-Kernels before 4
    found[label] = count;
  }
  EXPECT_EQ(found, needed_fences) << "fences by label";
}

p3d::config::Config input_of(Layout const& l, int number_of_layers, double dropout) {
  return p3d::test::config_of(
      p3d::test::joined(
          {p3d::test::mesh_keys(l.dp, l.tp, l.pp),
           {fmt::format("model.preset={}", l.model), fmt::format("model.seq_len={}", seq_len),
            fmt::format("model.layers={}", number_of_layers), fmt::format("parallel.sequence={}", l.sequence),
            fmt::format("batch.micro={}", micro), fmt::format("batch.microbatches={}", microbatches),
            "data.format=synthetic", "comm.bucket_mb=0.1", fmt::format("model.dropout={}", dropout)}}),
      l.ranks);
}

void check(Layout const& l, p3d::comm::Communicator& world) {
  auto const config = input_of(l, layers, 0.1);
  p3d::engine::Trainer<p3d::device::Fp32> trainer(config, world);
  trainer.step();  // the first step may make what is kept: scratch of threads, buffers of reductions
  auto const launched = p3d::device::launches;
  {
    Counting const counting;
    for (int i = 0; i < steps; ++i) trainer.step();
  }
  EXPECT_GT(seen.kernels, 0);
  EXPECT_EQ(seen.kernels, p3d::device::launches - launched)
      << "kernels that Kokkos saw, and those that went through device::launch_kernel";
  for (auto const& [label, count] : seen.allocations) {
    // Where messages are staged, the pool of staging buffers grows when more of them travel at once than ever before: a
    // matter of timing.
    if (!p3d::device::host_reaches_views && label == "p3d::device::pinned") continue;
    ADD_FAILURE() << count << " allocation(s) of '" << label << "'";
  }
  // The only copies bring a microbatch's tokens to the first stage and its targets to the last one.
  int const ends =
      l.pp == 1 ? 2 : (trainer.mesh().coordinate("pp") == 0 || trainer.mesh().coordinate("pp") == l.pp - 1 ? 1 : 0);
  std::map<std::uint64_t, int> expected;
  if (ends > 0) expected[micro * seq_len * sizeof(int)] = steps * microbatches * ends;
  // Under sequence parallelism the rank's rows go to their place among those that are gathered: inputs of
  // column-parallel linears twice, and gradients where dropout has not put them there (the embedding's); and from
  // there, the embedding's.
  if (l.sequence) {
    auto const hidden = static_cast<std::uint64_t>(config.model.hidden);
    int const rank = trainer.mesh().coordinate("pp"), first = rank == 0 ? 2 : 0, last = rank == l.pp - 1 ? 2 : 0;
    expected[micro * seq_len / 2 * hidden * sizeof(float)] = steps * microbatches * (4 * layers / l.pp + first + last);
  }
  // The loss and the norm, where the host does not reach them.
  if (!p3d::device::host_reaches_views) expected[2 * sizeof(double)] = steps;
  // (Where MPI cannot read and write Views, its messages are copied too; where memory is guarded, NaN into scratch.)
  if (p3d::device::host_reaches_views || (l.ranks == 1 && !p3d::device::memory_is_guarded)) {
    EXPECT_EQ(seen.copies, expected) << "copies by size in bytes";
  }
  check_fences();
}

TEST(Steady, NoAllocationAndOnlyKnownCopiesAndFences) {
  auto world = p3d::comm::Communicator::world();
  int checked = 0;
  for (auto const& l : layouts) {
    if (world.size() != l.ranks) continue;
    SCOPED_TRACE(fmt::format("dp {} tp {} pp {} {}", l.dp, l.tp, l.pp, l.model));
    check(l, world);
    ++checked;
  }
  EXPECT_GE(checked, 2) << "no layout for " << world.size() << " ranks";
}

/// Launches of a step, by label.
std::map<std::string, int> launches_of(Layout const& l, int number_of_layers, p3d::comm::Communicator& world) {
  p3d::engine::Trainer<p3d::device::Fp32> trainer(input_of(l, number_of_layers, dropout_of(l)), world);
  trainer.step();
  Counting const counting;
  trainer.step();
  return seen.launches;
}

/// Of a layer's forward and backward, a microbatch:
///   host                                                        GPT-2  Llama
///   GEMMs, of attention's forward and backward, activation         16     16
///   norms: 2 forward with a residual sum, 2 backward, 1 residual    5      5
///   gradients of vectors, of each half                              2      2
///   rotary positions, or a bias and dropout's backward              2      2
/// On devices vectors take one for both halves, after one for the biases', and attention, of each sample, 4 forward
/// (scores, softmax, values, result) and 8 backward (sums cleared, 2 of scores, gradients, 3 of sums, result), where
/// query heads share those of keys one more in each to pack them, and delta one for all samples.
/// The backward pass of a norm sums over rows in a launch of its own.
/// Under sequence parallelism a gradient behind dropout is overwritten before it is summed: one more in each half.
int most_launches(Layout const& l) {
  bool const llama = std::string(l.model) == "llama-tiny";
  int const attention = portable ? micro * (llama ? 14 : 12) + 1 : 2;
  return (portable ? 25 : 23) + attention + (l.sequence && dropout_of(l) > 0 ? 2 : 0);
}

// What a layer adds: two models that differ in layers alone. The optimizer has one for each bucket.
TEST(Launches, OfALayerAreFew) {
  auto world = p3d::comm::Communicator::world();
  for (auto const& l : layouts) {
    if (world.size() != l.ranks) continue;
    SCOPED_TRACE(fmt::format("dp {} tp {} pp {} {}", l.dp, l.tp, l.pp, l.model));
    constexpr int more = 4;
    auto const some = launches_of(l, layers, world);
    auto const all = launches_of(l, layers + more * l.pp, world);
    int added = 0;
    std::string list;
    for (auto const& [label, count] : all) {
      auto const before = some.find(label);
      int const extra = count - (before == some.end() ? 0 : before->second);
      if (label == "p3d::kernels::adamw") continue;
      added += extra;
      list += fmt::format("{:5} {:5}  {}\n", count, extra, label);
    }
    std::string const found = fmt::format("in a step, and of {} layers, by label:\n{}", more, list);
    EXPECT_LE(added, most_launches(l) * more * microbatches) << found;
    EXPECT_GE(added, 12 * more * microbatches) << "fewer than GEMMs: the hooks are deaf " << found;
    if (std::getenv("P3D_TEST_LIST_LAUNCHES") != nullptr) std::fputs(found.c_str(), stdout);
  }
}

/// A kernel. (nvcc takes no lambda of a device in the body of a TEST.)
struct Set {
  Kokkos::View<int*> to;
  int value;
  KOKKOS_INLINE_FUNCTION void operator()(int i) const { to(i) = value; }
};

// The test above is worth nothing where the hooks are deaf.
TEST(Hooks, ReportAllocationsAndCopies) {
  Counting const counting;
  Kokkos::View<int*> const device("p3d::test::view", 5);
  Kokkos::View<int*, Kokkos::HostSpace> const host("p3d::test::host", 5);
  Kokkos::deep_copy(device, host);
  EXPECT_EQ(seen.allocations["p3d::test::view"], 1);
  EXPECT_EQ(seen.copies[5 * sizeof(int)], 1);
  p3d::device::fence(p3d::device::ExecSpace(), "p3d::test::fence");
  EXPECT_EQ(seen.fences["p3d::test::fence"], 1);
  Kokkos::parallel_for("p3d::test::launch", 1, Set{device, 1});
  EXPECT_EQ(seen.launches["p3d::test::launch"], 1);
  auto const launched = p3d::device::launches;
  Set const body{device, 2};
  Kokkos::RangePolicy<p3d::device::ExecSpace> const once(0, 1);
  p3d::device::launch_kernel("p3d::kernels::through_the_door", once, body);
  EXPECT_EQ(seen.kernels, p3d::device::launches - launched);
  Kokkos::parallel_for("p3d::kernels::past_the_door", once, body);
  EXPECT_NE(seen.kernels, p3d::device::launches - launched) << "a launch that goes past the door is not seen";
}

}  // namespace
