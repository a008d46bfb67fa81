// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most: the model's GEMMs (through p3d's linalg,
// the quicker of the BLAS and oneDNN, and through the BLAS alone),
// memory bandwidth, and messages on each axis of the mesh. All ranks work at the same time; speeds are per rank.
//
//   mpiexec -n 4 bench_ceilings input.toml [key=value ...] > ceilings.csv

#include "bench.hpp"

#include <p3d/collectives/collectives.hpp>
#include <p3d/comm/mesh.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/report/ceiling.hpp>
#include <p3d/report/gemm_trial.hpp>
#include <p3d/run/input.hpp>

extern "C" void sgemm_(char const*, char const*, int const*, int const*, int const*, float const*, float const*,
                       int const*, float const*, int const*, float const*, float*, int const*);

namespace {

using namespace p3d;
using linalg::Op;

constexpr int rounds = 9;

double mean_over_ranks(comm::Communicator& world, double x) { return collectives::all_reduce(world, x) / world.size(); }

/// The same product by the BLAS itself. It sees columns where we have rows: C^T = op(B)^T op(A)^T.
void raw_product(report::Product const& p, float const* a, float const* b, float* c) {
  int const m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  float const one = 1.0f, beta = p.adds ? 1.0f : 0.0f;
  char const ta = static_cast<char>(p.op_a), tb = static_cast<char>(p.op_b);
  int const lda = p.op_a == Op::none ? k : m, ldb = p.op_b == Op::none ? n : k;
  sgemm_(&tb, &ta, &n, &m, &k, &one, b, &ldb, a, &lda, &beta, c, &n);
}

void bench_products(config::Config const& c, comm::Communicator& world) {
  report::CeilingMeter<device::Fp32> const meter(report::model_products(c), world);
  constexpr bool host = Kokkos::SpaceAccessibility<device::HostSpace, device::MemSpace>::accessible;
  std::vector<double> ours, raw;
  for (auto const& p : meter.products()) {
    auto const a = device::large_array<float>("p3d::bench::A", host ? p.m * p.k : 0);
    auto const b = device::large_array<float>("p3d::bench::B", host ? p.k * p.n : 0);
    auto const z = device::large_array<float>("p3d::bench::C", host ? p.m * p.n : 0);
    Kokkos::deep_copy(a, 0.5f);
    Kokkos::deep_copy(b, 0.25f);
    std::vector<bench::Case> all;
    for (auto const& library : report::gemm_libraries<device::Fp32>())
      all.push_back({[&meter, &p, library] {
        linalg::set_gemm_choice(library);
        meter.run(p);
      }});
    bench::Case alone{[&] { raw_product(p, a.data(), b.data(), z.data()); }};
    std::vector<bench::Case*> cases;
    for (auto& through_p3d : all) cases.push_back(&through_p3d);
    if (host) cases.push_back(&alone);
    bench::time_in_turn(cases, rounds, [&] { world.barrier().wait(); });
    double best = mean_over_ranks(world, all.front().best());
    for (std::size_t i = 1; i < all.size(); ++i) best = std::min(best, mean_over_ranks(world, all[i].best()));
    ours.push_back(best);
    raw.push_back(host ? mean_over_ranks(world, alone.best()) : ours.back());
    if (world.rank() == 0)
      fmt::print("gemm,{},{}x{}x{},{:.6e},{:.2f},{:.2f},GFLOP/s\n", p.name, p.m, p.n, p.k, ours.back(),
                 p.flops() / ours.back() * 1e-9, p.flops() / raw.back() * 1e-9);
  }
  double seconds = 0.0;
  for (std::size_t i = 0; i < ours.size(); ++i)
    seconds += meter.products()[i].work / meter.products()[i].flops() * ours[i];
  if (world.rank() == 0)
    fmt::print("gemm,all of a microbatch,weighted,{:.6e},{:.2f},{:.2f},GFLOP/s\n", seconds, meter.speed(ours) * 1e-9,
               meter.speed(raw) * 1e-9);
}

void bench_memory(comm::Communicator& world) {
  bench::Triad const triad;
  bench::Case c{[&] { triad(); }};
  bench::time_in_turn({&c}, rounds, [&] { world.barrier().wait(); });
  double const mean = mean_over_ranks(world, c.best());
  if (world.rank() == 0)
    fmt::print("memory,triad,{},{:.6e},{:.2f},,GB/s\n", bench::Triad::elements, mean,
               bench::Triad::bytes() / mean * 1e-9);
}

/// Calls of `work`, the same number on every rank; mean over the ranks of the best round, in seconds.
double timed_together(comm::Communicator& world, std::int64_t bytes, std::function<void()> const& work) {
  int const repeat = bytes <= (1 << 16) ? 200 : 3;
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    world.barrier().wait();
    base::Stopwatch const watch;
    for (int i = 0; i < repeat; ++i) work();
    seconds.push_back(watch.seconds() / repeat);
  }
  return mean_over_ranks(world, bench::least(seconds));
}

/// Neighbours exchange messages, and the group sums, along each axis.
void bench_messages(config::Config const& c, comm::Communicator& world) {
  std::vector<comm::MeshAxis> const axes{{"tp", c.parallel.tp}, {"pp", c.parallel.pp}, {"dp", c.parallel.dp}};
  std::vector<comm::Mesh::Names> lines;
  for (auto const& axis : axes) lines.push_back({axis.name});
  comm::Mesh mesh(world, comm::plain_shape(axes), lines);
  device::ExecSpace const exec;
  for (auto const& axis : axes) {
    auto& group = mesh.along(axis.name);
    if (axis.size == 1) continue;
    int const n = group.size(), next = (group.rank() + 1) % n, before = (group.rank() + n - 1) % n;
    for (std::int64_t bytes : {std::int64_t{8}, std::int64_t{1} << 16, std::int64_t{1} << 20, std::int64_t{1} << 24}) {
      device::Owned2<float> const out("p3d::bench::out", 1, bytes / 4), in("p3d::bench::in", 1, bytes / 4);
      double const exchange = timed_together(world, bytes, [&] {
        auto r = collectives::start_recv<float>(exec, group, in, before, 0);
        auto s = collectives::start_send<float>(exec, group, out, next, 0);
        r.wait();
        s.wait();
      });
      double const sum = timed_together(
          world, bytes, [&] { collectives::all_reduce<float>(exec, group, device::flat(device::View2<float>(out))); });
      if (world.rank() != 0) continue;
      auto const size = static_cast<double>(bytes);
      fmt::print("message,{} neighbour,{},{:.6e},{:.3f},,GB/s\n", axis.name, bytes, exchange, size / exchange * 1e-9);
      fmt::print("message,{} all-reduce,{},{:.6e},{:.3f},,GB/s\n", axis.name, bytes, sum, size / sum * 1e-9);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::Setup setup(argc, argv);
  auto const config = bench::read_input(setup.world, argc, argv);
  if (!config) return 2;
  bench::print_stamp(setup.world, "p3d ceilings");
  if (setup.world.rank() == 0) fmt::print("kind,name,size,seconds,p3d,raw,unit\n");
  bench_products(*config, setup.world);
  bench_memory(setup.world);
  bench_messages(*config, setup.world);
}
