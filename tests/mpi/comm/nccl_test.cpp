// SPDX-License-Identifier: Apache-2.0
// The engine of NCCL, against a fake one that is as strict: the results of each collective beside what they must be,
// order with the caller's stream, calls that stay open, errors, and the end.
#include <support/errors.hpp>
#include <support/fake_nccl.hpp>
#include <support/mpi_main.hpp>

#include <p3d/comm/nccl.hpp>
#include <p3d/comm/wait.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

using namespace p3d::comm;
using namespace p3d::test;

namespace {

using Bounds = std::vector<std::int64_t>;

/// Engines use the fake while it lives.
class Nccl : public ::testing::TestWithParam<int> {
protected:
  Nccl() : world(Communicator::world()), fake(std::make_shared<FakeNccl>(world.mpi())) {
    fake->calls_stay_open = GetParam();
    detail::set_nccl_api(fake);
    comm = Communicator::world();
    stream = fake->caller_stream();
  }
  ~Nccl() override {
    comm = Communicator();
    fake->free_stream(stream);
    EXPECT_EQ(fake->failures(), std::vector<std::string>{});
    EXPECT_EQ(fake->groups, 0);
    if (fake->aborts == 0) {  // a request that is given up keeps what it needs for ever
      EXPECT_EQ(fake->events, 0);
      EXPECT_EQ(fake->streams, 0);
    }
    detail::set_nccl_api({});
  }
  void prepare() { comm.prepare({.algorithm = AllReduce::mpi, .fixed_order = false, .nccl = true}); }
  Place here() const { return {Memory::device, stream}; }
  int calls(std::string const& name) const {
    return static_cast<int>(std::count(fake->log.begin(), fake->log.end(), name));
  }
  /// Writes values[i] = value(i) on the caller's stream, late.
  template <class T, class Value>
  void write_late(std::vector<T>& values, Value value) {
    fake->run_on(stream, 5, [&values, value] {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(value(static_cast<std::int64_t>(i)));
    });
  }

  Communicator world;  ///< carries the fake's messages
  std::shared_ptr<FakeNccl> fake;
  Communicator comm;
  FakeNccl::Stream stream = nullptr;
  int const p = world.size();
  int const me = world.rank();
};
INSTANTIATE_TEST_SUITE_P(Open, Nccl, ::testing::Values(0, 1, 3),
                         [](auto const& info) { return "calls_open_for_" + std::to_string(info.param) + "_looks"; });

double element(int rank, std::int64_t i) { return static_cast<double>((rank * 7 + i * 5) % 31); }
double expected(int p, std::int64_t i, Reduction op) {
  double value = element(0, i);
  for (int r = 1; r < p; ++r) {
    double const next = element(r, i);
    value = op == Reduction::sum ? value + next : op == Reduction::max ? std::max(value, next) : std::min(value, next);
  }
  return value;
}

TEST_P(Nccl, AllReducesWhatTheCallersStreamWrites) {
  prepare();
  for (auto const op : {Reduction::sum, Reduction::max, Reduction::min}) {
    std::vector<float> values(1003, -1.0F);
    write_late(values, [&](std::int64_t i) { return element(me, i); });
    comm.all_reduce(values.data(), std::ssize(values), Type::float32, op, here()).wait();
    for (int i = 0; p > 1 && i < 1003; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], expected(p, i, op)) << i;
  }
  EXPECT_EQ(calls("all_reduce"), p > 1 ? 3 : 0);
}

