// SPDX-License-Identifier: Apache-2.0
// The measurements of `p3d plan calibrate`. Each is repeated, and its median counts: a machine that others use, too,
// has slow moments, and a step has them as well. Operands of GEMMs rotate through memory that no cache holds, as those
// of a step do.
#include <p3d/run/machine_trial.hpp>

#include "run/gpu_aware.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/median.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/collectives/collectives.hpp>
#include <p3d/comm/agree.hpp>
#include <p3d/comm/wait.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/guard.hpp>
#include <p3d/device/memory.hpp>
#include <p3d/engine/backend.hpp>
#include <p3d/engine/memory_limits.hpp>
#include <p3d/engine/precision.hpp>
#include <p3d/kernels/elementwise.hpp>
#include <p3d/kernels/norm.hpp>
#include <p3d/kernels/routing.hpp>
#include <p3d/linalg/blas_threads.hpp>
#include <p3d/linalg/gemm.hpp>
#include <p3d/report/attention_trial.hpp>
#include <p3d/report/gemm_trial.hpp>
#include <p3d/report/placement.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace p3d::run {
namespace {

using device::ExecSpace;
using plan::GemmSample;

constexpr int rounds = 5;
constexpr double least_seconds = 4e-3;  ///< the least time of one timing: shorter work is repeated
constexpr std::int64_t pool_bytes = std::int64_t{128} << 20;
constexpr char const* where = "p3d plan calibrate";
std::string const label = "p3d::run::machine_trial";

/// Lets waits of a rank without work sleep while the object lives: one that looks often would take a part of the cores
/// that are measured.
class SleepingWaits {
public:
  SleepingWaits() : before_(comm::wait_policy()) {
    auto policy = before_;
    policy.spins = policy.yields = 0;
    policy.sleep_min_us = 1000;
    policy.sleep_max_us = policy.woken_max_us = 20000;
    comm::set_wait_policy(policy);
  }
  ~SleepingWaits() { comm::set_wait_policy(before_); }
  SleepingWaits(SleepingWaits const&) = delete;
  SleepingWaits& operator=(SleepingWaits const&) = delete;

private:
  comm::WaitPolicy before_;
};

/// Times work that ranks do together: as many on a node as it has cores. The others wait, since a rank that shares its
/// with another one would be timed in its turn, or out of it. They take part in no timing, only in what it has found.
class Timer {
public:
  explicit Timer(comm::Communicator& world)
      : world_(&world), workers_(world.split(works() ? 0 : -1, world.rank(), "timed-ranks")) {}
  static bool works() { return !device::on_host() || comm::node_share().rank < comm::node_share().cores; }

  /// The mean over the working ranks of one timing of `work`, per call; 0 on the others. With `all`, all ranks work.
  /// Collective over the ranks that work.
  double once(std::int64_t calls, std::function<void()> const& work, bool all = false) {
    if (!all && !works()) return 0;
    auto& group = all ? *world_ : workers_;
    group.barrier().wait();
    base::Stopwatch const watch;
    for (std::int64_t i = 0; i < calls; ++i) work();
    device::fence(ExecSpace(), "p3d::run::machine_trial");
    return collectives::all_reduce(group, watch.seconds()) / group.size() / static_cast<double>(calls);
  }
  /// The seconds of a call of `work`: the median of some timings that are long enough. Collective over all ranks.
  double operator()(std::function<void()> const& work, bool all = false) {
    world_->barrier().wait();  // nobody prepares data any more
    once(1, work, all);        // warms up
    auto const calls = std::clamp(std::ceil(least_seconds / std::max(once(1, work, all), 1e-9)), 1.0, 1e5);
    std::vector<double> seconds;
    for (int r = 0; r < rounds; ++r) seconds.push_back(once(static_cast<std::int64_t>(calls), work, all));
    return collectives::all_reduce(*world_, base::median(std::move(seconds)), comm::Reduction::max);
  }

private:
  comm::Communicator* world_;
  comm::Communicator workers_;  ///< invalid on ranks that only wait
};

/// Memory whose parts are given out in turn, so that the next operand does not lie in a cache.
template <class T>
class Pool {
public:
  explicit Pool(std::int64_t least)
      : memory_(device::large_array<T>(label, std::max<std::int64_t>(least, pool_bytes / sizeof(T)))) {}
  device::View2<T> matrix(std::int64_t rows, std::int64_t columns) {
    constexpr std::int64_t line = 64;
    auto const size = rows * columns, whole = static_cast<std::int64_t>(memory_.extent(0));
    if (next_ + size > whole) next_ = 0;
    auto* const data = memory_.data() + next_;
    next_ += (size + line - 1) / line * line;
    return device::View2<T>(data, rows, columns);
  }
  device::Owned1<T> const& memory() const { return memory_; }

private:
  device::Owned1<T> memory_;
  std::int64_t next_ = 0;
};

/// The GEMMs of one policy.
template <class P>
class GemmTimer {
public:
  using S = typename P::Storage;
  using Wide = typename P::Gradient;

