// SPDX-License-Identifier: Apache-2.0
// Collectives and messages on views, written and read by kernels; directly, through host copies, and as device memory
// by a fake NCCL; and with kernels that end late.
#include <support/mpi_kokkos_main.hpp>
#include <support/errors.hpp>
#include <support/fake_nccl.hpp>

#include <p3d/collectives/collectives.hpp>
#include <p3d/device/environment.hpp>
#include <p3d/device/event.hpp>

#include <collectives/pinned.hpp>

#include <cstdint>
#include <string>
#include <vector>

using namespace p3d;
using namespace p3d::collectives;

namespace {

enum class Path { direct, staged, nccl, late, late_staged };

class Views : public ::testing::TestWithParam<Path> {
protected:
  void SetUp() override {
    if (GetParam() == Path::nccl && (!device::on_host() || device::memory_is_guarded))
      GTEST_SKIP() << "the fake NCCL works on memory of the host";
  }
  Views() {
    set_always_stage(GetParam() == Path::staged || GetParam() == Path::late_staged);
    device::set_late_events(GetParam() == Path::late || GetParam() == Path::late_staged ? 4 + me : 0);
    set_views_are_device(GetParam() == Path::nccl);
    if (GetParam() != Path::nccl) return;
    comm::detail::set_nccl_api(fake);
    comm::set_device_sums(std::make_shared<test::FakeSums>(fake));
    prepare(comm::AllReduce::mpi);
  }
  ~Views() override {
    world = Communicator();
    EXPECT_EQ(fake->failures(), std::vector<std::string>{});
    comm::detail::set_nccl_api({});
    comm::set_device_sums({});
    set_views_are_device(false);
    device::set_late_events(0);
    set_always_stage(false);
  }
  void prepare(comm::AllReduce algorithm) { world.prepare({algorithm, true, GetParam() == Path::nccl}); }
  int calls(std::string const& name) const {
    return static_cast<int>(std::count(fake->log.begin(), fake->log.end(), name));
  }
  Communicator of_the_fake = Communicator::world();
  std::shared_ptr<test::FakeNccl> fake = std::make_shared<test::FakeNccl>(of_the_fake.mpi());
  Communicator world = Communicator::world();
  ExecSpace exec;
  int const p = world.size();
  int const me = world.rank();
};
std::string name_of(::testing::TestParamInfo<Path> const& info) {
  char const* const names[] = {"direct", "staged", "nccl", "late", "late_staged"};
  return names[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Paths, Views,
                         ::testing::Values(Path::direct, Path::staged, Path::nccl, Path::late, Path::late_staged),
                         name_of);

/// element(i) = a + b i, by a kernel.
template <class T>
void fill(ExecSpace const& exec, View1<T> x, T a, T b) {
  Kokkos::parallel_for(
      "p3d::test::fill", Kokkos::RangePolicy<ExecSpace>(exec, 0, x.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) { x(i) = a + b * static_cast<T>(i); });
}

template <class T>
std::vector<T> on_host(View1<T> x) {
  std::vector<T> out(x.extent(0));
  Kokkos::View<T*, Kokkos::LayoutRight, device::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> host(out.data(),
                                                                                                         out.size());
  Kokkos::deep_copy(host, x);
  return out;
}

template <class T>
void check_all_reduce(ExecSpace const& exec, Communicator& world) {
  int const p = world.size();
  device::Owned1<T> owned("p3d::test::x", 17);
  View1<T> x = owned;
  fill<T>(exec, x, static_cast<T>(world.rank()), static_cast<T>(world.rank() + 1));
  all_reduce<T>(exec, world, x);
  auto const sum = on_host<T>(x);
  for (int i = 0; i < 17; ++i) EXPECT_EQ(sum[i], static_cast<T>(p * (p - 1) / 2 + i * p * (p + 1) / 2));
  fill<T>(exec, x, static_cast<T>(world.rank()), static_cast<T>(1));
  all_reduce<T>(exec, world, x, Reduction::max);
  auto const max = on_host<T>(x);
  for (int i = 0; i < 17; ++i) EXPECT_EQ(max[i], static_cast<T>(p - 1 + i));
}

TEST_P(Views, AllReduceOfEveryType) {
  check_all_reduce<float>(exec, world);
  check_all_reduce<double>(exec, world);
  check_all_reduce<std::int32_t>(exec, world);
  check_all_reduce<std::int64_t>(exec, world);
  check_all_reduce<std::uint64_t>(exec, world);
  EXPECT_EQ(calls("all_reduce"), GetParam() == Path::nccl && p > 1 ? 6 : 0) << "NCCL's sums: of whole numbers";
}

TEST_P(Views, SeveralReductionsAreUnderWayAtOnce) {
  std::vector<device::Owned1<double>> owned;
  std::vector<Request> requests;
  for (int k = 0; k < 3; ++k) {
    owned.emplace_back("p3d::test::x", 5 + k);
    fill<double>(exec, owned.back(), me + 10.0 * k, 1.0);
    requests.push_back(start_all_reduce<double>(exec, world, owned.back()));
    EXPECT_EQ(requests.back().active(), p > 1);
  }
  for (int k = 2; k >= 0; --k) requests[k].wait();
  for (int k = 0; k < 3; ++k) {
    auto const values = on_host<double>(owned[k]);
    for (int i = 0; i < 5 + k; ++i) EXPECT_EQ(values[i], p * (p - 1) / 2 + p * (10.0 * k + i));
  }
}

TEST_P(Views, HostNumbers) {
  EXPECT_EQ(all_reduce(world, 0.5 * me), 0.25 * p * (p - 1));
  EXPECT_EQ(all_reduce(world, std::int64_t{me}, Reduction::max), p - 1);
  EXPECT_EQ(all_reduce(world, std::int64_t{me} - 3, Reduction::min), -3);
}

TEST_P(Views, BroadcastFromEveryRoot) {
  device::Owned1<float> owned("p3d::test::x", 6);
  for (int root = 0; root < p; ++root) {
    fill<float>(exec, owned, 100.0f * me, 1.0f);
    start_broadcast<float>(exec, world, owned, root).wait();
    auto const values = on_host<float>(owned);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(values[i], 100.0f * root + i);
  }
}

TEST_P(Views, MatricesTravelRoundTheRing) {
  device::Owned2<double> out("p3d::test::out", 4, 3);
  device::Owned2<double> in("p3d::test::in", 4, 3);
  fill<double>(exec, device::flat<double>(out), 1000.0 * me, 1.0);
  fill<double>(exec, device::flat<double>(in), -1.0, 0.0);
  int const left = (me + p - 1) % p;
  {
    auto incoming = start_recv<double>(exec, world, in, left, 3);
    auto outgoing = start_send<double>(exec, world, device::View2<double const>(out), (me + 1) % p, 3);
  }  // both wait here
  auto const values = on_host<double>(device::flat<double>(in));
  for (int i = 0; i < 12; ++i) EXPECT_EQ(values[i], 1000.0 * left + i);
}

// Row r of a matrix goes to rank r, from all; ranks 1 and 2 leave each other out.
TEST_P(Views, RowsAreExchanged) {
  device::Owned2<float> out("p3d::test::out", p, 3), in("p3d::test::in", p, 3);
  auto const travels = [](int a, int b) { return a != b && a + b != 3; };
  for (int repeat = 0; repeat < 3; ++repeat) {
    fill<float>(exec, device::flat<float>(out), 1000.0f * me + 100.0f * repeat, 1.0f);
    fill<float>(exec, device::flat<float>(in), -1.0f, 0.0f);
    Exchange<float> messages(exec, world);
    for (int r = 0; r < p; ++r) {
      if (r == me) continue;
      messages.send(device::rows<float>(out, r, travels(me, r) ? r + 1 : r), r);
      messages.recv(device::rows<float>(in, r, travels(r, me) ? r + 1 : r), r);
    }
    messages.start(9).wait();
    auto const values = on_host<float>(device::flat<float>(in));
    for (int i = 0; i < 3 * p; ++i) {
      float const sent = 1000.0f * (i / 3) + 100.0f * repeat + 3 * me + i % 3;
      EXPECT_EQ(values[i], travels(me, i / 3) ? sent : -1.0f) << i;
    }
  }
  EXPECT_EQ(calls("begin"), GetParam() == Path::nccl && p > 1 ? 3 : 0);
  device::Owned2<float> m("p3d::test::m", 4, 6);
  Exchange<float> messages(exec, world);
  test::expect_error([&] { messages.send(device::columns<float>(m, 1, 3), 0); }, "messages are contiguous views");
}

TEST_P(Views, RowsOfAMatrixTravelColumnsAreRefused) {
  device::Owned2<double> m("p3d::test::m", 4, 6);
  auto const rows = device::rows<double>(m, 1, 3);
  fill<double>(exec, device::flat<double>(m), me, 0.0);
  int const left = (me + p - 1) % p;
  device::Owned2<double> in("p3d::test::in", 2, 6);
  auto incoming = start_recv<double>(exec, world, in, left, 4);
  start_send<double>(exec, world, device::View2<double const>(rows), (me + 1) % p, 4).wait();
  incoming.wait();
  EXPECT_EQ(on_host<double>(device::flat<double>(in)), std::vector<double>(12, left));
  auto const columns = device::columns<double>(m, 1, 3);
  test::expect_error([&] { start_recv<double>(exec, world, columns, left, 5); }, "messages are contiguous views");
}

template <class T>
void check_float16(ExecSpace const& exec, Communicator& world) {
  int const p = world.size(), me = world.rank(), left = (me + p - 1) % p;
  device::Owned2<T> out("p3d::test::out", 5, 4), in("p3d::test::in", 5, 4);
  auto const values = [](device::Owned2<T> const& m) {
    std::vector<int> numbers;
    for (T const x : on_host<T>(device::flat<T>(m))) numbers.push_back(static_cast<int>(static_cast<float>(x)));
    return numbers;
  };
  auto const fill_with = [&](device::Owned2<T> const& m, int number) {
    Kokkos::deep_copy(exec, m, T(static_cast<float>(number)));
  };
  fill_with(out, me + 1);
  {
    auto incoming = start_recv<T>(exec, world, in, left, 6);
    auto outgoing = start_send<T>(exec, world, device::View2<T const>(out), (me + 1) % p, 6);
  }
  EXPECT_EQ(values(in), std::vector<int>(20, left + 1));
  world.reset_accounting();
  all_reduce<T>(exec, world, device::flat<T>(out));
  EXPECT_EQ(values(out), std::vector<int>(20, p * (p + 1) / 2));
  EXPECT_EQ(world.accounting().bytes, p == 1 ? 0 : 20 * 2);
  fill_with(out, me + 1);
  all_reduce<T>(exec, world, device::flat<T>(out), Reduction::max);
  EXPECT_EQ(values(out), std::vector<int>(20, p));
  fill_with(out, me + 1);
  start_broadcast<T>(exec, world, device::flat<T>(out), p - 1).wait();
  EXPECT_EQ(values(out), std::vector<int>(20, p));
}

TEST_P(Views, Of16Bits) {
  comm::open_node_memory();
  for (auto const algorithm : {comm::AllReduce::shared, comm::AllReduce::ring, comm::AllReduce::tree}) {
    prepare(algorithm);
    check_float16<device::bfloat16>(exec, world);
    check_float16<device::float16>(exec, world);
  }
}

/// Shares that grow with the rank; the first is empty, and so is what lies before and after all of them.
std::vector<std::int64_t> growing(int p, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> bounds;
  for (int r = 0; r <= p; ++r) bounds.push_back(begin + (end - begin) * r * (r - (r == p ? 0 : 1)) / (p * p));
  return bounds;
}

template <class T>
void check_shares(ExecSpace const& exec, Communicator& world) {
  int const p = world.size(), me = world.rank();
  auto const bounds = growing(p, 2, 41);
  auto const begin = bounds[static_cast<std::size_t>(me)], end = bounds[static_cast<std::size_t>(me) + 1];
  device::Owned1<T> owned("p3d::test::x", 43);
  View1<T> x = owned;
  auto const reset = [&] {
    Kokkos::parallel_for(
        "p3d::test::fill", Kokkos::RangePolicy<ExecSpace>(exec, 0, 43),
        KOKKOS_LAMBDA(std::int64_t i) { x(i) = T(static_cast<float>(me + i)); });
  };
  auto const number = [](T value) { return static_cast<double>(static_cast<float>(value)); };
  for (auto const op : {Reduction::sum, Reduction::max}) {
    reset();
    start_reduce_scatter<T>(exec, world, x, bounds, op).wait();
    auto const reduced = on_host<T>(x);
    auto const expected = [&](std::int64_t i) {
      return p == 1                 ? static_cast<double>(i)
             : op == Reduction::sum ? p * (p - 1) / 2 + p * static_cast<double>(i)
                                    : static_cast<double>(p - 1 + i);
    };
    for (auto i = begin; i < end; ++i) EXPECT_EQ(number(reduced[static_cast<std::size_t>(i)]), expected(i)) << i;
    start_all_gather<T>(exec, world, x, bounds).wait();
    auto const gathered = on_host<T>(x);
    for (std::int64_t i = 0; i < 43; ++i) {
      bool const inside = i >= 2 && i < 41;
      EXPECT_EQ(number(gathered[static_cast<std::size_t>(i)]), inside ? expected(i) : static_cast<double>(me + i)) << i;
    }
  }
}

TEST_P(Views, SharesOfEveryType) {
  comm::open_node_memory();
  for (auto const algorithm : {comm::AllReduce::mpi, comm::AllReduce::shared, comm::AllReduce::ring}) {
    prepare(algorithm);
    check_shares<float>(exec, world);
    check_shares<double>(exec, world);
    check_shares<std::int32_t>(exec, world);
    check_shares<std::int64_t>(exec, world);
    check_shares<std::uint64_t>(exec, world);
    if (algorithm == comm::AllReduce::mpi && p > 1 && GetParam() != Path::nccl) continue;
    check_shares<device::bfloat16>(exec, world);
    check_shares<device::float16>(exec, world);
  }
}

TEST_P(Views, SharesOfBytes) {
  auto const bounds = growing(p, 0, 100);
  device::Owned1<std::byte> x("p3d::test::x", 100);
  Kokkos::deep_copy(exec, x, static_cast<std::byte>(me + 1));
  start_all_gather<std::byte>(exec, world, x, bounds).wait();
  auto const bytes = on_host<std::byte>(x);
  for (int r = 0; r < p; ++r) {
    for (auto i = bounds[static_cast<std::size_t>(r)]; i < bounds[static_cast<std::size_t>(r) + 1]; ++i)
      EXPECT_EQ(bytes[static_cast<std::size_t>(i)], static_cast<std::byte>(r + 1)) << i;
  }
}

// The halves of one buffer under way while those of another are, all on views that kernels write just before.
TEST_P(Views, HalvesOfSeveralBuffersAtOnce) {
  constexpr std::int64_t n = 1001;
  auto const bounds = growing(p, 0, n);
  std::vector<device::Owned1<double>> owned;
  std::vector<Request> requests;
  for (int k = 0; k < 3; ++k) {
    owned.emplace_back("p3d::test::x", n);
    fill<double>(exec, owned.back(), me + 10.0 * k, 1.0);
    requests.push_back(start_reduce_scatter<double>(exec, world, owned.back(), bounds));
  }
  std::vector<Request> gathers;
  for (std::size_t k = 0; k < 3; ++k) {
    requests[k].wait();
    gathers.push_back(start_all_gather<double>(exec, world, owned[k], bounds));
  }
  wait_all(gathers);
  for (int k = 0; k < 3; ++k) {
    auto const values = on_host<double>(owned[static_cast<std::size_t>(k)]);
    for (int i = 0; i < n; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], p * (p - 1) / 2 + p * (10.0 * k + i));
  }
}

TEST_P(Views, SharesOutsideAViewAreRefused) {
  device::Owned1<float> x("p3d::test::x", 10);
  auto const refused = [&](std::vector<std::int64_t> const& bounds, char const* words) {
    test::expect_error([&] { start_reduce_scatter<float>(exec, world, x, bounds); }, words);
    test::expect_error([&] { start_all_gather<float>(exec, world, x, bounds); }, words);
  };
  refused(growing(p, 0, 11), "shares follow each other inside a view");
  refused(growing(p + 1, 0, 10), "every rank has one share of a view");
}

#if !defined(KOKKOS_ENABLE_CUDA) && !defined(KOKKOS_ENABLE_HIP)

// What a kernel writes after an operation was started, but before its event, is what travels.
TEST(LateKernels, AreWaitedForByTheOperation) {
  if (stages()) GTEST_SKIP() << "what goes through the host is copied when an operation starts";
  auto world = Communicator::world();
  int const p = world.size(), me = world.rank();
  ExecSpace const exec;
  device::Owned1<double> x("p3d::test::x", 7), y("p3d::test::y", 7);
  device::Owned2<double> out("p3d::test::out", 2, 3), in("p3d::test::in", 2, 3);
  fill<double>(exec, x, -1.0, 0.0);
  fill<double>(exec, y, -1.0, 0.0);
  fill<double>(exec, device::flat<double>(out), -1.0, 0.0);
  device::set_late_events(1000);
  auto sum = start_all_reduce<double>(exec, world, x);
  auto spread = start_broadcast<double>(exec, world, y, 0);
  auto incoming = start_recv<double>(exec, world, in, (me + p - 1) % p, 3);
  auto outgoing = start_send<double>(exec, world, device::View2<double const>(out), (me + 1) % p, 3);
  fill<double>(exec, x, me, 0.0);
  fill<double>(exec, y, 5.0 + me, 0.0);
  fill<double>(exec, device::flat<double>(out), 10.0 * me, 0.0);
  device::set_late_events(0);
  outgoing.wait();
  incoming.wait();
  spread.wait();
  sum.wait();
  EXPECT_EQ(on_host<double>(x), std::vector<double>(7, p == 1 ? 0.0 : p * (p - 1) / 2));
  EXPECT_EQ(on_host<double>(y), std::vector<double>(7, 5.0));
  EXPECT_EQ(on_host<double>(device::flat<double>(in)), std::vector<double>(6, 10.0 * ((me + p - 1) % p)));
}

// A block that the device still reads is not given to the next message.
TEST(LateKernels, KeepTheirBlockFromThePool) {
  auto world = Communicator::world();
  if (world.size() == 1) GTEST_SKIP() << "nothing travels";
  constexpr std::int64_t n = 1 << 17;  // of a size that only this test has
  ExecSpace const exec;
  device::Owned1<double> x("p3d::test::x", n);
  auto const* const block = detail::pinned(n * sizeof(double)).get();  // back in the pool
  set_always_stage(true);
  device::set_late_events(3);
  all_reduce<double>(exec, world, x);  // brought back by a copy whose event has been asked for once
  device::set_late_events(0);
  set_always_stage(false);
  auto const second = detail::pinned(n * sizeof(double));  // asks again
  EXPECT_NE(second.get(), block);
  auto const third = detail::pinned(n * sizeof(double));
  EXPECT_EQ(third.get(), block) << "reached now";
}

#endif

TEST(OneRank, CostsNothing) {
  auto self = Communicator::self();
  ExecSpace exec;
  device::Owned1<float> x("p3d::test::x", 3);
  EXPECT_FALSE(start_all_reduce<float>(exec, self, x).active());
  EXPECT_FALSE(start_broadcast<float>(exec, self, x, 0).active());
  std::vector<std::int64_t> const bounds{0, 3};
  EXPECT_FALSE(start_reduce_scatter<float>(exec, self, x, bounds).active());
  EXPECT_FALSE(start_all_gather<float>(exec, self, x, bounds).active());
  EXPECT_EQ(self.accounting().operations, 0);
}

}  // namespace