// Both against MPI's own, whose answers are exact for integers.
TEST_P(Nccl, GivesTheResultsOfMpi) {
  prepare();
  comm.reset_accounting();
  if (p == 1) GTEST_SKIP() << "nothing travels";
  Bounds even, growing;
  for (int r = 0; r <= p; ++r) {
    even.push_back(5 + 20 * r);
    growing.push_back(5 + 3 * r * (r / 2));
  }
  growing.back() += 11;
  for (auto const& bounds : {even, growing}) {
    auto const first = static_cast<std::size_t>(bounds[static_cast<std::size_t>(me)]);
    auto const last = static_cast<std::size_t>(bounds[static_cast<std::size_t>(me) + 1]);
    std::vector<std::int64_t> by_mpi(static_cast<std::size_t>(bounds.back()) + 4);
    for (std::size_t i = 0; i < by_mpi.size(); ++i)
      by_mpi[i] = static_cast<std::int64_t>(element(me, static_cast<std::int64_t>(i)));
    auto values = by_mpi;
    world.reduce_scatter(by_mpi.data(), bounds, Type::int64, Reduction::sum).wait();
    comm.reduce_scatter(values.data(), bounds, Type::int64, Reduction::sum, here()).wait();
    for (auto i = first; i < last; ++i) ASSERT_EQ(values[i], by_mpi[i]) << i;
    world.all_gather(by_mpi.data(), bounds, Type::int64).wait();
    comm.all_gather(values.data(), bounds, Type::int64, here()).wait();
    EXPECT_EQ(values, by_mpi);
  }
  EXPECT_EQ(calls("reduce_scatter"), 1) << "even shares";
  EXPECT_EQ(calls("all_gather"), 1) << "even shares";
  EXPECT_GT(calls("reduce"), 0) << "shares of different lengths";
  EXPECT_EQ(calls("begin"), 4) << "one group each";
  for (int root = 0; root < p; ++root) {
    std::vector<std::uint16_t> by_mpi(77, static_cast<std::uint16_t>(me)), values = by_mpi;
    world.broadcast(by_mpi.data(), 77, Float16Type::bfloat16, root).wait();
    comm.broadcast(values.data(), 77, Float16Type::bfloat16, root, here()).wait();
    EXPECT_EQ(values, by_mpi);
  }
  EXPECT_EQ(comm.accounting().sent, world.accounting().sent);
}

TEST_P(Nccl, ExchangesMessagesOfAllInOneGroup) {
  prepare();
  // Rank r sends r + 2 s elements to s; none where that is a multiple of 4.
  auto const length = [](int from, int to) {
    std::int64_t const n = from + 2 * to;
    return n % 4 == 0 ? 0 : n;
  };
  for (auto const place : {here(), Place(Memory::host)}) {
    std::vector<std::vector<float>> out(static_cast<std::size_t>(p)), in = out;
    std::vector<Communicator::Part> sends, receives;
    for (int r = 0; r < p; ++r) {
      auto const i = static_cast<std::size_t>(r);
      out[i].assign(static_cast<std::size_t>(length(me, r)), static_cast<float>(100 * me + r));
      in[i].assign(static_cast<std::size_t>(length(r, me)), -1.0F);
      if (r == me) continue;
      sends.push_back({out[i].data(), std::ssize(out[i]), r});
      receives.push_back({in[i].data(), std::ssize(in[i]), r});
    }
    comm.exchange(sends, receives, Type::float32, 3, place).wait();
    for (int r = 0; r < p; ++r) {
      if (r == me) continue;
      for (float const x : in[static_cast<std::size_t>(r)]) ASSERT_EQ(x, static_cast<float>(100 * r + me));
    }
  }
  EXPECT_EQ(calls("begin"), p > 1 ? 1 : 0);
}

TEST_P(Nccl, ManyAtOnceStayInOrder) {
  prepare();
  if (p == 1) GTEST_SKIP() << "nothing travels";
  constexpr int many = 20;
  std::vector<std::vector<std::int32_t>> values(many);
  std::vector<Request> requests;
  for (int k = 0; k < many; ++k) {
    values[static_cast<std::size_t>(k)].assign(100, me + k);
    requests.push_back(
        comm.all_reduce(values[static_cast<std::size_t>(k)].data(), 100, Type::int32, Reduction::sum, here()));
  }
  while (!requests.empty()) {  // the last first
    requests.back().wait();
    requests.pop_back();
  }
  for (int k = 0; k < many; ++k) EXPECT_EQ(values[static_cast<std::size_t>(k)][99], p * (p - 1) / 2 + p * k) << k;
}

// A fence of the device would wait for it.
TEST_P(Nccl, DoesNotWaitForWhatTheCallerStartsLater) {
  prepare();
  if (p == 1) GTEST_SKIP() << "nothing travels";
  float value = 1.0F;
  auto request = comm.all_reduce(&value, 1, Type::float32, Reduction::sum, here());
  fake->run_on(stream, 1 << 30, [] { ADD_FAILURE() << "this was not to be waited for"; });
  request.wait();
  EXPECT_EQ(value, static_cast<float>(p));
}

TEST_P(Nccl, HostMemoryGoesAsWithout) {
  prepare();
  auto const before = fake->log;
  double value = 1.0;
  comm.all_reduce(&value, 1, Type::float64, Reduction::sum).wait();
  comm.broadcast(&value, 1, Type::float64, 0).wait();
  EXPECT_EQ(value, p);
  EXPECT_EQ(fake->log, before);
}