  GemmTimer(Timer& timer, std::int64_t most) : timer_(&timer), a_(most), b_(most), c_(most) {
    kernels::fill<S>({}, a_.memory(), S(0.5));
    kernels::fill<S>({}, b_.memory(), S(0.25));
  }
  /// The GEMM of a pass: outputs [m, n] of inputs [m, k] and weights [n, k], or gradients [m, n] of weights.
  void run(GemmSample const& s) {
    using linalg::Op;
    ExecSpace const exec;
    auto const m = static_cast<std::int64_t>(s.m), n = static_cast<std::int64_t>(s.n),
               k = static_cast<std::int64_t>(s.k);
    auto const c = c_.matrix(m, n);
    if (s.gradient)
      gemm(exec, Op::transpose, Op::none, a_.matrix(k, m), b_.matrix(k, n), Wide(1), c);
    else
      gemm(exec, Op::none, Op::transpose, a_.matrix(m, k), b_.matrix(n, k), Wide(0),
           device::View2<S>(reinterpret_cast<S*>(c.data()), m, n));
  }
  double seconds(GemmSample const& s) {
    return (*timer_)([&] { run(s); });
  }

private:
  template <class C>
  static void gemm(ExecSpace const& exec, linalg::Op op_a, linalg::Op op_b, device::View2<S const> a,
                   device::View2<S const> b, Wide beta, device::View2<C> c) {
    if constexpr (std::is_floating_point_v<S>)
      linalg::gemm<S>(exec, op_a, op_b, S(1), a, b, beta, c);
    else
      linalg::gemm<S, C>(exec, op_a, op_b, 1.0F, a, b, static_cast<float>(beta), c);
  }
  Timer* timer_;
  Pool<S> a_, b_;
  Pool<Wide> c_;
};

/// The side of a square GEMM that takes some 30 ms: 256 doubled, up to 8192. The same on all ranks.
template <class P>
std::int64_t side_of(Timer& timer) {
  constexpr double wanted = 0.03;
  for (std::int64_t side = 256;; side *= 2) {
    double const s = static_cast<double>(side);
    GemmTimer<P> gemm(timer, side * side);
    if (side >= 8192 || gemm.seconds({s, s, s}) * 8 > 4 * wanted) return side;
  }
}

template <class P>
plan::GemmSamples time_gemms(config::Precision precision, bool sizes, Timer& timer) {
  auto const side = side_of<P>(timer);
  GemmTimer<P> gemm(timer, side * side + side);
  plan::GemmSamples out{.precision = precision, .even = {}, .unaligned = {}, .odd = {}};
  for (auto shape : trial_shapes(side)) {
    for (bool gradient : {false, true}) {
      shape.gradient = gradient;
      shape.seconds = gemm.seconds(shape);
      out.even.push_back(shape);
    }
  }
  if (!sizes) return out;
  // A little more or less than sizes that the formula knows.
  double const s = static_cast<double>(side) / 2;
  for (double by : {-2.0, 2.0}) out.unaligned.push_back({s, s + by, s + by});
  for (double by : {-1.0, 1.0}) out.odd.push_back({s, s + by, s + by});
  for (auto* list : {&out.unaligned, &out.odd})
    for (auto& shape : *list) shape.seconds = gemm.seconds(shape);
  return out;
}

/// Normal random numbers, the same 2^20 again and again: exponentials of equal numbers would take other times.
template <class S>
void draw(device::Owned1<S> const& x) {
  constexpr std::int64_t each = std::int64_t{1} << 20;
  using T = kernels::Acc<S>;
  ExecSpace const exec;
  device::Owned2<T> const wide(label, 1, each);
  kernels::fill_normal<T>(exec, base::random_key(1, "machine_trial"), 1.0, 0, 0, each, 1, wide);
  auto const whole = static_cast<std::int64_t>(x.extent(0));
  for (std::int64_t begin = 0; begin < whole; begin += each) {
    auto const n = std::min(each, whole - begin);
    device::View1<T const> const from(wide.data(), n);
    device::View1<S> const to(x.data() + begin, n);
    if constexpr (std::is_same_v<S, T>)
      Kokkos::deep_copy(exec, to, from);
    else
      kernels::convert<T, S>(exec, from, to);
  }
}

/// The rows of one sample.
kernels::TokenRows tokens_of(std::int64_t rows) { return {.samples = 1, .seq_len = rows}; }

/// Kernels that wait for memory.
template <class P>
void time_memory(Timer& timer, plan::MachineSamples& out) {
  using S = typename P::Storage;
  using A = typename P::Accumulate;
  constexpr std::int64_t width = 1024;
  bool const host = device::on_host();
  ExecSpace const exec;
  {
    std::int64_t const n = (host ? 16 : 64) << 20;
    Pool<A> x(n), y(n);
    double const bytes = 3.0 * static_cast<double>(n) * sizeof(A);
    device::View1<A> const to(y.memory().data(), n);
    out.stream = {bytes, bytes / 3,
                  timer([&] { kernels::add<A>(exec, device::View1<A const>(x.memory().data(), n), to); })};
  }
  std::int64_t const most = host ? 2048 : 32768;
  Pool<S> x(most * width), y(most * width), z(most * width);
  draw<S>(x.memory());
  device::Owned1<S> const weight(label, width);
  device::Owned1<A> const mean(label, most), rstd(label, most);
  for (auto const rows : {most / 16, most / 4, most}) {
    double const each = static_cast<double>(rows * width) * sizeof(S);
    device::View1<A> const means(mean.data(), rows), rstds(rstd.data(), rows);
    // Reads and writes: 2 of the norm, 2 of the activation, 3 of the residual sum, 3 of the activation's backward.
    out.layer.push_back({10 * each, each, timer([&] {
                           device::View2<S const> const in = x.matrix(rows, width);
                           auto const half = y.matrix(rows, width), to = z.matrix(rows, width);
                           kernels::layernorm_forward<S>(exec, in, device::View1<S const>(weight),
                                                         device::View1<S const>(weight), 1e-5, half, means, rstds);
                           kernels::gelu_forward<S>(exec, device::View2<S const>(half), to);
                           kernels::residual_forward<S>(exec, tokens_of(rows), in, device::View2<S const>(to), {}, {},
                                                        half);
                           kernels::gelu_backward<S>(exec, in, device::View2<S const>(half), to);
                         })});
  }
  // Rows in an order that no cache foresees, two experts a token: sorted, and summed back.
  std::int64_t const tokens = most / 2, slots = 2 * tokens;
  device::Owned1<int> const order(label, slots);
  device::Owned2<int> const place(label, tokens, 2);
  auto const order_here = device::host_mirror(order);
  auto const place_here = device::host_mirror(place);
  for (std::int64_t i = 0; i < slots; ++i) {
    auto const slot = static_cast<int>(i * 7919 % slots);  // a prime that is no divisor of a power of two
    order_here(i) = slot;
    place_here(slot / 2, slot % 2) = static_cast<int>(i);
  }
  Kokkos::deep_copy(exec, order, order_here);
  Kokkos::deep_copy(exec, place, place_here);
  device::View2<S const> const in(x.memory().data(), tokens, width);
  device::View2<S> const sorted(y.memory().data(), slots, width), back(z.memory().data(), tokens, width);
  double const row = static_cast<double>(slots * width) * sizeof(S);
  out.permute = {4 * row, row, timer([&] {
                   kernels::permute_rows<S>(exec, in, device::View1<int const>(order), 2, sorted);
                   kernels::permute_rows_backward<S>(exec, device::View2<S const>(sorted),
                                                     device::View2<int const>(place), kernels::Store::overwrite, back);
                 })};
  device::Owned1<S> const little(label, 16);
  out.launch = timer([&] { kernels::fill<S>(exec, device::View1<S>(little), S(0)); });
}

template <class P>
void time_attention(config::Precision precision, comm::Communicator& world, Timer& timer, plan::MachineSamples& out) {
  config::Config c;
  c.run.precision = precision;
  c.model.hidden = 1024, c.model.heads = c.model.kv_heads = 16;
  c.model.seq_len = device::on_host() ? 512 : 4096;
  report::choose_attention<P>(c, world);
  out.attention_seconds = timer(report::attention_work<P>(c));
  auto const tokens = static_cast<double>(c.model.seq_len);
  out.attention_operations = 4 * tokens * tokens * static_cast<double>(c.model.hidden) / 2;
}

/// MachineSamples::jitter and disturbance, of half a second of work, about a step. The work is GEMMs of side s.
template <class P>
void time_jitter(comm::Communicator& world, Timer& timer, double s, plan::MachineSamples& out) {
  constexpr int times = 8;
  GemmTimer<P> gemm(timer, static_cast<std::int64_t>(s * s));
  auto const calls = std::clamp(std::ceil(0.5 / gemm.seconds({s, s, s})), 1.0, 1e4);
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    double mine = 0;
    timer.once(1, [&] {
      base::Stopwatch const watch;
      for (double call = 0; call < calls; ++call) gemm.run({s, s, s});
      device::fence(ExecSpace(), "p3d::run::machine_trial");
      mine = watch.seconds();
    });
    seconds.push_back(mine);
  }
  double const middle = base::median(seconds);
  double sum = 0, squares = 0;
  std::vector<double> apart;
  for (double t : seconds) {
    sum += t, squares += t * t;
    apart.push_back(std::abs(t - middle));
  }
  double const mean = sum / times;
  constexpr double normal = 1.4826;  // standard deviation over median distance, of a normal distribution
  double const usual = middle > 0 ? normal * base::median(apart) / middle : 0;
  double const all = mean > 0 ? std::sqrt(std::max(0.0, squares / times - mean * mean)) / mean : 0;
  out.jitter = collectives::all_reduce(world, usual, comm::Reduction::max);
  out.disturbance = collectives::all_reduce(world, all, comm::Reduction::max);
}

