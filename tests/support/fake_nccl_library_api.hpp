// SPDX-License-Identifier: Apache-2.0
#pragma once
// p3d's engines on the library of fake_nccl_library.hpp, through the calls of src/comm/nccl_library.cpp, which the test
// compiles with the likeness of the headers and the name nccl_library_of_the_test.

#include <comm/combine.hpp>
#include <comm/nccl_api.hpp>
#include <p3d/comm/nccl.hpp>

#include "fake_nccl_library.hpp"

#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace p3d::comm::detail {
std::shared_ptr<NcclApi> nccl_library_of_the_test();
}

namespace p3d::test {

/// Sums in the order of ranks, on the streams of the library.
class LibrarySums final : public comm::DeviceSums {
public:
  std::int64_t workspace() const override { return std::int64_t{1} << 12; }
  std::shared_ptr<std::byte> allocate(std::int64_t bytes) override {
    auto const memory = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes));
    return {memory, memory->data()};
  }
  void add(Terms const& terms) override {
    auto const run = [](void* argument) {
      std::unique_ptr<Terms> const t(static_cast<Terms*>(argument));
      std::vector<std::byte const*> in;
      for (int r = 0, k = 0; r < t->ranks; ++r) in.push_back(r == t->rank ? t->inout : t->others + t->stride * k++);
      std::byte* const out[] = {t->inout};
      comm::detail::combine(t->type, t->op, out, in, t->count);
    };
    fake_nccl_run_on(static_cast<cudaStream_t>(terms.stream), run, new Terms(terms));
  }
  void forget(void* /*stream*/) override {}
};

/// The library for all ranks of `world`, and what p3d uses while this lives. All communicators go before it does.
class LibraryInUse {
public:
  explicit LibraryInUse(comm::Communicator& world, std::shared_ptr<comm::detail::NcclApi> api = nullptr)
      : world_(&world) {
    std::string name = "/p3d-fake-nccl-" + std::to_string(getpid());
    comm::broadcast_text(world, name, 0);
    if (world.rank() == 0) fake_nccl_open(name.c_str(), 0, world.size());
    world.barrier().wait();
    if (world.rank() > 0) fake_nccl_open(name.c_str(), world.rank(), world.size());
    world.barrier().wait();
    fake_nccl_all_opened();
    comm::detail::set_nccl_api(api ? api : comm::detail::nccl_library_of_the_test());
    comm::set_device_sums(std::make_shared<LibrarySums>());
  }
  ~LibraryInUse() {
    comm::set_device_sums({});
    comm::detail::set_nccl_api({});
    world_->barrier().wait();  // no other rank needs this one's device
    fake_nccl_close();
  }
  LibraryInUse(LibraryInUse const&) = delete;
  LibraryInUse& operator=(LibraryInUse const&) = delete;

private:
  comm::Communicator* world_;
};

/// Says of every call at once that it is on its stream: what engines did that had no common queue of launches.
class HastyApi final : public comm::detail::NcclApi {
public:
  std::string version() const override { return api_->version(); }
  std::string gpu() const override { return api_->gpu(); }
  Result new_id(Id& id) override { return api_->new_id(id); }
  Result init(Group& g, int size, Id const& id, int rank) override { return api_->init(g, size, id, rank); }
  Result state(Group g) override {
    auto const result = api_->state(g);
    if (result.state == State::done) begun_.push_back(g);
    for (auto const* other : begun_)
      if (other == g) return {};
    return result;
  }
  Result finalize(Group g) override { return api_->finalize(g); }
  Result destroy(Group g) override { return api_->destroy(g); }
  Result abort(Group g) override { return api_->abort(g); }
  Result begin() override { return api_->begin(); }
  Result end(Group g) override { return api_->end(g); }
  using Element = comm::ElementType;
  using Op = comm::Reduction;
  Result all_reduce(void* x, std::int64_t n, Element t, Op op, Group g, Stream s) override {
    return own(g).all_reduce(x, n, t, op, g, s);
  }
  Result reduce(void* x, std::int64_t n, Element t, Op op, int root, Group g, Stream s) override {
    return own(g).reduce(x, n, t, op, root, g, s);
  }
  Result reduce_scatter(void const* x, void* y, std::int64_t n, Element t, Op op, Group g, Stream s) override {
    return own(g).reduce_scatter(x, y, n, t, op, g, s);
  }
  Result all_gather(void const* x, void* y, std::int64_t n, Element t, Group g, Stream s) override {
    return own(g).all_gather(x, y, n, t, g, s);
  }
  Result broadcast(void* x, std::int64_t n, Element t, int root, Group g, Stream s) override {
    return own(g).broadcast(x, n, t, root, g, s);
  }
  Result send(void const* x, std::int64_t n, Element t, int peer, Group g, Stream s) override {
    return own(g).send(x, n, t, peer, g, s);
  }
  Result recv(void* x, std::int64_t n, Element t, int peer, Group g, Stream s) override {
    return own(g).recv(x, n, t, peer, g, s);
  }
  Result new_stream(Stream& s) override { return api_->new_stream(s); }
  void free_stream(Stream s) override { api_->free_stream(s); }
  Result new_event(Event& e) override { return api_->new_event(e); }
  void free_event(Event e) override { api_->free_event(e); }
  Result record(Event e, Stream s) override { return api_->record(e, s); }
  Result wait(Stream s, Event e) override { return api_->wait(s, e); }
  Result query(Event e) override { return api_->query(e); }

private:
  /// Of one communicator, a call follows the one before: those engines saw to that.
  NcclApi& own(Group g) {
    while (api_->state(g).state == State::open) usleep(100);
    return *api_;
  }
  std::shared_ptr<comm::detail::NcclApi> api_ = comm::detail::nccl_library_of_the_test();
  std::vector<Group> begun_;
};

}  // namespace p3d::test
