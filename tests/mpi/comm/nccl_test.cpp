// SPDX-License-Identifier: Apache-2.0
// The engine of NCCL, against a fake one that is as strict: the results of each collective beside what they must be,
// order with the caller's stream, calls that stay open, errors, and the end.
#include <support/errors.hpp>
#include <support/fake_nccl.hpp>
#include <support/mpi_main.hpp>

#include <p3d/comm/nccl.hpp>
#include <p3d/comm/wait.hpp>

#include <p3d/base/float16.hpp>

#include <algorithm>
#include <cmath>
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
    set_device_sums({});
  }
  /// Sums in the order of ranks, in segments of `bytes` over all ranks.
  void prepare_in_order(std::int64_t bytes = 1 << 12) {
    set_device_sums(std::make_shared<FakeSums>(fake, bytes));
    comm.prepare({.algorithm = AllReduce::ring, .fixed_order = true, .nccl = true});
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
  // Pieces of even shares, which lie apart: NCCL's call for even shares would take them for neighbours.
  SharePieces pieces;
  for (int r = 0; r < p; ++r) {
    pieces.begins.push_back(even[static_cast<std::size_t>(r)] + 4);
    pieces.ends.push_back(even[static_cast<std::size_t>(r)] + 13);
  }
  std::vector<std::int64_t> by_mpi(static_cast<std::size_t>(even.back()), me + 1);
  auto values = by_mpi;
  world.reduce_scatter(by_mpi.data(), pieces, Type::int64, Reduction::sum).wait();
  comm.reduce_scatter(values.data(), pieces, Type::int64, Reduction::sum, here()).wait();
  EXPECT_EQ(values[static_cast<std::size_t>(pieces.begins[static_cast<std::size_t>(me)])], p * (p + 1) / 2);
  world.all_gather(by_mpi.data(), pieces, Type::int64).wait();
  comm.all_gather(values.data(), pieces, Type::int64, here()).wait();
  EXPECT_EQ(values, by_mpi);
  EXPECT_EQ(calls("reduce_scatter") + calls("all_gather"), 2);
  for (int root = 0; root < p; ++root) {
    std::vector<std::uint16_t> bits(77, static_cast<std::uint16_t>(me)), by_nccl = bits;
    world.broadcast(bits.data(), 77, Float16Type::bfloat16, root).wait();
    comm.broadcast(by_nccl.data(), 77, Float16Type::bfloat16, root, here()).wait();
    EXPECT_EQ(by_nccl, bits);
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
  for (auto const& place : {here(), Place(Memory::host)}) {
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

// The bits of p3d's own sums in host memory, wherever an element lies and however many segments there are.
TEST_P(Nccl, SumsInTheOrderOfRanks) {
  if (p == 1) GTEST_SKIP() << "nothing travels";
  prepare_in_order();
  auto const value = [&](std::int64_t i) {
    return std::ldexp(1.0 + element(me, i) / 7.0, static_cast<int>((me + i) % 11) - 5) * ((i + me) % 3 == 0 ? -1 : 1);
  };
  auto const compare = [&]<class T>(T, ElementType type, auto store) {
    for (std::int64_t const n : {1, 2, 5, 129, 5003}) {
      Bounds bounds{0};
      for (int r = 0; r < p; ++r) bounds.push_back(r + 1 == p ? n : std::min(n, bounds.back() + (r % 2) * n / 2));
      for (auto const op : {Reduction::sum, Reduction::max, Reduction::min}) {
        std::vector<T> given(static_cast<std::size_t>(n)), on_host, on_device, shares;
        for (std::int64_t i = 0; i < n; ++i) given[static_cast<std::size_t>(i)] = store(value(i));
        on_host = on_device = shares = given;
        comm.all_reduce(on_host.data(), n, type, op).wait();
        comm.all_reduce(on_device.data(), n, type, op, here()).wait();
        ASSERT_EQ(on_device, on_host) << n;
        comm.reduce_scatter(shares.data(), bounds, type, op, here()).wait();
        auto const own = static_cast<std::size_t>(me);
        for (auto i = bounds[own]; i < bounds[own + 1]; ++i)
          ASSERT_EQ(shares[static_cast<std::size_t>(i)], on_host[static_cast<std::size_t>(i)]) << i;
      }
    }
  };
  compare(0.0F, Type::float32, [](double x) { return static_cast<float>(x); });
  compare(0.0, Type::float64, [](double x) { return x; });
  compare(std::uint16_t{}, Float16Type::bfloat16,
          [](double x) { return p3d::base::bfloat16_bits(static_cast<float>(x)); });
  EXPECT_EQ(calls("reduce_scatter") + calls("reduce") + calls("all_reduce"), 0) << "NCCL adds nothing";
  std::int64_t whole = 7;
  comm.all_reduce(&whole, 1, Type::int64, Reduction::sum, here()).wait();
  EXPECT_EQ(whole, 7 * p);
  EXPECT_EQ(calls("all_reduce"), 1) << "but whole numbers, whose order does not matter";
  EXPECT_EQ(comm.describe_all_reduce(), "nccl in order of ranks (host memory: ring)");
}

TEST_P(Nccl, SumsInOrderSendWhatARingSends) {
  if (p == 1) GTEST_SKIP() << "nothing travels";
  prepare_in_order(std::int64_t{1} << 20);
  comm.reset_accounting();
  std::vector<float> values(static_cast<std::size_t>(60 * p), 1.0F);
  comm.all_reduce(values.data(), std::ssize(values), Type::float32, Reduction::sum, here()).wait();
  EXPECT_EQ(comm.accounting().sent.all_reduce, 2 * (p - 1) * 60 * 4);
  EXPECT_EQ(calls("begin"), 2) << "the summands, and the sums";
  EXPECT_EQ(calls("send"), p - 1);
  EXPECT_EQ(calls("all_gather"), 1);
}

// The fake refuses a launch on one communicator while that on another is not yet on its stream.
TEST_P(Nccl, LaunchesOfAllCommunicatorsKeepTheOrderOfTheProgram) {
  if (p == 1) GTEST_SKIP() << "nothing travels";
  auto other = Communicator::world();
  prepare_in_order();
  other.prepare({.algorithm = AllReduce::mpi, .fixed_order = false, .nccl = true});
  std::vector<std::vector<float>> values(12, std::vector<float>(3000, 1.0F));
  std::vector<Request> requests;
  fake->log.clear();
  std::vector<std::string> expected;
  for (auto& v : values) {
    bool const in_order = requests.size() % 3 != 1;
    requests.push_back((in_order ? comm : other).all_reduce(v.data(), 3000, Type::float32, Reduction::sum, here()));
  }
  wait_all(requests);
  for (auto const& v : values) EXPECT_EQ(v, std::vector<float>(3000, static_cast<float>(p)));
  std::vector<std::string> order;
  for (auto const& call : fake->log)
    if (call == "all_reduce" || call == "all_gather") order.push_back(call);
  for (int i = 0; i < 12; ++i) expected.emplace_back(i % 3 == 1 ? "all_reduce" : "all_gather");
  EXPECT_EQ(order, expected);
  other = Communicator();
}

TEST_P(Nccl, OneAtATimeIsOneStream) {
  if (p == 1) GTEST_SKIP() << "nothing travels";
  fake->one_stream = true;
  int const before = fake->streams;
  auto other = Communicator::world();
  for (auto* c : {&comm, &other}) c->prepare({.algorithm = AllReduce::mpi, .fixed_order = false, .nccl = true});
  EXPECT_EQ(fake->streams, before + 1);
  float a = 1.0F, b = 2.0F;
  auto first = comm.all_reduce(&a, 1, Type::float32, Reduction::sum, here());
  auto second = other.all_reduce(&b, 1, Type::float32, Reduction::sum, here());
  second.wait();
  EXPECT_EQ(a, static_cast<float>(p)) << "the one before it is over";
  first.wait();
  EXPECT_EQ(b, static_cast<float>(2 * p));
  comm = Communicator();
  EXPECT_EQ(fake->streams, before + 1);
  other = Communicator();
  EXPECT_EQ(fake->streams, before);
}

// What follows on the caller's stream finds the sum there; the host does not wait for it.
TEST_P(Nccl, TheStreamWaitsInPlaceOfTheHost) {
  if (p == 1) GTEST_SKIP() << "nothing travels";
  prepare_in_order();
  auto place = here();
  place.stream_waits = true;
  bool open = false;
  std::vector<float> values(2000, -1.0F);
  float read = 0.0F;
  fake->run_on(stream, 0, [&] { open = true; });
  fake->run_on(stream, 200, [&] { std::fill(values.begin(), values.end(), 1.0F); });
  auto request = comm.all_reduce(values.data(), 2000, Type::float32, Reduction::sum, place);
  bool hook = false;
  auto const alive = std::make_shared<int>(0);
  request.on_complete([&] { hook = true; }, alive);
  request.wait();
  EXPECT_FALSE(request.active());
  EXPECT_TRUE(hook);
  EXPECT_EQ(values[0], -1.0F) << "the kernel before it still waits";
  EXPECT_EQ(alive.use_count(), 2) << "kept until it is over";
  fake->run_on(stream, 0, [&] { read = values[1999]; });
  settle();
  for (int i = 0; i < 1000 && read == 0.0F; ++i) fake->run();
  EXPECT_EQ(read, static_cast<float>(p));
  // A communicator that goes first waits for its own.
  comm.all_reduce(values.data(), 2000, Type::float32, Reduction::sum, place).wait();
  comm = Communicator();
  EXPECT_EQ(values[5], static_cast<float>(p * p));
  EXPECT_EQ(fake->aborts, 0);
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

// The wait for something else may be the one that meets it.
TEST_P(Nccl, AnErrorIsThatOfEveryOperation) {
  if (p == 1) GTEST_SKIP() << "no group";
  prepare();
  fake->loses_work = true;
  float values[2] = {1.0F, 1.0F};
  auto first = comm.all_reduce(&values[0], 1, Type::float32, Reduction::sum, here());
  auto second = comm.all_reduce(&values[1], 1, Type::float32, Reduction::sum, here());
  auto other = Communicator::world();
  fake->fail_after = 0;
  expect_error([&] { other.barrier().wait(); }, "a cable was pulled");
  expect_error([&] { comm.all_reduce(&values[0], 1, Type::float32, Reduction::sum, here()); }, "nothing follows on");
  for (auto* request : {&first, &second}) {
    auto const wait = [&] {
      auto const mine = std::make_unique<Request>(std::move(*request));  // given up while the error unwinds
      mine->wait();
    };
    expect_error(wait, "a cable was pulled");
  }
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