/// The node of each rank.
struct Nodes {
  std::int64_t ranks = 1;  ///< on each
  std::int64_t count = 1;
};

Nodes nodes_of(std::vector<report::RankPlacement> const& places) {
  auto const all = static_cast<std::int64_t>(places.size());
  std::int64_t first = 0;
  while (first < all && places[static_cast<std::size_t>(first)].host == places.front().host) ++first;
  for (std::int64_t r = 0; r < all; ++r) {
    auto const& host = places[static_cast<std::size_t>(r)].host;
    bool const starts = r % first == 0;
    bool const same = r > 0 && host == places[static_cast<std::size_t>(r - 1)].host;
    if (all % first != 0 || starts == same)
      base::refuse(
          "nodes with the same number of ranks, neighbouring ranks on one node",
          fmt::format("{} on {}, but rank {} on {}", base::counted(first, "rank"), places.front().host, r, host), where,
          "place the ranks by node: mpiexec --map-by slot, srun --distribution=block");
  }
  return {first, all / first};
}

/// Times sums and messages between the ranks of a group, while all other groups do the same.
plan::LevelSamples time_level(std::string name, std::int64_t size, comm::Communicator& group, Timer& timer) {
  plan::LevelSamples out{
      .name = std::move(name), .size = size, .ranks = group.size(), .all_reduce = {}, .messages = {}};
  ExecSpace const exec;
  constexpr std::int64_t most = std::int64_t{16} << 20;  // floats: 64 MiB
  Pool<float> memory(most), other(most);
  kernels::fill<float>(exec, memory.memory(), 0.0F);
  // Neighbours pair up; of an odd number the last one only waits.
  int const pair = group.rank() % 2 == 0 ? group.rank() + 1 : group.rank() - 1;
  for (std::int64_t n = 256; n <= most; n *= 5) {
    double const bytes = static_cast<double>(n) * sizeof(float);
    out.all_reduce.push_back(
        {bytes,
         timer([&] { collectives::all_reduce<float>(exec, group, device::View1<float>(memory.memory().data(), n)); },
               true)});
    // There and back: two messages.
    out.messages.push_back({bytes, timer(
                                       [&] {
                                         if (pair >= group.size()) return;
                                         device::View2<float> const out_view(memory.memory().data(), 1, n),
                                             in_view(other.memory().data(), 1, n);
                                         bool const first = group.rank() < pair;
                                         for (bool sends : {first, !first}) {
                                           auto request =
                                               sends ? collectives::start_send<float>(
                                                           exec, group, device::View2<float const>(out_view), pair, 0)
                                                     : collectives::start_recv<float>(exec, group, in_view, pair, 0);
                                           request.wait();
                                         }
                                       },
                                       true) /
                                       2});
  }
  return out;
}

