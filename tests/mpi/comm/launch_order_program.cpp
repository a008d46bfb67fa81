// SPDX-License-Identifier: Apache-2.0
// launch_order_program CASE right|wrong, on 4 ranks: collectives of several communicators by NCCL, launched in one
// order or not. In the wrong one the fake library must find what a GPU would stop at for ever (exit code 86).
#include <support/fake_nccl_library_api.hpp>

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/comm/wait.hpp>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

using namespace p3d::comm;

namespace {

/// Collectives under way, each on a buffer of its own.
class Ranks {
public:
  explicit Ranks(Communicator& world) : world_(world), me(world.rank()) {}

  /// The communicator of those with the same color.
  Communicator group(int color, char const* name) {
    auto out = world_.split(color, me, name);
    if (out.valid()) out.prepare({.algorithm = AllReduce::mpi, .fixed_order = false, .nccl = true});
    return out;
  }
  void sum(Communicator& comm, std::int64_t count = 1000) {
    auto& buffer = buffers_.emplace_back(std::make_unique<Values>(static_cast<std::size_t>(count), 1.0F));
    requests_.push_back(comm.all_reduce(buffer->data(), count, Type::float32, Reduction::sum, Memory::device));
    sizes_.push_back(comm.size());
  }
  void message(Communicator& comm, int from, int to) {
    auto& buffer = buffers_.emplace_back(std::make_unique<Values>(1000, 2.0F));
    std::vector<Communicator::Part> sends, receives;
    if (comm.rank() == from) sends.push_back({buffer->data(), 1000, to});
    if (comm.rank() == to) receives.push_back({buffer->data(), 1000, from});
    requests_.push_back(comm.exchange(sends, receives, Type::float32, 0, Memory::device));
    sizes_.push_back(2);
  }
  void finish(bool numbers_are_there = true) {
    wait_all(requests_);
    for (std::size_t i = 0; numbers_are_there && i < buffers_.size(); ++i)
      for (float const x : *buffers_[i])
        P3D_REQUIRE(x == static_cast<float>(sizes_[i]), "a collective brings its numbers");
  }

private:
  using Values = std::vector<float>;
  Communicator& world_;
  std::vector<std::unique_ptr<Values>> buffers_;
  std::vector<Request> requests_;
  std::vector<int> sizes_;

public:
  int const me;
};

/// `first` and `second`, in this order or the other.
template <class First, class Second>
void both(bool reversed, First first, Second second) {
  if (reversed) second();
  first();
  if (!reversed) second();
}

// Two communicators of the same ranks.
void pair(Ranks& r, bool wrong) {
  auto a = r.group(0, "a"), b = r.group(0, "b");
  both(
      wrong && r.me == 1, [&] { r.sum(a); }, [&] { r.sum(b); });
  r.finish();
}

// Three ranks, of which any two share a communicator.
void triangle(Ranks& r, bool wrong) {
  auto ab = r.group(r.me == 0 || r.me == 1 ? 0 : -1, "01"), bc = r.group(r.me == 1 || r.me == 2 ? 0 : -1, "12"),
       ca = r.group(r.me == 2 || r.me == 0 ? 0 : -1, "20");
  if (r.me == 0)
    both(
        false, [&] { r.sum(ab); }, [&] { r.sum(ca); });
  if (r.me == 1)
    both(
        wrong, [&] { r.sum(ab); }, [&] { r.sum(bc); });
  if (r.me == 2)
    both(
        wrong, [&] { r.sum(bc); }, [&] { r.sum(ca); });
  r.finish();
}

// Tensor parallelism over 2 ranks, data parallelism over 2: no two ranks share both.
void square(Ranks& r, bool wrong) {
  auto tp = r.group(r.me / 2, "tp"), dp = r.group(r.me % 2, "dp");
  both(
      wrong && (r.me == 0 || r.me == 3), [&] { r.sum(dp, 5000); }, [&] { r.sum(tp); });
  r.finish();
}

// One order in the program; but a call comes late onto its stream on one rank.
void race(Ranks& r, bool hasty) {
  auto a = r.group(0, "a"), b = r.group(0, "b");
  if (r.me == 2) fake_nccl_delay(0, 300000);
  both(
      false, [&] { r.sum(a); }, [&] { r.sum(b); });
  r.finish(!hasty);
}

// Buckets of gradients, on one communicator.
void buckets(Ranks& r, bool wrong) {
  auto dp = r.group(0, "dp");
  both(
      wrong && r.me == 2, [&] { r.sum(dp, 3000); }, [&] { r.sum(dp, 2000); });
  r.finish();
}

// A message on one communicator, a sum on the other.
void messages(Ranks& r, bool wrong) {
  auto a = r.group(0, "a"), b = r.group(0, "b");
  both(
      wrong && r.me == 3, [&] { r.message(a, 0, 3); }, [&] { r.sum(b); });
  r.finish();
}

}  // namespace

int main(int argc, char** argv) {
  Environment environment(argc, argv);
  std::map<std::string, void (*)(Ranks&, bool)> const cases{{"pair", pair},       {"triangle", triangle},
                                                            {"square", square},   {"race", race},
                                                            {"buckets", buckets}, {"messages", messages}};
  try {
    P3D_REQUIRE(argc == 3 && cases.contains(argv[1]), "launch_order_program CASE right|wrong");
    bool const wrong = std::string(argv[2]) == "wrong";
    set_wait_policy(make_wait_policy(60.0, 4, 1));
    auto world = Communicator::world();
    P3D_REQUIRE(world.size() == 4, "4 ranks");
    bool const hasty = wrong && std::string(argv[1]) == "race";
    p3d::test::LibraryInUse const library(world, hasty ? std::make_shared<p3d::test::HastyApi>() : nullptr);
    {
      Ranks ranks(world);
      cases.at(argv[1])(ranks, wrong);
    }
  } catch (std::exception const& e) {
    p3d::base::error_here(e.what());
    abort_all(1);
  }
  return environment.exit_code(0);
}