TEST_P(Nccl, LeavesInGoodOrder) {
  prepare();
  EXPECT_EQ(comm.has_nccl(), p > 1);
  EXPECT_EQ(comm.describe_all_reduce(), p > 1 ? "nccl (host memory: mpi)" : "mpi");
  if (p == 1) return;
  EXPECT_EQ(fake->ids, me == 0 ? 1 : 0);
  comm = Communicator();
  std::vector<std::string> const end{"finalize", "destroy"};
  ASSERT_GE(fake->log.size(), 2U);
  EXPECT_EQ(std::vector<std::string>(fake->log.end() - 2, fake->log.end()), end);
  EXPECT_EQ(fake->aborts, 0);
}

TEST_P(Nccl, IsAbortedWhereAnExceptionUnwinds) {
  if (p == 1) GTEST_SKIP() << "no group";
  try {
    Communicator unwound(MPI_COMM_SELF, "unwound");  // freeing it waits for nobody
    prepare();
    auto const moved = std::move(comm);
    throw std::runtime_error("an error of the caller");
  } catch (std::runtime_error const&) {
  }
  EXPECT_EQ(fake->aborts, 1);
  EXPECT_EQ(calls("finalize"), 0);
}

TEST_P(Nccl, ErrorsNameTheCallTheRankAndTheText) {
  if (p == 1) GTEST_SKIP() << "no group";
  struct Case {
    char const *asked, *call;
  };
  auto const where = "rank " + std::to_string(me) + " of " + std::to_string(p) + ", communicator 'world' (fake NCCL)";
  for (auto const& [asked, call] :
       {Case{"init", "ncclCommInitRank"}, Case{"begin", "ncclGroupStart"}, Case{"all_reduce", "ncclAllReduce"},
        Case{"end", "ncclAllReduce"}, Case{"record", "an event of the caller's stream"}}) {
    auto other = Communicator::world();
    fake->fail_call = asked;
    fake->log.clear();
    int const aborts = fake->aborts;
    float value = 1.0F;
    auto const work = [&] {
      other.prepare({.algorithm = AllReduce::mpi, .fixed_order = false, .nccl = true});
      other.all_reduce(&value, 1, Type::float32, Reduction::sum, here()).wait();
    };
    try {
      work();
      ADD_FAILURE() << "no error in " << asked;
    } catch (p3d::base::Error const& e) {
      std::string const text = e.what();
      EXPECT_NE(text.find(std::string(call) + " to succeed"), std::string::npos) << text;
      EXPECT_NE(text.find("the fake was asked to fail in " + std::string(asked)), std::string::npos) << text;
      EXPECT_NE(text.find(where), std::string::npos) << text;
    }
    EXPECT_EQ(fake->aborts, aborts + 1) << asked;
    EXPECT_EQ(calls("end"), asked == std::string("all_reduce") || asked == std::string("end") ? 1 : 0)
        << "a group that was begun is ended";
    fake->fail_call.clear();
  }
  // A library that cannot make an id: everybody hears of it.
  fake->fail_call = "id";
  expect_error([&] { prepare(); }, me == 0 ? "asked to fail in id" : "so says rank 0");
}

TEST_P(Nccl, ErrorsThatComeLaterEndTheCommunicator) {
  if (p == 1) GTEST_SKIP() << "no group";
  prepare();
  float value = 1.0F;
  comm.all_reduce(&value, 1, Type::float32, Reduction::sum, here()).wait();
  fake->fail_after = 0;
  auto const again = [&] { comm.all_reduce(&value, 1, Type::float32, Reduction::sum, here()).wait(); };
  expect_error(again, "unhandled system error: a cable was pulled");
  EXPECT_EQ(fake->aborts, 1);
  EXPECT_EQ(fake->groups, 0);
  expect_error(again, "nothing follows on a communicator");
  // Host memory still travels, so that ranks can tell each other.
  double one = 1.0;
  comm.all_reduce(&one, 1, Type::float64, Reduction::sum).wait();
  EXPECT_EQ(one, p);
}

TEST(NcclOfTheBuild, IsRefusedWhereThereIsNone) {
  if (has_nccl()) GTEST_SKIP() << "this build has " << nccl_version();
  EXPECT_EQ(nccl_version(), "");
  auto world = Communicator::world();
  auto const prepare = [&] { world.prepare({.algorithm = AllReduce::mpi, .fixed_order = false, .nccl = true}); };
  if (world.size() == 1) return prepare();
  expect_error(prepare, "configure p3d with -DP3D_NCCL=ON");
}

}  // namespace