/// The name of the processor: "AMD EPYC 7763 64-Core Processor".
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (auto const colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos)
      return line.substr(colon + 2);
  return "processor";
}

std::string device_name() {
  if (!device::on_host()) return device::gpu().name;
  auto const threads = device::host_threads();
  return fmt::format("{} of {}", base::counted(threads, "thread"), processor());
}

}  // namespace

std::vector<config::Precision> usual_precisions() {
  using config::Precision;
#if P3D_16BIT
  if (!device::on_host()) return {Precision::bf16, Precision::fp16, Precision::fp32, Precision::fp64};
  return {Precision::fp32, Precision::fp64, Precision::bf16, Precision::fp16};
#else
  return {Precision::fp32, Precision::fp64};
#endif
}

std::vector<GemmSample> trial_shapes(std::int64_t side) {
  auto const s = static_cast<double>(side);
  return {{s, s, s},
          {s, s, s / 4},
          {s, s / 4, s},
          {s / 4, s, s},
          {s / 4, s / 4, s},
          {s / 4, s, s / 4},
          {s, s / 4, s / 4},
          {s / 4, s / 4, s / 4},
          {s / 8, s / 2, s / 2},
          {s / 8, s / 2, s / 8},
          {s / 8, s / 8, s / 8},
          {s / 16, s / 16, s / 16}};
}

