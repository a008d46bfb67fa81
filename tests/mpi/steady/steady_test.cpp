// The steady step: from the second step on Kokkos allocates nothing, and every copy and every fence is one that we know
// the reason of. Counted through Kokkos' own profiling hooks.

#include <p3d/collectives/collectives.hpp>
#include <p3d/config/parse.hpp>
#include <p3d/device/compat.hpp>
#include <p3d/device/view.hpp>
#include <p3d/engine/trainer.hpp>

#include <support/mpi_kokkos_main.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace {

namespace hooks = Kokkos::Tools::Experimental;

struct Events {
  std::map<std::string, int> allocations;  ///< by label
  std::map<std::uint64_t, int> copies;     ///< by size in bytes
  std::map<std::string, int> fences;       ///< by label
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
          ++seen.allocations[label];
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
  }
  ~Counting() { hooks::set_callbacks(before); }
};

/// Fences of p3d, each with its reason, and Kokkos' own inside the calls that we know.
bool known_fence(std::string const& label) {
  for (char const* part : {
           "p3d::collectives::",       // kernels end before MPI reads or writes their result
           "p3d::kernels::block_sum",  // a number that the host needs: loss, norm
           "p3d::engine::step",        // the step's time is the step's work
           "p3d::linalg::gemm",        // Kokkos-Kernels before 4 runs on the default instance only
           "Kokkos::parallel_reduce",  // the same number, Kokkos' side
           "Kokkos::deep_copy",        // tokens, see below
           "Kokkos::Impl::ViewCopy",
       })
    if (label.find(part) != std::string::npos) return true;
  return false;
}

struct Layout {
  int ranks, dp, tp, pp;
  char const* model;
};
void PrintTo(Layout const& l, std::ostream* out) {
  *out << fmt::format("dp {} tp {} pp {} {}", l.dp, l.tp, l.pp, l.model);
}

class Steady : public ::testing::TestWithParam<Layout> {};

TEST_P(Steady, NoAllocationAndOnlyKnownCopiesAndFences) {
  auto const l = GetParam();
  auto world = p3d::comm::Communicator::world();
  if (world.size() != l.ranks) GTEST_SKIP() << "for " << l.ranks << " ranks";
  constexpr int steps = 3, microbatches = 4, micro = 2, seq_len = 32;
  auto const input = p3d::config::parse_text(
      "", "steady", "",
      {fmt::format("model.preset={}", l.model), fmt::format("model.seq_len={}", seq_len), "model.layers=4",
       fmt::format("parallel.dp={}", l.dp), fmt::format("parallel.tp={}", l.tp), fmt::format("parallel.pp={}", l.pp),
       fmt::format("batch.micro={}", micro), fmt::format("batch.microbatches={}", microbatches),
       "data.format=synthetic", "comm.bucket_mb=0.1", "model.dropout=0.1"},
      l.ranks);
  ASSERT_TRUE(input.config) << p3d::config::format(input.faults);
  p3d::engine::Trainer<float> trainer(*input.config, world);
  trainer.step();  // the first step may make what is kept: scratch of threads, buffers of reductions
  {
    Counting const counting;
    for (int i = 0; i < steps; ++i) trainer.step();
  }
  for (auto const& [label, count] : seen.allocations) {
    // Where messages are staged, the pool of staging buffers grows when more of them travel at once than ever before: a
    // matter of timing.
    if (!p3d::device::host_reaches_views && label == "p3d::collectives::pinned") continue;
    ADD_FAILURE() << count << " allocation(s) of '" << label << "'";
  }
  // The only copies bring a microbatch's tokens to the first stage and its targets to the last one.
  int const ends =
      l.pp == 1 ? 2 : (trainer.mesh().coordinate("pp") == 0 || trainer.mesh().coordinate("pp") == l.pp - 1 ? 1 : 0);
  std::map<std::uint64_t, int> expected;
  if (ends > 0) expected[micro * seq_len * sizeof(int)] = steps * microbatches * ends;
  // (Where MPI cannot read and write Views, its messages are copied too.)
  if (p3d::device::host_reaches_views || l.ranks == 1) {
    EXPECT_EQ(seen.copies, expected) << "copies by size in bytes";
  }
  for (auto const& [label, count] : seen.fences)
    if (!known_fence(label)) ADD_FAILURE() << count << " fence(s) '" << label << "' without a reason";
}

INSTANTIATE_TEST_SUITE_P(Layouts, Steady,
                         ::testing::Values(Layout{1, 1, 1, 1, "gpt2-tiny"}, Layout{1, 1, 1, 1, "llama-tiny"},
                                           Layout{2, 2, 1, 1, "gpt2-tiny"}, Layout{2, 1, 2, 1, "llama-tiny"},
                                           Layout{2, 1, 1, 2, "gpt2-tiny"}, Layout{4, 2, 2, 1, "gpt2-tiny"},
                                           Layout{4, 1, 2, 2, "llama-tiny"}, Layout{4, 1, 1, 4, "gpt2-tiny"}));

// The test above is worth nothing where the hooks are deaf.
TEST(Hooks, ReportAllocationsAndCopies) {
  Counting const counting;
  Kokkos::View<int*> const device("p3d::test::view", 5);
  Kokkos::View<int*, Kokkos::HostSpace> const host("p3d::test::host", 5);
  Kokkos::deep_copy(device, host);
  EXPECT_EQ(seen.allocations["p3d::test::view"], 1);
  EXPECT_EQ(seen.copies[5 * sizeof(int)], 1);
#if KOKKOS_VERSION >= 30500  // fences carry labels, and all backends report them
  p3d::device::fence(p3d::device::ExecSpace(), "p3d::test::fence");
  EXPECT_EQ(seen.fences["p3d::test::fence"], 1);
#endif
}

}  // namespace
