// SPDX-License-Identifier: Apache-2.0
// Every operation against closed forms; with the counts split into parts of 1, 3 and 7 elements too.
#include <support/mpi_main.hpp>

#include <p3d/comm/large_count.hpp>

#include <algorithm>
#include <vector>

using namespace p3d::comm;

namespace {

class Operations : public ::testing::TestWithParam<int> {
protected:
  Operations() { set_max_count_per_call(GetParam()); }
  ~Operations() override { set_max_count_per_call(0); }
  Communicator world = Communicator::world();
  int const p = world.size();
  int const me = world.rank();
};
INSTANTIATE_TEST_SUITE_P(CountPerCall, Operations, ::testing::Values(0, 1, 3, 7));

/// Element i of the block that rank r contributes; small integers, exact in every type.
template <class T>
T element(int r, std::int64_t i) {
  return static_cast<T>((r * 31 + i * 7) % 101);
}

template <class T>
void check_all_reduce(Communicator& world, Type type) {
  int const n = 11;
  for (auto op : {Reduction::sum, Reduction::max, Reduction::min}) {
    std::vector<T> values(n), expected(n);
    for (int i = 0; i < n; ++i) {
      values[i] = element<T>(world.rank(), i);
      expected[i] = element<T>(0, i);
      for (int r = 1; r < world.size(); ++r) {
        T const other = element<T>(r, i);
        expected[i] = op == Reduction::sum   ? static_cast<T>(expected[i] + other)
                      : op == Reduction::max ? std::max(expected[i], other)
                                             : std::min(expected[i], other);
      }
    }
    world.all_reduce(values.data(), n, type, op).wait();
    EXPECT_EQ(values, expected);
  }
}

TEST_P(Operations, AllReduceOfEveryType) {
  check_all_reduce<std::int32_t>(world, Type::int32);
  check_all_reduce<std::int64_t>(world, Type::int64);
  check_all_reduce<std::uint64_t>(world, Type::uint64);
  check_all_reduce<float>(world, Type::float32);
  check_all_reduce<double>(world, Type::float64);
}

TEST_P(Operations, BytesAreNeverReduced) {
  char byte = 1;
  EXPECT_THROW(world.all_reduce(&byte, 1, Type::byte, Reduction::sum), p3d::base::Error);
}

TEST_P(Operations, AllGatherKeepsTheOrderOfRanks) {
  int const n = 10;
  std::vector<float> in(n), out(static_cast<std::size_t>(n * p), -1.0f), expected;
  for (int i = 0; i < n; ++i) in[i] = element<float>(me, i);
  for (int r = 0; r < p; ++r) {
    for (int i = 0; i < n; ++i) expected.push_back(element<float>(r, i));
  }
  world.all_gather(in.data(), out.data(), n, Type::float32).wait();
  EXPECT_EQ(out, expected);
  // From its own place in the result.
  std::fill(out.begin(), out.end(), -1.0f);
  std::copy(in.begin(), in.end(), out.begin() + me * n);
  world.all_gather(out.data() + me * n, out.data(), n, Type::float32).wait();
  EXPECT_EQ(out, expected);
}

TEST_P(Operations, BroadcastFromEveryRoot) {
  for (int root = 0; root < p; ++root) {
    std::vector<char> text(13, static_cast<char>(me));
    world.broadcast(text.data(), 13, Type::byte, root).wait();
    EXPECT_EQ(text, std::vector<char>(13, static_cast<char>(root)));
  }
}

TEST_P(Operations, MessagesRoundTheRingArriveInOrder) {
  int const right = (me + 1) % p;
  int const left = (me + p - 1) % p;
  int const n = 9;
  std::vector<std::int64_t> in[2], out[2];
  std::vector<Request> requests;
  for (int k = 0; k < 2; ++k) {
    in[k].assign(n, -1);
    out[k].resize(n);
    for (int i = 0; i < n; ++i) out[k][i] = 1000 * me + 100 * k + i;
    requests.push_back(world.recv(in[k].data(), n, Type::int64, left, 5));
  }
  for (int k = 0; k < 2; ++k) requests.push_back(world.send(out[k].data(), n, Type::int64, right, 5));
  wait_all(requests);
  for (int k = 0; k < 2; ++k) {
    for (int i = 0; i < n; ++i) EXPECT_EQ(in[k][i], 1000 * left + 100 * k + i);
  }
  for (auto const& request : requests) EXPECT_FALSE(request.active());
}

TEST_P(Operations, NothingTravelsForCountZero) {
  world.all_reduce(nullptr, 0, Type::float32, Reduction::sum).wait();
  world.broadcast(nullptr, 0, Type::float32, 0).wait();
  auto incoming = world.recv(nullptr, 0, Type::float32, (me + p - 1) % p, 1);
  world.send(nullptr, 0, Type::float32, (me + 1) % p, 1).wait();
  incoming.wait();
}

TEST(Messages, OfAnotherLengthAreAnError) {
  auto world = Communicator::world();
  int const right = (world.rank() + 1) % world.size();
  int const left = (world.rank() + world.size() - 1) % world.size();
  double in[8] = {}, out[8] = {};
  auto incoming = world.recv(in, 8, Type::float64, left, 2);
  world.send(out, 6, Type::float64, right, 2).wait();
  try {
    incoming.wait();
    ADD_FAILURE() << "8 elements were expected and 6 sent";
  } catch (p3d::base::Error const& e) {
    EXPECT_EQ(e.text().expected, "a message of 8 elements");
    EXPECT_EQ(e.text().found, "6");
    EXPECT_NE(e.text().where.find("communicator 'world'"), std::string::npos) << e.what();
  }
}

}  // namespace