plan::MachineSamples try_machine(MachineTrialOptions const& options, comm::Communicator& world) {
  if (world.size() < 2)
    base::refuse("at least two ranks: the links between them are measured, too", "1 rank", where,
                 "start as many ranks on a node as runs will have: mpiexec -n 4 p3d plan calibrate");
  auto const blas_threads = linalg::set_blas_threads(device::host_threads());
  auto const places = report::gather_placements(report::this_placement(blas_threads), world);
  auto const nodes = nodes_of(places);
  auto const say = [&](std::string const& what) {
    if (options.progress) options.progress(what);
  };
  config::Config usual;
  linalg::set_gemm_choice(report::usual_gemms(usual, world));

  plan::MachineSamples out;
  out.host = device::on_host();
  out.name = options.name.empty() ? places.front().host : options.name;
  out.device = device_name();
  auto const node = comm::node_share();
  if (out.host) out.sharers = std::max(1.0, static_cast<double>(node.ranks) / node.cores);
  out.sharers = collectives::all_reduce(world, out.sharers, comm::Reduction::max);
  out.units = out.host ? 1 : std::max(1, ExecSpace().concurrency() / 2048);
  auto const memory = out.host ? static_cast<double>(engine::memory_limit().bytes) / node.ranks
                               : static_cast<double>(engine::gpu_room().total);
  out.memory = -collectives::all_reduce(world, -memory, comm::Reduction::max);
  Timer timer(world);
  std::optional<SleepingWaits> sleeping;
  if (!Timer::works()) sleeping.emplace();
  for (auto precision : options.precisions) {
    bool const first = precision == options.precisions.front();
    usual.run.precision = precision;
    say(fmt::format("GEMMs in {}", base::to_string(precision)));
    engine::with_policy(usual, [&]<class P>(P) {
      out.gemms.push_back(time_gemms<P>(precision, first, timer));
      if (!first) return;
      say("kernels that wait for memory");
      time_memory<P>(timer, out);
      say("attention");
      time_attention<P>(precision, world, timer, out);
      time_jitter<P>(world, timer, out.gemms.front().even.front().m, out);
    });
  }
  sleeping.reset();
  say("links");
  comm::open_node_memory();
  bool const nccl = engine::choose_nccl(usual, world);
  choose_message_path(usual, world);
  comm::AllReduceSettings const settings{usual.comm.allreduce, true, nccl};
  auto const here = world.rank();
  auto const level = [&](char const* name, std::int64_t size, int color) {
    auto group = world.split(color, here, name);
    group.prepare(settings);
    out.levels.push_back(time_level(name, size, group, timer));
  };
  auto const ranks = static_cast<int>(nodes.ranks);
  if (nodes.ranks > 1) level("node", nodes.ranks, here / ranks);
  if (nodes.count > 1) level("network", 0, here % ranks);
  return out;
}

}  // namespace p3d::run
